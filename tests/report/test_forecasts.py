"""Forecasts against measurements in every format, from a run on the fake engine."""

import json
import math
import re
from dataclasses import replace

import pytest

from specbench.decide.comparisons import AdaptiveComparison
from specbench.forecast.forecast_check import CheckedForecast
from specbench.records import (
    AdaptiveBound,
    Auto,
    EngineCost,
    Fixed,
    Interval,
    Kind,
    Reason,
    SpeedupVerdict,
)
from specbench.report.answers import answer_lines
from specbench.report.document import Document, build_document
from specbench.report.document_json import to_json
from specbench.report.forecasts import (
    forecast_grid,
    forecast_legend,
    forecast_lines,
    forecast_reasons,
    forecast_text,
    forecast_verdict,
)
from specbench.report.html import to_html
from specbench.report.markdown import to_markdown
from specbench.stats.machine_noise import PARTS, MachineKind, assumed_noise
from tests.bench.fake_runs import SETTINGS, make_plan, measure
from tests.bench.fakes import FakeEngine
from tests.report.conftest import printed
from tests.report.test_json import VALIDATOR
from tests.settings.flat_settings import changed

FORECAST = changed(SETTINGS, forecast=True, num_speculative_tokens=(0, 1, 2, 4))
SIX = [f"prompt {i}" for i in range(6)]
VLLM = [
    EngineCost(
        source="costs.csv",
        engine="vllm 0.32.0",
        num_speculative_tokens=k,
        concurrency=1,
        cost=seconds,
        is_relative=False,
        mean_acceptance_length=2.9 if k else None,
        speedup=2.4 if k else None,
    )
    for k, seconds in ((0, 1.0), (2, 1.1))
]

ADAPTIVE = (
    Kind.ADAPTIVE_BOUND,
    Kind.ADAPTIVE_PAST,
    Kind.KEEP_K,
    Kind.ADAPTIVE_UNKNOWN,
    Kind.AUTO_REACHES,
)


def document_of(folder, imported=(), **changes) -> Document:
    plan = make_plan(folder, changed(FORECAST, **changes), SIX)
    return build_document(measure(plan, FakeEngine(), folder, costs=imported))


@pytest.fixture(scope="module")
def measured_here(tmp_path_factory) -> Document:
    return document_of(tmp_path_factory.mktemp("here"))


@pytest.fixture(scope="module")
def measured_there(tmp_path_factory) -> Document:
    folder = tmp_path_factory.mktemp("there")
    return document_of(folder, VLLM, costs=("costs.csv",), temperatures=(1.0,), num_repeats=1)


def test_the_forecast_table_has_a_row_per_k_with_both_values(measured_here):
    grid = forecast_grid(measured_here.forecasts)
    rows = {(row[1], row[2]): row for row in grid.rows}
    assert set(rows) == {(d, k) for d in ("good", "bad") for k in ("1", "2", "4")}
    # 40 tokens in 8 rounds of 1.4 steps.
    good = rows["good", "4"]
    assert good[3:5] == ("5.00", "5.00")
    assert good[5] == "3.57x [3.57, 3.57]"
    # All requests agree, but what is assumed of the machine's states remains.
    margin = assumed_noise(MachineKind.QUIET_CPU).of_parts([0.0] * PARTS).of_run.margin()
    low, high = (5 / 1.4 * math.exp(sign * margin) for sign in (-1, 1))
    assert good[6] == f"3.57x [{low:.2f}, {high:.2f}]"
    assert good[7:9] == ("+0.0%", "-0.0%") or good[7:9] == ("+0.0%", "+0.0%")
    assert good[9] == "1.40 ±0.0%"
    assert good[-1] == "forecast's choice"
    assert rows["good", "2"][4] == rows["good", "2"][6] == "-"
    assert [mark for mark in grid.marks if mark] == ["chosen"]


@pytest.mark.slow
def test_every_report_format_shows_forecasts_against_measurements(measured_here):
    assert "Forecast against measured" in printed(measured_here)
    for text in (to_markdown([measured_here]), to_html([measured_here])):
        assert "Forecast against measured" in text
        assert "forecast: K=4, 3.57x faster" in " ".join(text.split())


def test_the_forecast_table_fits_80_columns(measured_here):
    assert max(map(len, printed(measured_here).splitlines())) <= 80


