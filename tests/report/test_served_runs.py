"""Concurrent requests, K = auto, contexts and other engines: sections, answers and charts."""

import re
from dataclasses import replace

import pytest

from specbench.report.answers import answer_lines, shared_k_lines
from specbench.report.charts.canvas import Chart, SeriesStyle, drawing
from specbench.report.charts.speedups import crossover_charts, speedup_chart
from specbench.report.document import Document
from specbench.report.grids import result_grid
from specbench.report.provenance import provenance, setup
from specbench.report.sections import sections
from tests.cell_keys import with_axes
from tests.report.conftest import drawn
from tests.report.served_runs import served_run
from tests.report.test_figures import hover_texts, texts


@pytest.fixture(scope="module")
def served_charts(served: Document) -> tuple[Chart, ...]:
    return drawn(served).all


def test_all_cells_are_valid_and_none_is_missing(served: Document, lengths: Document) -> None:
    for document in (served, lengths):
        assert [cell.invalid_reasons for cell in document.cells if not cell.valid] == []
        assert document.missing == ()


def test_sections_are_distinguished_by_concurrency_and_engine(served: Document) -> None:
    assert [section.title for section in sections(served)][:4] == [
        "code, one request at a time, builtin",
        "code, one request at a time, transformers",
        "code, 2 concurrent requests, builtin",
        "code, 4 concurrent requests, builtin",
    ]


def test_each_engine_has_a_section_with_its_baseline_and_cells(served: Document) -> None:
    builtin, peer, *_ = sections(served)
    assert builtin.baseline is not None
    assert builtin.baseline.key.draft.method == "none"
    assert peer.baseline is not None
    assert peer.baseline.key.draft.method == "generate"
    static = peer.undrafted[1]
    assert static.key.draft.method == "generate_static"
    assert static.speedup is not None
    assert static.speedup.estimate == pytest.approx(1.0)
    assert peer.labels == ("demo/draft, assisted", "demo/draft, assisted_default")
    assert [row[0] for row in result_grid(peer).rows] == [
        "generate",
        "generate_static",
        "draft, assisted",
        "draft, assisted_default",
    ]


def test_a_result_table_with_concurrency_shows_serving_metrics(served: Document) -> None:
    section = sections(served)[2]
    grid = result_grid(section)
    wanted = {
        "tok/s, busy",
        "tok/s, all",
        "per user",
        "TTFT ms",
        "queue ms",
        "batch used",
        "KV cache",
    }
    assert wanted <= set(grid.headers)
    by_k = {row[1]: dict(zip(grid.headers, row, strict=True)) for row in grid.rows}
    assert list(by_k) == ["0", "2", "4", "auto 4.7"]
    assert by_k["4"]["KV cache"] == "2.00 MiB"
    # Two rows of 12 tokens in 0.9 s and a little, and of 13 tokens in 0.1 s more.
    assert float(by_k["4"]["tok/s, busy"]) == pytest.approx(24 / 0.909, abs=0.1)
    assert float(by_k["4"]["tok/s, all"]) == pytest.approx(26 / 1.009, abs=0.1)


def test_the_answer_names_rows_engine_and_method(served: Document) -> None:
    lines = answer_lines(served)
    first = lines[0]
    assert re.match("code, one .*builtin: demo/draft, ", first)
    assert any(line.startswith("  demo/draft, assisted_default: ") for line in lines)
    assert any(re.match("code, 4 .*builtin: ", line) for line in lines)


def test_a_shared_k_of_a_served_run_is_reported_for_each_load(served: Document) -> None:
    """Lines only if a decision helps; nothing was measured again here, so only single Ks do."""
    assisted, usual = shared_k_lines(served)
    assert re.fullmatch("demo/draft, assisted, one .*transformers, .*K=4; loses nothing", assisted)
    assert re.match("demo/draft, assisted_default, one .*transformers, .*K=20; loses", usual)


def test_engines_are_part_of_the_provenance(served: Document) -> None:
    facts = {fact.name: fact.value for fact in provenance(served)}
    assert facts["engine builtin"] == "demo, fused forward, graph off"
    assert re.match("demo; draft: 20 tokens ", facts["engine transformers"])


def test_graphs_and_their_seconds_are_reported(served: Document) -> None:
    ours, peer = served.engines
    graphed = replace(ours, graph="round", num_captures=12, capture_s=6.5)
    facts = {fact.name: fact.value for fact in provenance(replace(served, engines=(graphed, peer)))}
    assert re.search("graph round, 12 .* 6", facts["engine builtin"])


