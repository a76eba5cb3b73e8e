"""Every output of a run shows each warning once, in one place."""

from dataclasses import replace

import pytest
from rich.console import Console

from specbench.records import CellSummary, Decision, Kind
from specbench.report.document import Document
from specbench.report.notes import notes, warning_lines
from specbench.report.terminal import terminal_report
from specbench.words.answers import noise_lines, text
from tests.report.conftest import SHOWN

RUN, CELL = Kind.NOTE(text="a word about the run"), Kind.SERVER_POWER_CAPPED()
AGAIN = Kind.CANCELLED()


def test_a_target_without_a_chat_template_is_warned_of_once(cpu_document: Document) -> None:
    def lines(template: str | None) -> list[str]:
        models = tuple(replace(m, template_sha256=template) for m in cpu_document.models)
        document = replace(cpu_document, models=models)
        return [line for line in warning_lines(document) if "no chat template" in line]

    (line,) = lines("")
    assert line.startswith("demo ")
    assert lines(None) == lines("ab" * 32) == []


@pytest.fixture
def warned(cpu_document: Document) -> Document:
    """A winner with the same warning twice, and another one once."""
    winner = next(d.leader for d in cpu_document.decisions if d.draft.k)

    def cell(summary: CellSummary) -> CellSummary:
        return replace(summary, warnings=(CELL,)) if summary.key == winner else summary

    def decision(made: Decision) -> Decision:
        return replace(made, warnings=(CELL, AGAIN)) if made.leader == winner else made

    return replace(
        cpu_document,
        run=replace(cpu_document.run, warnings=(RUN,)),
        cells=tuple(map(cell, cpu_document.cells)),
        decisions=tuple(map(decision, cpu_document.decisions)),
    )


@pytest.mark.slow
@pytest.mark.parametrize("shown", SHOWN)
@pytest.mark.usefixtures("without_charts")
def test_each_warning_is_shown_once(shown: str, warned: Document) -> None:
    output = SHOWN[shown](warned)
    assert [output.count(text(warning)) for warning in (RUN, CELL, AGAIN)] == [1, 1, 1]


def test_a_heading_without_lines_is_omitted(baseline_document: Document) -> None:
    assert notes(baseline_document) == {}


def test_noise_that_was_warned_of_at_the_start_is_not_repeated_with_the_results(
    cpu_document: Document,
) -> None:
    noisy = replace(cpu_document, noise=(Kind.WAITED(share=0.41),))
    console = Console(width=400)
    with console.capture() as first:
        console.print(terminal_report(noisy))
    with console.capture() as again:
        console.print(terminal_report(noisy, noise_lines(noisy.noise)))
    assert ("noisy machine" in first.get(), "noisy machine" in again.get()) == (True, False)
