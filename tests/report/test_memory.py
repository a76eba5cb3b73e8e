"""Memory: the table, the chart and the reasons quote the same figures."""

import re
from dataclasses import replace

import pytest

from specbench.records import NO_DRAFTER, Kind, MemoryRecord
from specbench.report.charts.bars import memory_chart
from specbench.report.charts.canvas import drawing
from specbench.report.document import Document, build_document
from specbench.report.memory import memory_grid, memory_legend, memory_rows, need
from specbench.words.numbers import measured
from tests.report.stored_runs import SMALL, stored_run
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
        fields = dict(zip(grid.headers, row, strict=True))
        costs = fields["speculation costs"]
        more = "" if costs == "-" else f", speculation costs {costs}"
        assert by_name[row[0]] == f"{row[0]}: {fields['together']}{more}"
    drafted = dict(zip(grid.headers, grid.rows[1], strict=True))
    alone, draft, *_ = memory_rows(cpu_document)
    kv_bytes = draft.need.kv_cache - alone.need.kv_cache
    assert draft.cost_bytes == draft.need.weights - alone.need.weights + kv_bytes
    assert drafted["speculation costs"] == measured(draft.cost_bytes, "bytes")
    assert "computed, the drafter's" in memory_legend(cpu_document)
    assert re.search("one request .*89 tokens", memory_legend(cpu_document))
    assert re.search("one request .*89 tokens", chart.setting)


def test_each_pairing_has_its_own_cost_and_its_own_bar() -> None:
    stored = stored_run(SMALL)
    more = [
        replace(m, weights_bytes=m.weights_bytes * 2, process_peak_bytes=m.process_peak_bytes * 2)
        if m.drafter == "poor" and m.process_peak_bytes
        else m
        for m in stored.memory
    ]
    document = build_document(replace(stored, memory=tuple(more)))
    rows = memory_rows(document)
    alone, draft, poor = (row.need.weights + row.need.kv_cache for row in rows)
    assert [row.cost_bytes for row in rows] == [None, draft - alone, poor - alone]
    assert poor > draft
    with drawing():
        chart = memory_chart(rows)
    assert chart is not None
    bar = re.compile(r"<title>[^<]*, weights: [^<]*</title> ?<path d=\"M ([\d.]+) \S+ L ([\d.]+)")
    widths = [float(right) - float(left) for left, right in bar.findall(chart.panels[0])]
    needs = [row.need.weights for row in rows]
    assert [w / widths[0] for w in widths] == pytest.approx([n / needs[0] for n in needs], rel=0.01)


def test_the_legend_names_the_longest_context_of_each_target(cpu_document: Document) -> None:
    assert memory_legend(replace(cpu_document, memory=())) == ""
    record = cpu_document.memory[0]
    contexts = {record.target: 1200, "other": 1}
    both = (record, replace(record, target="other"))
    legend = memory_legend(replace(cpu_document, memory=both, longest_context=contexts))
    assert f"1,200 tokens ({record.target}), 1 token (other)" in legend


def test_the_reasons_state_the_memory_of_the_draft_model(cpu_document: Document) -> None:
    told = [
        reason
        for d in cpu_document.decisions
        for reason in d.reasons
        if reason.kind is Kind.DRAFTER_MEMORY
    ]
    assert told
    assert {(r.figures["bytes"], r.figures["cache_tokens"]) for r in told} == {
        (24_248_320, 11.5625)  # 23.1 MiB of weights and KV cache
    }
