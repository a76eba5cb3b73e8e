"""The Markdown report."""

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

from specbench.records import Kind, SpeedupVerdict
from specbench.report.answers import answer_lines
from specbench.report.document import Document, build_document
from specbench.report.markdown import escape, to_markdown
from specbench.words.answers import main_reasons
from tests.report.stored_runs import SMALL, renamed, stored_run


def tables(text: str) -> Iterator[list[str]]:
    """Runs of lines that begin with a bar."""
    for block in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE):
        yield block.splitlines()


def test_the_markdown_report_starts_with_the_answer(cpu_document: Document) -> None:
    text = to_markdown([cpu_document])
    for line in answer_lines(cpu_document):
        assert line.strip() in text
        assert text.index(line.strip()) < text.index("## Results")


@pytest.mark.parametrize("is_won", [True, False])
def test_markdown_has_the_reasons_of_every_drafter(cpu_document: Document, is_won: bool) -> None:
    lost = tuple(
        replace(decision, speedup=None, verdict=SpeedupVerdict.UNDECIDED)
        for decision in cpu_document.decisions
    )
    document = cpu_document if is_won else replace(cpu_document, decisions=lost)
    lines = to_markdown([document]).splitlines()
    for decision in document.decisions:
        for reason in main_reasons(decision):
            assert {f"  - {escape(reason)}", f"    - {escape(reason)}"} & set(lines)
    assert any(line.startswith("    - ") for line in lines)  # of a drafter that is not quoted


def test_every_row_of_a_table_has_as_many_cells_as_its_header(gpu_document: Document) -> None:
    all_tables = list(tables(to_markdown([gpu_document])))
    assert len(all_tables) > 10
    for header, *rows in all_tables:
        assert {row.count("|") for row in rows} == {header.count("|")}


def test_markdown_has_every_metric_of_a_cell_with_its_formula(gpu_document: Document) -> None:
    text = to_markdown([gpu_document])
    names = {name for cell in gpu_document.cells for name in cell.metrics}
    assert {name for name in names if f"- **{name}** (" not in text} == set()
    lists = {"acceptance_rate_per_position", "conditional_acceptance_rate"}  # have a table
    assert {n for n in names - lists if f"| {n} |" not in text} == set()


def test_formulas_of_absent_metrics_are_omitted(cpu_document: Document) -> None:
    text = to_markdown([cpu_document])
    assert "**joules_per_token**" not in text
    assert "GPU" not in text.split("## Provenance")[1].split("## All metrics")[0]


def test_absent_values_are_marked_and_never_numbers(cpu_document: Document) -> None:
    text = to_markdown([cpu_document])
    assert not re.search(r"\bnan\b|\bNone\b|\binf\b", text)
    assert "| none | 0 |  | " in text
    assert "| - |" in text


def test_markdown_has_sections_for_failures_invalid_cells_and_warnings(
    cpu_document: Document, gpu_document: Document, interrupted_document: Document
) -> None:
    failed = "demo/broken: failed while loading: no such folder: models/broken"
    assert f"### Not measured\n\n- {failed}" in to_markdown([cpu_document])
    assert "### Invalid cells\n\n- demo/draft K=4 (code" in to_markdown([gpu_document])
    assert "### Warnings\n\n- incomplete: interrupted" in to_markdown([interrupted_document])
    assert "### Invalid cells" not in to_markdown([cpu_document])


def test_markdown_of_two_runs_has_both(cpu_document: Document, gpu_document: Document) -> None:
    text = to_markdown([cpu_document, gpu_document])
    assert text.count("make demo faster on ") == 2
    assert text.count("## Formulas") == 1


def test_hostile_names_are_escaped_in_markdown() -> None:
    name = "<script>|[x](javascript:y)`*a*\\"
    stored = renamed(stored_run(replace(SMALL, drafters=("draft",))), "creative", name)
    document = build_document(stored)
    warnings = (Kind.NOTE(text="<img src=x>\n# heading"),)
    text = to_markdown([replace(document, run=replace(document.run, warnings=warnings))])
    assert "<script>" not in text
    assert "<img" not in text
    assert "](" not in text
    assert "\n# heading" not in text
    for header, *rows in tables(text.replace("\\|", "")):
        assert {row.count("|") for row in rows} == {header.count("|")}


def test_plain_text_is_not_escaped_in_markdown() -> None:
    sentence = "code: K=6, 1.90x faster [1.80, 2.00]"
    assert escape(sentence) == sentence
