"""Runs of a history, its steps and trends, and their rate of false alarms."""

import re
from dataclasses import replace

import numpy as np
import pytest

from specbench.gate.fingerprint import Fingerprint
from specbench.gate.history import PastRun, history
from specbench.records import CellSummary, Interval, Kind
from specbench.report.charts.lines import history_charts
from specbench.report.history import (
    brief,
    changes,
    history_grids,
    history_json,
    history_report,
    left_out_lines,
    sparkline,
)
from specbench.report.html import page
from specbench.stats.change_points import SIGNIFICANCE, analyze_series
from tests.cell_keys import KEY, with_axes
from tests.stats.test_change_points import noisy

HERE = Fingerprint(
    models={"demo": "aa" * 32},
    tokenizers={},
    workloads={"code": "bb" * 32},
    sampling="top-k off, top-p 1",
    hardware={"device": "cpu", "CPU": "an old one"},
    torch="2.13.0",
)


def cell(value, *, valid=True, metric="decode_speedup"):
    interval = Interval(estimate=value, low=value - 0.1, high=value + 0.1)
    return CellSummary(
        key=KEY,
        valid=valid,
        invalid_reasons=() if valid else (Kind.NOTHING_FINISHED(),),
        num_prompts=8,
        num_requests=8,
        metrics={metric: value},
        speedup=interval,
    )


def run(day, *cells, fingerprint=HERE):
    return PastRun(
        run_id=f"run-{day:02}",
        created_at=f"2026-11-{day:02}T00:00:00",
        fingerprint=fingerprint,
        cells=cells,
    )


def runs(values, first=1):
    return [run(first + i, cell(value)) for i, value in enumerate(values)]


STEPPED = [1.50, 1.51, 1.49, 1.50, 1.52, 1.20, 1.21, 1.19, 1.20, 1.22]


def test_a_step_names_the_run_it_came_with():
    (series,) = history(runs(STEPPED), ["decode_speedup"]).series
    (step,) = series.steps
    assert series.points[step.run_index].run_id == "run-06"
    (told,) = changes(history(runs(STEPPED), ["decode_speedup"]))
    assert told == Kind.STEPPED(
        metric="decode_speedup",
        cell="demo/draft K=4 on code",
        change=pytest.approx(-0.199, abs=0.001),
        run_id="run-06",
        before=(step.before, "x"),
        after=(step.after, "x"),
        p_value=step.p_value,
        judged="worse",
    )


def test_history_points_are_sorted_by_time():
    shuffled = [replace(run, run_id=f"z{90 - i}") for i, run in enumerate(runs(STEPPED))][::-1]
    (series,) = history(shuffled, ["decode_speedup"]).series
    assert series.values == tuple(STEPPED)
    assert (series.points[0].low, series.points[0].high) == pytest.approx((1.4, 1.6))


def test_runs_of_another_fingerprint_are_omitted_and_listed():
    other = replace(HERE, hardware={"device": "cpu", "CPU": "a new one"})
    old = [run(i, cell(9.0), fingerprint=other) for i in (1, 2)]
    result = history([*old, *runs(STEPPED, first=3)], ["decode_speedup"])
    assert len(result.series[0].points) == len(STEPPED)
    assert re.fullmatch("run-01 .*hardware: .*a new one, .*an old one", left_out_lines(result)[0])
    kept = history([*old, *runs(STEPPED, first=3)], ["decode_speedup"], allowed=["hardware"])
    assert len(kept.series[0].points) == len(STEPPED) + 2


def test_invalid_cells_and_absent_metrics_are_omitted_from_a_history():
    mixed = [run(1, cell(1.5, valid=False)), run(2, cell(1.5)), run(3), run(4, cell(1.6))]
    (series,) = history(mixed, ["decode_speedup", "joules_per_token"]).series
    assert [point.run_id for point in series.points] == ["run-02", "run-04"]
    (grid,) = history_grids(history(mixed, ["decode_speedup"]))
    assert (grid.headers[-1], grid.rows[0][-1]) == ("finding", "fewer than 8 runs")


