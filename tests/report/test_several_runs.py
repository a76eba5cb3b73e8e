"""Several runs next to each other."""

from dataclasses import replace

from specbench.report.blocks import side_by_side_part
from specbench.report.charts.canvas import drawing
from specbench.report.charts.speedups import answers_charts
from specbench.report.comparisons import answers_grid, differences_grid
from specbench.report.document import Document
from tests.report.test_figures import texts


def test_a_single_run_has_no_comparison(cpu_document: Document) -> None:
    assert not side_by_side_part([cpu_document]).blocks
    assert list(answers_charts([cpu_document])) == []


def test_the_comparison_has_a_row_per_workload_and_drafter(
    cpu_document: Document, interrupted_document: Document
) -> None:
    grid = answers_grid([cpu_document, interrupted_document])
    rows = {row[:2]: row[2:] for row in grid.rows}
    assert len(rows) == len(cpu_document.decisions) == 4
    first, second = rows["code", "draft"]
    (decision,) = [d for d in cpu_document.decisions if d.draft.k == 4]
    assert f"code: {first.replace('x [', 'x faster [')}" == decision.sentence
    assert second == "undecided"  # it was not measured again
    assert rows["creative", "poor"][0].startswith("no speedup: K=1, 0.88x [")
    assert rows["creative", "poor"][1] == "-"  # that run has no such drafter


def test_only_differing_settings_of_several_runs_are_listed(cpu_document: Document) -> None:
    faster = replace(cpu_document.run.environment, cpu="Other CPU", git_commit=None)
    other = replace(cpu_document, run=replace(cpu_document.run, run_id="b", environment=faster))
    grid = differences_grid([cpu_document, other])
    assert [row[0] for row in grid.rows] == ["run", "specbench", "CPU"]
    assert grid.rows[0][1:] == (cpu_document.run.run_id, "b")
    assert grid.rows[2][1:] == ("Made-up CPU, 2 cores", "Other CPU, 2 cores")


def test_the_chart_has_a_point_for_each_run(
    cpu_document: Document, interrupted_document: Document
) -> None:
    with drawing():
        (chart,) = answers_charts([cpu_document, interrupted_document])
    assert {"1", "2", "draft", "poor", "run"} <= set(texts(chart))
    assert chart.panels[0].count("<title>run 1, draft, K=4: 1.90x") >= 1
    assert "run 2" not in chart.panels[0]  # undecided for want of a second measurement
