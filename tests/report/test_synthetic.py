"""Random and simulated figures are marked wherever they can be read."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from specbench.frames.tables import cells_csv
from specbench.records import Kind
from specbench.report.answers import answer_lines, shared_k_lines
from specbench.report.document import Document, build_document
from specbench.report.document_json import to_json
from specbench.report.html import to_html
from specbench.report.markdown import to_markdown
from specbench.report.notes import run_warnings
from specbench.report.terminal import terminal_report
from specbench.words.answers import text
from tests.report.stored_runs import SMALL, Wish, stored_run
from tests.settings.flat_settings import changed

DRAWN = {"acceptance": (0.7, 0.5)}
DUMMY = {"dummy_weights": True}
NOTICE = "simulated acceptance 0.7, 0.5, dummy weights: timings are real"


def document_of(wish: Wish = SMALL, **settings: object) -> Document:
    stored = stored_run(wish)
    run = replace(stored.run, settings=changed(stored.run.settings, **settings))
    return build_document(replace(stored, run=run))


@pytest.fixture(scope="module")
def synthetic() -> Document:
    return document_of(**DRAWN, **DUMMY)


def test_the_first_warning_names_synthetic_weights_or_acceptance(synthetic: Document) -> None:
    assert text(run_warnings(synthetic)[0]).startswith(NOTICE)
    drawn, dummy = "simulated acceptance 0.7, 0.5", "dummy weights"
    assert run_warnings(synthetic)[0] == Kind.SYNTHETIC(made=(drawn, dummy))
    assert run_warnings(document_of(**DRAWN))[0] == Kind.SYNTHETIC(made=(drawn,))
    assert run_warnings(document_of(**DUMMY))[0] == Kind.SYNTHETIC(made=(dummy,))


@pytest.mark.parametrize("settings", [DRAWN, DUMMY], ids=["acceptance", "weights"])
@pytest.mark.parametrize(
    "wish",
    [SMALL, replace(SMALL, drafters=("draft",)), replace(SMALL, drafters=("poor",)), Wish(ks=(0,))],
    ids=["two drafters", "one helps", "none helps", "baseline"],
)
def test_synthetic_sentences_end_with_the_mark(wish: Wish, settings: dict[str, object]) -> None:
    document = document_of(wish, **settings)

    assert all(decision.is_synthetic for decision in document.decisions)
    for line in (*answer_lines(document), *shared_k_lines(document)):
        assert line.endswith(" [synthetic]")
        assert line.count("[synthetic]") == 1


def test_mismatched_models_are_not_reported_for_synthetic_runs() -> None:
    poor = replace(SMALL, drafters=("poor",))
    for settings in ({}, DRAWN, DUMMY):
        (*_, decision) = document_of(poor, **settings).decisions
        is_mismatched = any(reason.kind is Kind.MISMATCHED for reason in decision.reasons)
        assert is_mismatched is not bool(settings)


@pytest.mark.slow
@pytest.mark.usefixtures("without_charts")
def test_every_report_format_marks_a_synthetic_run(synthetic: Document) -> None:
    terminal = io.StringIO()
    Console(file=terminal, width=200).print(terminal_report(synthetic))
    texts = terminal.getvalue(), to_markdown([synthetic]), to_html([synthetic])

    assert all(NOTICE in text for text in texts)
    assert to_json(synthetic)["synthetic"] is True
    header, *rows = cells_csv([synthetic]).splitlines()
    assert header.startswith("run_id,synthetic,")
    assert {row.split(",")[1] for row in rows} == {"true"}


@pytest.mark.slow
def test_a_real_run_is_not_marked_as_synthetic(cpu_document: Document) -> None:
    text = "".join(
        (to_markdown([cpu_document]), to_html([cpu_document]), *answer_lines(cpu_document))
    )
    assert "ynthetic" not in text.replace('"synthetic"', "")
    assert to_json(cpu_document)["synthetic"] is False
    assert cells_csv([cpu_document]).splitlines()[1].split(",")[1] == "false"