def test_a_steady_history_reports_the_expected_false_alarms():
    result = history(runs([1.5, 1.6] * 5), ["decode_speedup"])
    assert [*changes(result)] == []
    (grid,) = history_grids(result)
    assert grid.rows[0][-1] == "steady"
    assert re.search(r"\b0\.1 .*change point", result.false_alarms)


def test_a_trend_is_reported_as_a_trend():
    rising = [1.0 + 0.01 * i + 0.001 * (-1) ** i for i in range(12)]
    result = history(runs(rising), ["decode_speedup"])
    (series,) = result.series
    (series_json,) = history_json(result)["series"]
    assert series_json["trend"] == {"slope": series.trend.slope, "p_value": series.trend.p_value}
    (told,) = changes(result)
    assert (told.kind, told.figures["runs"]) == (Kind.TREND, 12)
    assert told.figures["slope"] == pytest.approx(0.01, abs=0.001)
    assert re.fullmatch(r"trend \+0\.01\d* x per run", brief(series)[0])


def test_sparkline_bars_range_from_lowest_to_highest_value():
    assert sparkline((1.0, 2.0, 1.5)) == "▁█▅"
    assert sparkline((3.0, 3.0)) == "▁▁"
    assert len(sparkline(tuple(range(100)))) == 24


def page_of(result):
    return page(history_report(result), {"history": history_charts(result)})


def test_the_history_page_is_self_contained_and_deterministic():
    result = history(runs(STEPPED), ["decode_speedup"])
    html = page_of(result)
    assert html == page_of(history(runs(STEPPED), ["decode_speedup"]))
    assert html.count("<svg ") == 1
    assert "run-06" in html
    assert "http" not in html.replace("http://www.w3.org", "")


def test_a_history_needs_a_run():
    with pytest.raises(ValueError, match="needs a run"):
        history([], ["decode_speedup"])


@pytest.mark.parametrize("num_prompts", [3, 12])
def test_runs_over_other_prompts_are_omitted_and_listed(num_prompts):
    whole = runs([1.5, 1.5, 1.5])
    cut = run(4, replace(cell(1.1), num_prompts=num_prompts))
    result = history([cut, *runs([1.5], first=5), *whole], ["decode_speedup"])
    assert [point.run_id for point in result.series[0].points] == [
        *(r.run_id for r in whole),
        "run-05",
    ]
    (left,) = result.left_out
    assert (left.run_id, left.differences[0].name) == ("run-04", "prompts")
    kept = history([cut, *runs([1.5], first=5), *whole], ["decode_speedup"], allowed=["prompts"])
    assert len(kept.series[0].points) == 5


def drafted(day, value, weights, pairing="demo/draft"):
    """A run of K = 0 and of one drafter, whose weights have this hash."""
    target, _, drafter = pairing.partition("/")
    key = with_axes(KEY, pairing=pairing, target=target, drafter=drafter)
    base = replace(cell(1.0), key=with_axes(KEY, num_speculative_tokens=0))
    fingerprint = replace(HERE, drafters={pairing: weights})
    return run(day, base, replace(cell(value), key=key), fingerprint=fingerprint)


def test_a_series_ends_when_the_weights_of_its_drafter_are_replaced():
    past = [drafted(1, 1.5, "cc" * 32), drafted(2, 2.0, "dd" * 32), drafted(3, 2.1, "dd" * 32)]
    result = history(past, ["decode_speedup"])
    points = {s.key.draft.k: [point.run_id for point in s.points] for s in result.series}
    assert points == {0: ["run-01", "run-02", "run-03"], 4: ["run-02", "run-03"]}
    (line,) = left_out_lines(result)
    assert re.fullmatch("run-01 .*: demo/draft c{12}, .*demo/draft d{12}", line)
    kept = history(past, ["decode_speedup"], allowed=["drafter"])
    assert {len(s.points) for s in kept.series} == {3}


def test_unknown_weights_or_those_of_another_drafter_do_not_split_a_series():
    past = [
        drafted(1, 1.5, "cc" * 32),
        drafted(2, 0.9, "ee" * 32, pairing="demo/poor"),
        run(3, cell(1.6)),  # of another tool, which does not record it
        drafted(4, 1.7, "cc" * 32),
    ]
    result = history(past, ["decode_speedup"])
    assert result.left_out == ()
    (series,) = [series for series in result.series if series.key == KEY]
    assert [point.run_id for point in series.points] == ["run-01", "run-03", "run-04"]


