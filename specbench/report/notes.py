"""What a reader must know besides the numbers: failures, invalid cells, warnings."""

from collections.abc import Callable

from specbench.records import CellSummary
from specbench.report.document import Document
from specbench.report.numbers import ranges
from specbench.report.sections import Section, sections

_STAGES = {"load": "loading", "warm_up": "warming up", "decode": "decoding"}


def warning_lines(document: Document) -> list[str]:
    """Warnings about the run, then those about single cells."""
    return [*document.warnings, *_cell_lines(document, lambda cell: cell.warnings)]


def failure_lines(document: Document) -> list[str]:
    """What could not be measured, and why."""
    return [
        f"{', '.join(filter(None, (failure.pairing, failure.workload)))}: "
        f"failed while {_STAGES[failure.stage]}: {failure.reason}"
        for failure in document.failures
    ]


def invalid_lines(document: Document) -> list[str]:
    """Cells that are shown and support no answer, with the reasons."""
    return _cell_lines(document, lambda cell: cell.invalid_reasons)


def _cell_lines(
    document: Document, texts_of: Callable[[CellSummary], tuple[str, ...]]
) -> list[str]:
    """`code, demo/draft K=2..4: text`; every K that says the same shares a line."""
    lines = []
    for section in sections(document):
        ks: dict[tuple[str, str], list[int]] = {}
        for cell in _cells(section):
            for text in texts_of(cell):
                ks.setdefault((cell.key.pairing, text), []).append(cell.key.num_speculative_tokens)
        lines += [
            f"{section.title}, {pairing} K={ranges(k)}: {text}" for (pairing, text), k in ks.items()
        ]
    return lines


def _cells(section: Section) -> tuple[CellSummary, ...]:
    return (section.baseline, *section.cells) if section.baseline else section.cells
