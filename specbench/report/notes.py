"""What a reader must know besides the numbers: failures, invalid cells, warnings."""

from collections.abc import Callable

from specbench.records import CellKey, CellSummary
from specbench.report.document import Document
from specbench.report.numbers import lengths
from specbench.report.sections import sections

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
    """`demo/draft K=2..4 on chat; code: text`: what says the same shares a line."""
    titles: dict[tuple[str, str, str], list[str]] = {}
    for section in sections(document):
        keys: dict[tuple[str, str], list[CellKey]] = {}
        for cell in section.measured:
            for text in texts_of(cell):
                keys.setdefault((cell.key.source, text), []).append(cell.key)
        for (label, text), said_of in keys.items():
            titles.setdefault((label, _ks(said_of), text), []).append(section.title)
    return [
        f"{label} K={ks} on {'; '.join(where)}: {text}"
        for (label, ks, text), where in titles.items()
    ]


def _ks(keys: list[CellKey]) -> str:
    return lengths([key.draft.length for key in keys])