def test_the_forecast_legend_covers_only_the_shown_columns(measured_here, measured_there):
    legend = forecast_legend(measured_here)
    assert [word for word, _ in legend.entries] == [
        *("AL", "forecast", "measured", "off", "round costs")
    ]
    assert legend.brief == {"AL", "forecast", "measured"}
    assert forecast_legend(measured_there).entries[-1][0] == "there"
    terminal = printed(measured_here)
    assert re.search("^forecast +made before", terminal, re.MULTILINE)
    assert "in steps of K=0" not in terminal


def test_a_forecast_line_states_the_chosen_k_and_the_time_saved(measured_here):
    good, bad = forecast_lines(measured_here)
    assert good.startswith("big/good on own.jsonl: forecast: K=4, 3.57x")
    assert bad.startswith("big/bad on own.jsonl: forecast: no speedup: K=1 measured 0.")
    (check, lost) = measured_here.forecasts
    found, *_, measured, saved = forecast_reasons(check)
    assert (found.kind, found.figures["k"]) == (Kind.FASTER, 4)
    assert measured == Kind.MEASURED_CHOSEN(ks=(1, 2, 4), chosen=(4,))
    assert (saved.kind, saved.figures["share"]) == (Kind.TIME_SAVED, check.forecast.share_saved)
    assert forecast_verdict(lost) is SpeedupVerdict.NO_SPEEDUP


def test_a_forecast_whose_interval_contains_one_is_undecided(measured_here):
    (good, _) = measured_here.forecasts
    open_ = Interval(estimate=1.1, low=0.9, high=1.3)
    points = [replace(p, speedup=p.speedup and open_) for p in good.forecast.points]
    unsure = replace(good, forecast=replace(good.forecast, points=tuple(points)))
    assert forecast_verdict(unsure) is SpeedupVerdict.UNDECIDED
    assert next(forecast_reasons(unsure)) == Kind.RANGE(k=4, mean_k=None, speedup=open_)


def test_a_forecast_without_an_interval_is_undecided(measured_here):
    (good, _) = measured_here.forecasts
    *points, last = good.forecast.points
    bare = [replace(p, speedup=p.speedup and replace(p.speedup, low=None)) for p in points]
    forecast = replace(good.forecast, points=(*bare, replace(last, speedup=None)))
    assert forecast_verdict(replace(good, forecast=forecast)) is SpeedupVerdict.UNDECIDED


def test_the_json_report_contains_every_forecast_point(measured_here, measured_there):
    for document in (measured_here, measured_there):
        text = json.dumps(to_json(document), allow_nan=False)
        VALIDATOR.validate(json.loads(text))
    forecast = to_json(measured_here)["forecasts"][0]
    by_k = {point["num_speculative_tokens"]: point for point in forecast["points"]}
    assert by_k[4]["measured"]["speedup"]["estimate"] == pytest.approx(40 / 11.2)
    assert by_k[1]["measured"] is None
    assert 0 < forecast["share_saved"] < 1
    assert forecast["verdict"] == "faster"
    kinds = ["faster", "adaptive_bound", "adaptive_past", "keep_k", "measured_chosen", "time_saved"]
    assert [reason["kind"] for reason in forecast["reasons"]] == kinds


def test_forecasts_from_imported_step_times_name_their_source(measured_there):
    whose = "vllm 0.32.0 (costs.csv), which drafts greedily"
    (answer,) = answer_lines(measured_there)
    # 40 tokens in 14 rounds of 1.1 steps.
    expected = (
        rf"own\.jsonl: .*big/good, K=2, 2\.60x faster \[2\.60, 2\.60\]; .*{re.escape(whose)}$"
    )
    assert re.match(expected, answer)
    assert all(whose in line for line in forecast_lines(measured_there))
    grid = forecast_grid(measured_there.forecasts)
    assert whose in grid.title
    came = dict(zip(grid.headers, grid.rows[0], strict=True))
    assert (came["AL there"], came["speedup there"]) == ("2.90", "2.40x")
    assert "2.90" in grid.rows[0]
    assert whose in to_markdown([measured_there])
    assert whose in to_html([measured_there])


def test_a_run_without_a_forecast_has_no_such_section(cpu_document):
    assert forecast_legend(cpu_document) is None
    assert forecast_lines(cpu_document) == []
    assert "Forecast against" not in to_markdown([cpu_document])
    assert to_json(cpu_document)["forecasts"] == []


def test_an_approximate_forecast_is_marked_with_what_it_would_measure(measured_here):
    (good, _) = measured_here.forecasts
    assert Kind.APPROXIMATE() not in forecast_reasons(good)
    rough = replace(good, forecast=replace(good.forecast, is_exact=False))
    assert Kind.APPROXIMATE() in forecast_reasons(rough)
    every = replace(good, measured={**good.measured, 1: good.measured[4]})
    assert Kind.WOULD_MEASURE(ks=(1, 2, 4), chosen=(4,)) in forecast_reasons(every)


