"""Ranks by measurements, else by forecasts; only promising drafters are measured."""

import math
from dataclasses import replace

import pytest

from specbench.decide.rank import Gain, RankedDrafter, answer_of, are_distinct, rank, shortlist
from specbench.decide.recommend import choose, decide
from specbench.metrics.cell import CellData, against
from specbench.metrics.pairs import paired_decode
from specbench.metrics.summary import log_speedup, summarize
from specbench.records import (
    CellSummary,
    Decision,
    Fixed,
    ForecastPoint,
    ForecastRecord,
    Interval,
    Kind,
    SpeedupVerdict,
)
from tests.cell_keys import with_axes
from tests.decide.cells import BASE, draft
from tests.decide.cells import cell as measured_cell
from tests.decide.conftest import summary


def interval(speedup: float) -> Interval:
    return Interval(estimate=speedup, low=speedup - 0.02, high=speedup + 0.02)


def cell(drafter: str, k: int, speedup: float, workload: str = "code") -> CellSummary:
    made = summary(k, speedup - 0.02, speedup, speedup + 0.02, workload=workload)
    key = with_axes(made.key, drafter=drafter, pairing=f"demo/{drafter}")
    return replace(made, key=key, metrics={"mean_acceptance_length": 2.5})


def decided(drafter: str, k: int, speedup: float, workload: str = "code") -> Decision:
    choice = choose([cell(drafter, k, speedup, workload)])
    return decide(choice)


def forecast(
    drafter: str, speedups: dict[int, float], workload: str = "code", best: int | None = None
) -> ForecastRecord:
    fastest = max(speedups, key=lambda k: speedups[k])
    points = [
        ForecastPoint(
            num_speculative_tokens=k,
            mean_acceptance_length=1 + k / 2,
            acceptance_rate_per_position=(),
            cost=1.0,
            cost_error=None,
            round_s=None,
            speedup=interval(speedup) if k else None,
        )
        for k, speedup in {0: 1.0, **speedups}.items()
    ]
    return ForecastRecord(
        key=cell(drafter, max(speedups), 1.0, workload).key,
        points=tuple(points),
        best=best if best is not None else fastest if speedups[fastest] > 1 else 0,
        to_measure=(fastest,),
        num_prompts=8,
        context=100,
        is_exact=True,
    )


def places(ranked) -> list[str]:
    return [drafter.drafter for drafter in ranked]


def test_measured_and_forecast_drafters_are_ranked_together_by_speed():
    ranked = rank(
        [decided("slow", 2, 1.2), decided("fast", 4, 1.9)],
        [],
        [forecast("slow", {2: 1.2}), forecast("fast", {4: 1.8}), forecast("middle", {3: 1.5})],
    )
    assert places(ranked) == ["fast", "middle", "slow"]
    assert [drafter.is_measured for drafter in ranked] == [True, False, True]
    assert [drafter.best.num_speculative_tokens for drafter in ranked] == [4, 3, 2]


def test_a_forecast_counts_as_a_measurement_does_by_its_interval():
    wide = Interval(estimate=1.1, low=1.0, high=1.21)
    weak = forecast("poor", {1: 1.1})
    points = tuple(replace(p, speedup=p.speedup and wide) for p in weak.points)
    shown = decided("ngram", 1, 1.17)
    wider = Interval(estimate=1.17, low=0.9, high=1.4)
    unsure = replace(shown, speedup=wider, draft=replace(shown.draft, length=Fixed(0)))
    ranked = rank([unsure], [], [replace(weak, points=points), forecast("ngram", {1: 1.3})])
    assert places(ranked) == ["ngram", "poor"]
    assert [drafter.best.num_speculative_tokens for drafter in ranked] == [0, 0]
    assert [drafter.speedup for drafter in ranked] == [1.0, 1.0]
    shown = rank([unsure], [], [weak, forecast("ngram", {1: 1.3})])
    assert places(shown) == ["poor", "ngram"]  # its interval is above 1


def test_a_measurement_takes_precedence_over_a_forecast():
    (best,) = rank([decided("draft", 4, 1.5)], [cell("draft", 4, 1.5)], [forecast("draft", {4: 2})])
    (gain,) = best.gains.values()
    assert (gain.basis, gain.speedup) == ("measured", interval(1.5))
    assert gain.mean_acceptance_length == 2.5


