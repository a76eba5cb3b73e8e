"""The bound of adaptive K against all choices of K, and on texts whose gain follows by hand."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from specbench.forecast.adaptive_bound import cheapest, with_bound
from specbench.forecast.cost_curve import CostCurve
from specbench.forecast.forecast import Steps, forecast, replay_one, steps
from specbench.records import AdaptiveBound, ForecastRecord, Interval, TraceRecord
from tests.decide.cells import draft
from tests.forecast.traces import curve, right, trace, wrong

COSTS = {0: 1.0, 1: 1.2, 2: 1.5, 3: 2.0, 4: 3.0}
PROMPTS = "abcdef"


def forecast_of(traces: Sequence[TraceRecord], costs: CostCurve) -> ForecastRecord:
    deepest = max(costs.costs)
    record = forecast(draft(deepest), traces, costs, range(deepest + 1))
    return with_bound(record, traces, costs)


def bound_of(traces: Sequence[TraceRecord], costs: CostCurve) -> AdaptiveBound:
    bound = forecast_of(traces, costs).adaptive
    assert bound is not None
    return bound


def least_cost(at_k: Sequence[Steps], costs: Sequence[float]) -> float:
    """The least over every sequence of K, followed one by one without drawn acceptance."""

    @cache
    def from_start(start: int) -> float:
        if start == len(at_k[0].drafted_S):
            return 0.0
        following = [int(each.next_SA[start, each.accepted_SA[start].argmax()]) for each in at_k]
        return min(c + from_start(s) for c, s in zip(costs, following, strict=True))

    return from_start(0)


@pytest.mark.parametrize("seed", range(5))
def test_no_sequence_of_k_costs_less_than_the_schedule(seed: int):
    text = trace("a", np.random.default_rng(seed).random(30) < 0.6)
    at_k = [steps(text, k) for k in COSTS]
    schedule = cheapest(at_k, np.array([*COSTS.values()]))
    assert schedule.cost == pytest.approx(least_cost(at_k, [*COSTS.values()]))
    assert schedule.rounds_K @ [*COSTS.values()] == pytest.approx(schedule.cost)


def test_the_schedule_walks_the_text_that_another_k_shifts():
    """Right, wrong, right, right: rounds of 1, 2 and 0 draft tokens are the cheapest."""
    at_k = [steps(trace("a", [True, False, True, True, False, False]), k) for k in COSTS]
    schedule = cheapest(at_k, np.array([*COSTS.values()]))
    assert schedule.choice_S[0] == 1
    assert schedule.choice_S[2] == 2
    assert schedule.cost == pytest.approx(1.2 + 1.5 + 1.0)


def test_drawn_acceptance_is_bounded_on_average():
    """At every fixed K the expected rounds cost at least as much; one start more gives its own."""
    text = trace("a", np.random.default_rng(3).random(40))
    costs = np.array([*COSTS.values()])
    schedule = cheapest([steps(text, k) for k in COSTS], costs)
    for k, cost in COSTS.items():
        assert replay_one(text, k).num_rounds * cost >= schedule.cost
    last = trace("a", [0.5, 0.0])
    # K = 1 emits both tokens in half of the rounds: 1.2 + 0.5 x 1 < 2.
    assert cheapest([steps(last, k) for k in (0, 1)], costs[:2]).cost == pytest.approx(1.7)


def test_independent_acceptance_gains_a_third_in_hindsight_and_nothing_from_the_past():
    """An accepted token costs a draft, 0.1; another one a step: 0.37 per token, against 1.4 steps
    for the (1 - 0.7^5) / 0.3 tokens of K = 4."""
    rng = np.random.default_rng(1)
    traces = [trace(f"p{i}", rng.random(200) < 0.7, depth=16) for i in range(20)]
    record = forecast_of(traces, curve({k: 1 + 0.1 * k for k in range(17)}))
    assert record.best == 4
    assert record.adaptive is not None
    expected = 1.4 / ((1 - 0.7**5) / 0.3) / (0.7 * 0.1 + 0.3)
    assert record.adaptive.hindsight.estimate == pytest.approx(expected, abs=0.03)
    assert not record.adaptive.is_small
    past = record.adaptive.past
    assert past is not None
    assert past.estimate == pytest.approx(1, abs=0.01)
    assert past.low is not None
    assert past.low <= 1


def test_rounds_drawn_under_a_policy_are_averaged():
    """A round at K = 1 costs a step, and keeps half of the drafts whatever was before."""
    traces = [trace(f"p{i}", [0.5] * 8) for i in range(40)]
    past = bound_of(traces, curve({0: 1.0, 1: 1.0})).past
    assert past is not None
    assert past.estimate == pytest.approx(1, abs=0.03)


def test_the_past_of_alternating_prompts_tells_their_k():
    rng = np.random.default_rng(2)
    traces = [trace(f"p{i}", rng.random(200) < (0.9, 0.2)[i % 2], depth=8) for i in range(20)]
    bound = bound_of(traces, curve({k: 1 + 0.15 * k for k in range(9)}))
    assert bound.past is not None
    assert bound.past.low is not None
    assert bound.past.low > 1.05
    assert bound.past.estimate < bound.hindsight.estimate


def test_a_policy_cannot_learn_from_the_prompt_that_it_is_valued_on():
    """One prompt of wrong drafts among right ones: the others teach to draft, as at K = 4."""
    costs = curve({0: 1.0, 4: 1.5})
    traces = [right(p, 101) for p in PROMPTS]
    bound = bound_of([*traces[:2], wrong("w", 101), *traces[2:]], costs)
    assert bound.past is not None
    assert bound.past.estimate == pytest.approx(1)
    assert bound.hindsight.estimate == pytest.approx((6 * 30 + 150) / (6 * 30 + 100))


@pytest.mark.parametrize(("num_wrong", "is_clear"), [(6, False), (40, True)])
def test_only_a_policy_that_is_clearly_better_replaces_the_best_fixed_k(num_wrong, is_clear):
    """After 200 right drafts, a policy may save 0.2 steps per wrong one: 0.6% or 4% in all."""
    kept = [True] * 200 + [False] * num_wrong
    bound = bound_of([trace(f"p{i}", kept) for i in range(12)], curve({0: 1.0, 1: 1.2}))
    assert bound.hindsight.estimate > 1
    assert bound.past is not None
    if is_clear:
        assert 1.02 < bound.past.estimate < bound.hindsight.estimate
    else:
        assert bound.past.estimate == pytest.approx(1)


def test_drafts_that_are_always_right_leave_nothing_to_adapt():
    record = forecast_of([right(p) for p in PROMPTS], curve(COSTS))
    nothing = Interval(estimate=pytest.approx(1), low=pytest.approx(1), high=pytest.approx(1))
    assert record.adaptive == AdaptiveBound(hindsight=nothing, past=nothing)
    assert record.adaptive.is_small


def test_a_bound_without_an_interval_is_not_called_small():
    bound = bound_of([right(p) for p in "abc"], curve(COSTS))
    assert bound.hindsight.high is None
    assert not bound.is_small


def test_the_error_of_the_costs_widens_the_bound():
    rng = np.random.default_rng(4)
    traces = [trace(f"p{i}", rng.random(60) < 0.6) for i in range(8)]
    exact = bound_of(traces, curve(COSTS)).hindsight
    noise = rng.normal(1, 0.2, (len(COSTS), 6))
    costs = {
        k: tuple(cost * each / each.mean())
        for (k, cost), each in zip(COSTS.items(), noise, strict=True)
    }
    shaky = bound_of(traces, CostCurve(costs=costs)).hindsight
    assert shaky.estimate == pytest.approx(exact.estimate)
    assert shaky.low >= 1
    assert shaky.high - shaky.low > 1.2 * (exact.high - exact.low)
    there = bound_of(traces, CostCurve(costs=costs, source="costs.csv")).hindsight
    assert there.high - there.low > 1.2 * (exact.high - exact.low)


def test_the_error_of_the_costs_is_known_without_that_of_a_k_that_is_not_the_fixed_one():
    """K = 0 is one step by definition, if costs are in steps."""
    rng = np.random.default_rng(4)
    traces = [trace(f"p{i}", rng.random(60) < 0.6) for i in range(8)]
    factors = (0.8, 1.2, 1.0, 0.9, 1.1)
    often = {k: tuple(c * each for each in factors) if k else (c,) for k, c in COSTS.items()}
    once = {k: (c,) for k, c in COSTS.items()}
    wide, narrow = (
        bound_of(traces, CostCurve(costs=costs, source="costs.csv")).hindsight
        for costs in (often, once)
    )
    assert wide.high - wide.low > 1.2 * (narrow.high - narrow.low)


def test_costs_that_fall_are_replaced_by_their_mean():
    rising = curve({0: 1.0, 1: 1.4, 2: 1.1, 3: 1.3, 4: 1.2}).rising(range(5))
    assert rising == pytest.approx(
        [1, (1.4 * 1.1) ** 0.5, (1.4 * 1.1) ** 0.5, *2 * [(1.3 * 1.2) ** 0.5]]
    )


def test_a_tree_is_bounded_by_its_depths():
    traces = [right(p, depth=d, is_chain=False) for p in PROMPTS for d in (2, 3)]
    record = forecast_of(traces, curve(COSTS))
    assert record.best == 2
    assert record.adaptive is not None
    assert record.adaptive.hindsight.estimate >= 1


def test_the_siblings_of_a_tree_are_no_rejected_tokens():
    """What a policy remembers of 2 accepted tokens is the same for 2 and for 8 nodes."""
    rng = np.random.default_rng(2)
    chains = [
        trace(f"p{i}", rng.random(200) < (0.9, 0.3)[i % 2], depth=2, is_chain=False)
        for i in range(10)
    ]
    trees = [replace(t, num_drafted=tuple(4 * n for n in t.num_drafted)) for t in chains]
    costs = curve({0: 1.0, 2: 1.5})
    assert bound_of(trees, costs) == bound_of(chains, costs)


def test_a_text_that_lacks_a_depth_is_left_out():
    traces = [right(p, depth=d, is_chain=False) for p in PROMPTS for d in (2, 3)]
    wrong_2 = wrong("w", depth=2, is_chain=False)
    assert bound_of([*traces, wrong_2], curve(COSTS)) == bound_of(traces, curve(COSTS))


def test_an_approximate_replay_has_no_bound():
    assert forecast_of([right(p, is_exact=False) for p in PROMPTS], curve(COSTS)).adaptive is None


def test_one_prompt_cannot_teach_a_policy():
    bound = bound_of([right("a")], curve(COSTS))
    assert bound.past is None