def test_a_forecast_that_saves_nothing_states_the_extra_time(measured_here):
    (good, _) = measured_here.forecasts
    costly = replace(good, forecast=replace(good.forecast, trace_s=2 * good.forecast.sweep_s))
    *_, lost = forecast_reasons(costly)
    assert lost.kind is Kind.TIME_LOST
    assert lost.figures["share"] > 0


def adaptive_reasons(check: CheckedForecast) -> list[Reason]:
    return [r for r in forecast_reasons(check) if r.kind in ADAPTIVE]


def test_a_k_is_to_be_kept_only_where_hindsight_gains_little(measured_here):
    (good, _) = measured_here.forecasts
    gains = (
        Interval(estimate=1.03, low=1.01, high=1.05),
        Interval(estimate=1.09, low=1.07, high=1.12),
    )
    for hindsight in gains:
        bound = AdaptiveBound(hindsight=hindsight, past=Interval(estimate=1.0, low=0.99, high=1.01))
        check = replace(good, forecast=replace(good.forecast, adaptive=bound))
        keeps = [Kind.KEEP_K(k=4)] if hindsight.high <= 1.05 else []
        assert adaptive_reasons(check) == [
            Kind.ADAPTIVE_BOUND(
                ks=tuple(p.num_speculative_tokens for p in good.forecast.points),
                hindsight=hindsight,
                k=4,
            ),
            Kind.ADAPTIVE_PAST(past=bound.past),
            *keeps,
        ]
    assert "9% [7, 12] over K=4" in forecast_text(check)
    assert "reaches 0% [-1, 1]" in forecast_text(check)


def test_a_gain_that_cannot_be_bounded_is_unknown(measured_here):
    (good, _) = measured_here.forecasts
    without = replace(good.forecast, adaptive=None)
    rough = replace(good, forecast=replace(without, is_exact=False))
    assert adaptive_reasons(rough) == [Kind.ADAPTIVE_UNKNOWN(because=(Kind.DRAFTS_BY_ROUNDS(),))]
    imported = replace(good, forecast=replace(without, num_prompts=0))
    assert adaptive_reasons(imported) == [Kind.ADAPTIVE_UNKNOWN(because=(Kind.NO_TRACES(),))]


def test_the_share_of_k_auto_is_that_of_the_gain_in_hindsight(measured_here):
    (good, _) = measured_here.forecasts
    bound = AdaptiveBound(hindsight=Interval(estimate=1.2, low=1.1, high=1.3), past=None)
    forecast = replace(good.forecast, adaptive=bound)
    for speed, low, share in ((1.05, 1.01, 0.25), (1.05, 0.95, None), (0.98, 0.97, None)):
        auto = AdaptiveComparison(
            adaptive=replace(forecast.key, draft=replace(forecast.key.draft, length=Auto(4))),
            best_fixed=forecast.key,
            decode=Interval(estimate=speed, low=low, high=1.1),
            minimum_detectable_effect=None,
            mean_num_speculative_tokens=None,
            end_to_end=None,
            num_units=3,
            is_confirmed=True,
            valid=True,
        )
        *_, reason = adaptive_reasons(replace(good, forecast=forecast, auto=auto))
        assert (reason.kind is Kind.AUTO_REACHES) == (share is not None)
        assert reason.figures.get("share") == (share and pytest.approx(share))
    # Over another K than that of the forecast, it is not a share of that gain.
    other = replace(forecast.key, draft=replace(forecast.key.draft, length=Fixed(2)))
    of_other = replace(auto, best_fixed=other, decode=Interval(estimate=1.05, low=1.01, high=1.1))
    reasons = adaptive_reasons(replace(good, forecast=forecast, auto=of_other))
    assert Kind.AUTO_REACHES not in {reason.kind for reason in reasons}


def test_unmeasured_cells_are_not_reported_as_measured(measured_here):
    (good, _) = measured_here.forecasts
    cut = replace(good, measured={})
    assert Kind.CHOSE_TO_MEASURE(ks=(1, 2, 4), chosen=(4,)) in forecast_reasons(cut)
    passed_over = replace(cut, forecast=replace(good.forecast, to_measure=()))
    assert Kind.FORECAST_LOWER() in forecast_reasons(passed_over)
