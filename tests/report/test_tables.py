"""The terminal's tables: 80 columns, nothing lost, words in addition to color."""

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from specbench.doc import docs_of
from specbench.metrics.registry import all_metrics
from specbench.records import CellSummary
from specbench.report.document import Document, build_document
from specbench.report.grids import COLUMNS, result_grid
from specbench.report.sections import main_rows, sections
from specbench.report.terminal import terminal_report
from specbench.words.table import legend_of
from tests.report.conftest import printed
from tests.report.stored_runs import SMALL, renamed, stored_run


@pytest.mark.parametrize(
    "name", ["cpu_document", "gpu_document", "interrupted_document", "baseline_document"]
)
def test_tables_fit_80_columns_untruncated(name: str, request: pytest.FixtureRequest) -> None:
    text = printed(request.getfixturevalue(name))
    assert max(map(len, text.splitlines())) <= 80
    assert "\N{HORIZONTAL ELLIPSIS}" not in text


@pytest.mark.parametrize("name", ["cpu_document", "gpu_document", "baseline_document"])
def test_the_legend_explains_only_the_shown_columns(
    name: str, request: pytest.FixtureRequest
) -> None:
    tables = [result_grid(section) for section in sections(request.getfixturevalue(name))]
    headers = {table.headers[i] for table in tables for i in table.brief_columns}
    words = " ".join(printed(request.getfixturevalue(name)).split())
    for doc in {key.full_doc for key in COLUMNS.values()}:
        is_explained = f"{doc.label} {doc.meaning}" in words
        assert is_explained == (doc.label in headers), doc.label


def test_a_workloads_section_has_only_its_cells(cpu_document: Document) -> None:
    (code, _) = sections(cpu_document)
    assert [(c.key.draft.drafter, c.key.draft.k) for c in code.cells if c.key.draft.k != 3] == [
        *(("draft", k) for k in (1, 2, 4)),
        *(("poor", k) for k in (1, 2, 4)),
    ]
    assert code.best is not None
    shown = [(cell.key.draft.drafter, cell.key.draft.k) for cell in main_rows(code).cells]
    best, lost = code.best.leader.draft.k, code.decisions[1].leader.draft.k
    assert (best, lost) == (4, 1)
    assert shown == [("draft", 4), ("poor", 1)]
    assert main_rows(replace(code, decisions=())).cells == code.cells
    short = io.StringIO()
    Console(file=short, width=80, no_color=True).print(terminal_report(cpu_document))
    every = [(c.key.draft.drafter, c.key.draft.k) for s in sections(cpu_document) for c in s.cells]
    brief = [c for s in sections(cpu_document) for c in main_rows(s).cells]
    assert f"{len(every) - len(brief)} more rows" in short.getvalue()
    assert "more row" not in printed(cpu_document)


def test_a_labeled_figure_has_a_column_without_being_listed(
    cpu_document: Document, served: Document
) -> None:
    known = {metric.label: metric for metric in all_metrics().values() if metric.label}
    shown = set()
    for document in (cpu_document, served):
        values = {metric.name: 1.0 for metric in known.values()}
        cells = tuple(replace(cell, metrics={**cell.metrics, **values}) for cell in document.cells)
        for section in sections(replace(document, cells=cells)):
            shown |= {*result_grid(section).headers}
    fields = {doc.label for doc in docs_of(CellSummary).values() if doc.label}
    assert {*known, *fields} <= shown
    meanings = {key.full_doc.label: key.full_doc.meaning for key in COLUMNS.values()}
    assert meanings["latency ms"] == "median time from arrival to the last token"
    assert known["latency ms"].formula.startswith("Median time from arrival")


def test_long_names_and_wide_numbers_still_fit() -> None:
    name = "llama-3.3-70b-instruct-speculator-eagle3"
    stored = renamed(stored_run(SMALL), "draft", name)
    document = build_document(stored)
    wide = replace(
        document,
        cells=tuple(
            replace(cell, metrics={**cell.metrics, "decode_tokens_per_s": 123456.0})
            for cell in document.cells
        ),
    )
    text = printed(wide)
    assert max(map(len, text.splitlines())) <= 80
    assert "\N{HORIZONTAL ELLIPSIS}" not in text
    column = "".join(line[: line.find(" ")] for line in text.splitlines() if line.strip())
    assert name in column.replace("drafter", "")