@pytest.mark.slow
def test_a_served_run_has_charts_of_concurrency_and_context(
    served_charts: tuple[Chart, ...], lengths: Document
) -> None:
    by_title = {chart.title: chart for chart in served_charts}
    rows = by_title["Speedup against concurrent requests"]
    assert {"K=2", "K=4", "K=auto", "concurrent requests"} <= set(texts(rows))
    assert "one request" not in rows.setting
    assert "Speedup against context" in [chart.title for chart in drawn(lengths).all]


@pytest.mark.slow
def test_acceptance_is_plotted_only_at_the_lowest_concurrency(
    served_charts: tuple[Chart, ...],
) -> None:
    drawn = [c.setting for c in served_charts if c.title == "Acceptance per position"]
    assert len(drawn) == 2
    assert all("one request at a time" in setting for setting in drawn)


def test_the_report_starts_with_the_settings_of_the_run(
    served: Document, lengths: Document
) -> None:
    text = setup(served)
    assert "K=0, 2, 4, 20, auto;" in text
    assert "one request at a time, 2 concurrent requests and 4 concurrent requests" in text
    assert "; 512 and 4,096 tokens of context;" in setup(lengths)


def test_the_title_of_a_setting_includes_the_arrival_rate() -> None:
    setting = with_axes(served_run().run.cells[0].key, concurrency=8, request_rate=2.5).condition
    assert setting.requests == "up to 8 at once, 2.5 requests per second"


def test_roofline_limits_are_shown_next_to_the_round(cpu_document: Document) -> None:
    limits = {"roofline_round_s": 0.004, "roofline_ratio": 1.25, "bandwidth_utilization": 0.8}
    host = {"launches_per_round": 1.0, "syncs_per_round": 0.0, "device_idle_s": 0.0015}
    cells = tuple(
        replace(cell, metrics={**cell.metrics, **limits, **host}) for cell in cpu_document.cells
    )
    grid = result_grid(sections(replace(cpu_document, cells=cells))[0])
    row = dict(zip(grid.headers, grid.rows[1], strict=True))
    assert row["roofline ms"] == "4.00 (1.25x)"
    assert row["bandwidth"] == "80%"
    assert row["launches, syncs"] == "1.00, 0"
    assert row["idle ms"] == "1.50"


def test_acceptance_by_position_is_of_the_deepest_fixed_k(served: Document) -> None:
    builtin = sections(served)[0]
    assert [cell.key.draft.k for cell in builtin.deepest] == [4]


def test_an_adaptive_winner_does_not_mark_the_fixed_k(served: Document) -> None:
    section = sections(served)[0]
    adaptive = section.cells[-1].key
    assert adaptive.draft.is_adaptive
    (decision,) = section.decisions
    helps = replace(decision, draft=adaptive.draft, leader=adaptive)
    chosen = replace(section, decisions=(helps,))
    assert chosen.is_chosen(adaptive)
    assert not chosen.is_chosen(with_axes(adaptive, adaptive=False))


def test_the_speedup_chart_caption_defines_the_ratio(served_charts: tuple[Chart, ...]) -> None:
    drawn = [chart for chart in served_charts if chart.title == "Speedup against K"]
    captions = {"one request at a time" in c.setting: c.caption.partition(".")[0] for c in drawn}
    assert re.match("Decode seconds .*K=0 / .* K, ", captions[True])
    assert re.match("Tokens per second .*K / .*K=0 ", captions[False])


def test_open_loop_charts_state_the_arrival_rate_and_the_ratio(served: Document) -> None:
    section = sections(served)[0]
    arriving = replace(section.condition, request_rate=2.5)
    styles = {label: SeriesStyle(color="#000000", marker="o") for label in section.labels}
    curves = [
        replace(curve, key=with_axes(curve.key, request_rate=2.5)) for curve in served.crossovers
    ]
    with drawing():
        chart = speedup_chart([replace(section, condition=arriving)], styles)
        rows = list(crossover_charts(curves))
    assert chart is not None
    assert chart.caption.startswith("Seconds per token of each request at K=0 / at K, ")
    assert [chart.setting.rpartition(", ")[2] for chart in rows] == ["2.5 requests per second"]


def test_a_curve_draws_no_line_over_invalid_points_and_no_point_without_a_speedup(
    served: Document,
) -> None:
    (fixed, *_) = [curve for curve in served.crossovers if curve.key.draft.k == 4]
    first, second, *_ = fixed.points
    with drawing():
        cut = [replace(first, valid=False), replace(second, speedup=None)]
        (chart,) = crossover_charts([replace(fixed, points=tuple(cut))])
        (whole,) = crossover_charts([fixed])
    assert {text.partition(":")[0] for text in hover_texts(chart)} == {"K=4 at 1"}
    assert all(text.endswith(", invalid") for text in hover_texts(chart))
    assert {text.partition(":")[0] for text in hover_texts(whole)} == {
        f"K=4 at {point.at}" for point in fixed.points
    }