def cut(day, value, **changed):
    return replace(run(day, replace(cell(value), **changed)), is_complete=False)


@pytest.mark.parametrize("num_prompts", [3, 8])
@pytest.mark.parametrize("day", [1, 4, 9])
def test_interrupted_runs_are_omitted_even_if_a_cell_is_complete(day, num_prompts):
    whole = [run for run in runs([1.5] * 8) if run.run_id != f"run-{day:02}"]
    result = history([*whole, cut(day, 1.1, num_prompts=num_prompts)], ["decode_speedup"])
    assert [point.run_id for point in result.series[0].points] == [run.run_id for run in whole]
    (left,) = result.left_out
    assert (left.run_id, left.differences[0].name) == (f"run-{day:02}", "interrupted")
    assert f"--resume run-{day:02}" in left_out_lines(result)[0]


def test_an_interrupted_run_is_not_the_reference_of_the_history():
    other = replace(HERE, hardware={"device": "cpu", "CPU": "a new one"})
    newest = replace(cut(9, 1.1), fingerprint=other)
    result = history([*runs(STEPPED[:8]), newest], ["decode_speedup"])
    assert len(result.series[0].points) == 8
    assert [difference.name for difference in result.left_out[0].differences] == [
        "hardware",
        "interrupted",
    ]


def test_interrupted_runs_are_included_in_a_history_if_allowed():
    mixed = [*runs([1.5, 1.5]), cut(3, 1.1)]
    assert len(history(mixed, ["decode_speedup"], allowed=["interrupted"]).series[0].points) == 3
    alone = history([cut(3, 1.1)], ["decode_speedup"])
    assert (alone.series, len(alone.left_out)) == ((), 1)


@pytest.mark.slow
def test_noise_gives_change_points_in_at_most_5_percent_of_series():
    """1,800 series determine a rate of 5% to 0.5%; docs/history.md and `false_alarms` state 5%."""
    assert SIGNIFICANCE == 0.05
    steps, trends, num_series = 0, 0, 200
    for num_runs in (8, 12, 20):
        for shape in ("normal", "heavy", "skewed"):
            rng = np.random.default_rng([num_runs, ord(shape[0])])
            for _ in range(num_series):
                analysis = analyze_series(noisy(rng, np.full(num_runs, 1.5), shape))
                steps += bool(analysis.steps)
                trends += analysis.trend is not None
    most = 0.05 + 3 * (0.05 * 0.95 / (9 * num_series)) ** 0.5
    assert steps / (9 * num_series) <= most
    assert trends / (9 * num_series) <= 0.05


def test_an_end_to_end_speedup_has_its_own_interval():
    from dataclasses import replace

    interval = Interval(estimate=1.2, low=1.15, high=1.25)
    both = replace(cell(1.2, metric="end_to_end_speedup"), speedup_end_to_end=interval)
    (series,) = history([run(1, both)], ["end_to_end_speedup"]).series
    assert (series.points[0].low, series.points[0].high) == (1.15, 1.25)


def test_the_history_reports_a_5_percent_false_alarm_rate():
    result = history(runs([1.5, 1.6] * 5), ["decode_speedup"])
    assert len(result.series) == 1
    assert re.search(r"of 1 series .*\b0\.1 ", result.false_alarms)
    assert history(runs(STEPPED[:4]), ["decode_speedup"]).false_alarms.startswith("no series has")


def test_runs_of_drifting_machines_are_not_exchangeable():
    """Negative control: the test does not hold for a random walk, and this shows."""
    rng = np.random.default_rng(0)
    walks = [1.5 + 0.02 * np.cumsum(rng.normal(size=20)) for _ in range(100)]
    analyses = [analyze_series(walk) for walk in walks]
    assert sum(bool(analysis.steps) or analysis.trend is not None for analysis in analyses) > 50


def test_a_step_before_a_larger_one_is_found():
    rng = np.random.default_rng(3)
    steps = analyze_series(noisy(rng, [1.0] * 10 + [1.15] * 10 + [1.8] * 10)).steps
    assert [step.run_index for step in steps] == [10, 20]