def test_chosen_and_invalid_rows_are_marked_in_words(
    cpu_document: Document, gpu_document: Document
) -> None:
    code = printed(cpu_document).split("creative")[0]
    (chosen,) = [line for line in code.splitlines() if line.endswith("chosen")]
    decision = next(d for d in cpu_document.decisions if d.draft.method != "none")
    assert chosen.split()[0] == str(decision.draft.k)
    invalid = [line for line in printed(gpu_document).splitlines() if line.endswith("invalid")]
    assert len(invalid) == 2 * 2 * 2
    text = " ".join(printed(gpu_document).split())
    assert re.search("demo/draft K=4 \\(code, .*0 and creative, .*0\\): throttled .*6 of 12", text)


def test_a_row_shows_the_measurement(cpu_document: Document) -> None:
    cell = cpu_document.cells[1]
    assert cell.speedup is not None
    row = next(line for line in printed(cpu_document).splitlines() if line.startswith("draft "))
    speedup = f"{cell.speedup.estimate:.2f}x [{cell.speedup.low:.2f}, {cell.speedup.high:.2f}]"
    assert speedup in row
    assert f"{cell.metrics['decode_tokens_per_s']:.1f} " in row
    assert f"{cell.metrics['mean_acceptance_length']:.2f} " in row
    whole = cell.speedup_end_to_end
    assert whole is not None
    assert f"{whole.estimate:.2f}x [{whole.low:.2f}, {whole.high:.2f}]" in row


def test_columns_without_a_value_are_omitted(
    cpu_document: Document, baseline_document: Document
) -> None:
    assert "end to end      speedup including" in printed(cpu_document)
    assert "engine's" not in printed(cpu_document)
    assert "speedup" not in printed(baseline_document)


def test_failures_and_warnings_are_below_the_tables(interrupted_document: Document) -> None:
    text = " ".join(printed(interrupted_document).split())
    assert "interrupted" in text


def test_a_run_without_measurements_prints_no_table(cpu_document: Document) -> None:
    empty = replace(cpu_document, cells=(), decisions=(), shared_k=(), failures=())
    assert printed(empty).strip() == ""


def test_acceptance_of_trees_is_shown_as_a_share_of_nodes(cpu_document: Document) -> None:
    def planted(cell: CellSummary) -> CellSummary:
        if cell.key.draft.drafter != "draft":
            return cell
        nodes = {"num_draft_nodes": 63.0, "acceptance_rate": 0.0125}
        return replace(cell, metrics={**cell.metrics, **nodes})

    mixed = replace(cpu_document, cells=tuple(map(planted, cpu_document.cells)))
    assert max(map(len, printed(mixed).splitlines())) <= 80
    for section in sections(mixed):
        shown = result_grid(section)
        of_nodes, rate = shown.headers.index("of nodes"), shown.headers.index("accept. rate")
        texts = {(row[0], row[1]): (row[of_nodes], row[rate]) for row in shown.rows}
        assert texts["draft", "4"] == ("1.2%", "-")
        assert texts["poor", "4"][0] == "-"
        assert texts["poor", "4"][1].endswith("%")
        assert "of nodes" in dict(legend_of([shown])[0])
    assert "of nodes" not in printed(cpu_document)  # a table of only chains lacks the column


def test_the_number_of_prompts_is_shown_if_rows_differ_in_it(cpu_document: Document) -> None:
    assert "prompts" not in table_headers(printed(cpu_document))
    first, *rest = cpu_document.cells
    fewer = [replace(cell, num_prompts=3) if cell.key.draft.k else cell for cell in rest]
    text = printed(replace(cpu_document, cells=(first, *fewer)))
    assert "prompts" in table_headers(text)
    assert max(map(len, text.splitlines())) <= 80


def table_headers(text: str) -> set[str]:
    return {
        word for line in text.splitlines() if line.startswith("drafter") for word in line.split()
    }