@pytest.mark.parametrize("forecasts", [[], [forecast("lost", {4: 0.9}), forecast("won", {4: 1.4})]])
def test_a_win_that_was_not_confirmed_leaves_the_answer_open(forecasts):
    won = decide(choose([cell("won", 2, 1.3), cell("won", 4, 1.5)]))
    assert won.speedup is None
    lost = decided("lost", 4, 0.8)
    answer = answer_of(rank([lost, won], [], forecasts))
    assert answer == (SpeedupVerdict.UNDECIDED, (Kind.NO_DRAFTER_SHOWN(),))


@pytest.mark.parametrize(
    ("lacks_drafters", "expected"),
    [
        (False, (SpeedupVerdict.NO_SPEEDUP, (Kind.NO_DRAFTER_HELPS(),))),
        (True, (SpeedupVerdict.UNDECIDED, (Kind.NO_DRAFTER_SHOWN(),))),
    ],
)
def test_a_drafter_that_was_not_measured_is_no_reason_against_all(lacks_drafters, expected):
    ranked = rank([decided("lost", 4, 0.8)], [], [])
    assert answer_of(ranked, lacks_drafters=lacks_drafters) == expected


def test_a_drafter_of_which_whole_requests_are_undecided_is_open_by_those():
    fast = cell("draft", 4, 1.5)
    wide = Interval(estimate=1.1, low=0.9, high=1.3)
    decision = decide(choose([replace(fast, speedup_end_to_end=wide)]))
    assert (decision.verdict, decision.speedup) == (SpeedupVerdict.UNDECIDED, fast.speedup)
    _, (first, *_) = answer_of(rank([decision], [], []))
    assert first == Kind.OPEN_DRAFTER(drafter="draft", k=4, speedup=wide)


def test_drafters_without_a_speedup_are_ranked_by_their_best_forecast():
    ranked = rank([], [], [forecast("awful", {1: 0.5}), forecast("bad", {1: 0.9, 2: 0.8})])
    assert places(ranked) == ["bad", "awful"]
    assert [drafter.best.num_speculative_tokens for drafter in ranked] == [0, 0]
    assert [drafter.speedup for drafter in ranked] == [1.0, 1.0]
    assert ranked[0].potential == pytest.approx(0.9)


def test_over_several_workloads_the_geometric_mean_counts():
    ranked = rank(
        [],
        [],
        [
            forecast("spread", {4: 4.0}, "code"),
            forecast("spread", {4: 0.5}, "chat"),  # K = 0 is used there, which costs nothing
            forecast("even", {4: 1.9}, "code"),
            forecast("even", {4: 1.9}, "chat"),
        ],
    )
    assert places(ranked) == ["spread", "even"]
    assert ranked[0].speedup == pytest.approx(2.0)
    assert ranked[1].speedup == pytest.approx(1.9)


def test_a_joint_interval_has_bounds_only_if_every_workload_has():
    lone = replace(
        cell("draft", 4, 1.5, "chat"), speedup=Interval(estimate=1.5, low=None, high=None)
    )
    (drafter,) = rank([decided("draft", 4, 1.5), decide(choose([lone]))], [], [])
    assert drafter.interval == Interval(estimate=pytest.approx(1.5), low=None, high=None)


@pytest.mark.parametrize(("other", "apart"), [(1.50, True), (1.52, False)])
def test_drafters_are_distinguished_in_any_order(other, apart):
    pair = interval(1.55), interval(other)
    assert are_distinct(*pair) is are_distinct(*pair[::-1]) is apart


def test_the_gain_of_a_slower_k_counts_as_1():
    slower = Gain(4, interval(0.9), 2.5, "measured", SpeedupVerdict.NO_SPEEDUP, Fixed(4))
    assert (slower.value, slower._replace(speedup=interval(1.2)).value) == (1.0, 1.2)


def test_only_the_best_few_of_every_setting_are_measured():
    forecasts = [
        forecast("a", {2: 1.5}),
        forecast("b", {2: 1.2}),
        forecast("c", {2: 1.9}),
        forecast("a", {2: 1.1}, "chat"),
        forecast("b", {2: 1.4}, "chat"),
    ]
    kept = [
        (r.key.draft.drafter, r.key.condition.workload)
        for r in shortlist(forecasts, [], 1)
        if r.to_measure
    ]
    assert kept == [("c", "code"), ("b", "chat")]


