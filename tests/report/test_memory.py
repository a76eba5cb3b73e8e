"""Memory: the table, the chart and the reasons quote the same figures."""

from dataclasses import replace

from specbench.records import NO_DRAFTER, MemoryRecord
from specbench.report.charts.canvas import drawing
from specbench.report.charts.memory import memory_chart
from specbench.report.document import Document
from specbench.report.memory import memory_grid, memory_legend, memory_rows, need
from tests.report.test_figures import texts


def test_needed_memory_is_weights_and_cache_and_the_rest_of_the_peak() -> None:
    record = MemoryRecord(
        target="demo",
        drafter=NO_DRAFTER,
        weights_bytes=100,
        kv_bytes_per_token=2,
        process_peak_bytes=130,
    )
    assert need(record, 10) == (100, 20, 30)
    assert need(record, 10).total == 150
    assert need(replace(record, peak_allocated_bytes=110), 10).rest == 10
    assert need(replace(record, process_peak_bytes=None), 10).rest is None


def test_every_figure_of_the_chart_is_in_the_table(cpu_document: Document) -> None:
    grid = memory_grid(cpu_document)
    assert grid is not None
    with drawing():
        chart = memory_chart(memory_rows(cpu_document))
    assert chart is not None
    by_name = {text.partition(": ")[0]: text for text in texts(chart)}
    for row in grid.rows:
        told = dict(zip(grid.headers, row, strict=True))
        costs = told["speculation costs"]
        more = "" if costs == "-" else f", speculation costs {costs}"
        assert by_name[row[0]] == f"{row[0]}: {told['together']}{more}"
    drafted = dict(zip(grid.headers, grid.rows[1], strict=True))
    assert drafted["speculation costs"] == "16.0 MiB"  # 12 of weights, 4 more at the peak
    assert "one request of 89 tokens" in memory_legend(cpu_document)
    assert "one request of 89 tokens" in chart.setting


def test_the_reasons_quote_the_cost_that_the_table_has(cpu_document: Document) -> None:
    told = [text for d in cpu_document.decisions for text in d.reasons if "drafter takes" in text]
    assert told
    assert all("takes 16 MiB, room for 8 tokens" in text for text in told)