def test_earlier_forecasts_take_part_in_the_shortlist_unchanged():
    known = forecast("better", {2: 3.0})
    (made,) = shortlist([forecast("late", {2: 1.5})], [known], 1)
    assert made.to_measure == ()
    assert known.to_measure == (2,)


def test_every_forecast_is_measured_without_a_limit():
    forecasts = [forecast("a", {2: 1.5}), forecast("b", {2: 0.5})]
    assert shortlist(forecasts, [], None) == tuple(forecasts)


UNEVEN = [0.4, 1.5, 0.7, 2.1, 0.9, 1.2]  # seconds of prompts that gain much or little


def measured(workload: str = "code", **seconds: list[float]) -> list[CellData]:
    """Cells of K = 4 of drafters, with their K = 0 in the same blocks."""
    plain = measured_cell(BASE, [6.0] * 6)
    keys = {
        name: with_axes(draft(4), drafter=name, pairing=f"demo/{name}", workload=workload)
        for name in seconds
    }
    return [against(measured_cell(keys[name], s), plain) for name, s in seconds.items()]


def ranked_by(cells: list[CellData]) -> tuple[RankedDrafter, ...]:
    summaries = summarize(cells)
    decisions = [decide(choose([summary])) for summary in summaries]
    return rank(decisions, summaries, [], cells)


def test_a_drafter_is_beaten_on_the_same_prompts_although_intervals_overlap():
    cells = measured(slow=[1.25 * s for s in UNEVEN], fast=UNEVEN)
    best, other = ranked_by(cells)
    assert (best.drafter, best.behind, other.drafter) == ("fast", None, "slow")
    assert not are_distinct(best.interval, other.interval)
    assert other.behind.estimate == pytest.approx(1.25)
    assert 1.1 < other.behind.low < 1.25
    _, reasons = answer_of((best, other))
    assert Kind.RIVAL not in {reason.kind for reason in reasons}


def test_a_drafter_that_is_as_fast_on_some_prompts_stays_a_rival():
    factors = [1.3, 0.8, 1.2, 0.9, 1.3, 0.85]
    cells = measured(slow=[f * s for f, s in zip(factors, UNEVEN, strict=True)], fast=UNEVEN)
    best, other = ranked_by(cells)
    assert other.behind.low < 1 < other.behind.high
    _, reasons = answer_of((best, other))
    assert Kind.RIVAL in {reason.kind for reason in reasons}


def test_drafters_of_different_blocks_are_compared_by_their_intervals():
    cells = [*measured(fast=UNEVEN), *measured(slow=[2.0 * s for s in UNEVEN])]
    slower = replace(cells[1], baseline=cells[1].baseline[:5])
    assert ranked_by([cells[0], slower])[1].behind is None


def test_settings_share_the_states_of_the_machine_and_not_their_prompts():
    steady, drifting = [1.25, 1.2, 1.3] * 2, [1.1, 1.2, 1.5, 1.6, 1.1, 1.3]
    cells = [
        cell
        for name, factors in (("code", steady), ("chat", drifting))
        for cell in measured(
            name, fast=UNEVEN, slow=[f * s for f, s in zip(factors, UNEVEN, strict=True)]
        )
    ]
    _, other = ranked_by(cells)
    both = [against(cells[i], cells[i + 1]) for i in (0, 2)]
    ratios = [log_speedup(cell, paired_decode(cell)) for cell in both]
    machine = max(ratio.machine.of_run.standard_error for ratio in ratios)
    halves = [ratio.prompts.standard_error / 2 for ratio in ratios]
    assert other.behind.estimate == pytest.approx(math.exp(sum(r.log for r in ratios) / 2))
    margin = math.log(other.behind.high / other.behind.estimate)
    assert 2 < margin / math.hypot(*halves, machine) < 2.8  # quantiles of Student's t
    least = min(ratio.machine.of_run.standard_error for ratio in ratios)
    assert margin / math.hypot(*halves, least) > 2.8
