"""Forecast curves worked out by hand: 12 tokens after the first, steps of 0.1 s."""

import math
from dataclasses import replace

import pytest

from specbench.forecast.cost_curve import CostCurve, measured_here
from specbench.forecast.forecast import (
    INEXACT,
    Effort,
    choose,
    forecast,
    middle_context,
    replayed,
)
from specbench.records import ForecastRecord, Interval, RoundCost
from tests.cell_keys import with_axes
from tests.decide.cells import draft
from tests.forecast.traces import curve, right, trace, wrong

KEY = draft(4)
STEP_S = 0.1
COSTS = {0: STEP_S, 1: 0.12, 2: 0.15, 3: 0.20, 4: 0.30}
CLEAR = {**COSTS, 3: 0.21}  # K = 2 is 5% faster than K = 3, with COSTS as fast
PROMPTS = "abcdef"


def speedups(record: ForecastRecord) -> dict[int, float]:
    return {p.num_speculative_tokens: p.speedup.estimate for p in record.points if p.speedup}


def test_right_drafts_gain_their_tokens_over_the_cost_of_a_round():
    record = forecast(KEY, [right(p) for p in PROMPTS], curve(COSTS), range(5))
    # 12 tokens take 6, 4, 3 and, as the budget cuts the last of them, 3 rounds of up to 5.
    expected = {1: 2 / 1.2, 2: 3 / 1.5, 3: 4 / 2.0, 4: 4 / 3.0}
    assert speedups(record) == pytest.approx(expected)
    lengths = [p.mean_acceptance_length for p in record.points]
    assert lengths == pytest.approx([1, 2, 3, 4, 4])
    assert [p.cost for p in record.points] == pytest.approx([1, 1.2, 1.5, 2, 3])
    assert [p.round_s for p in record.points] == pytest.approx(list(COSTS.values()))


def test_a_forecast_of_wrong_drafts_is_slower_than_k_0():
    record = forecast(KEY, [wrong(p) for p in PROMPTS], curve(COSTS), range(5))
    assert speedups(record) == pytest.approx({k: STEP_S / COSTS[k] for k in (1, 2, 3, 4)})
    assert record.best == 0
    assert record.to_measure == (1,)  # the best K is measured anyway: it may hurt


def test_prompts_are_pooled_by_their_rounds():
    """Six prompts of 6 rounds at K = 1, six of 12: 144 tokens in 108 rounds."""
    traces = [right(f"r{i}") for i in range(6)] + [wrong(f"w{i}") for i in range(6)]
    record = forecast(KEY, traces, curve({0: STEP_S, 1: STEP_S}), (1,))
    assert speedups(record)[1] == pytest.approx(144 / 108)
    assert record.num_prompts == 12
    assert record.points[1].speedup.low < 144 / 108 < record.points[1].speedup.high


def test_turns_of_a_prompt_are_one_unit():
    traces = [right("a"), wrong("a", turn=1), right("b")]
    rounds = replayed(traces, 1)
    assert rounds is not None
    assert rounds.num_rounds.tolist() == [6 + 12, 6]
    assert rounds.num_emitted.tolist() == [24, 12]


def test_fewer_than_five_prompts_give_no_interval():
    record = forecast(KEY, [right(p) for p in "abcd"], curve(COSTS), range(5))
    assert all(p.speedup.low is p.speedup.high is None for p in record.points if p.speedup)


def test_equal_prompts_and_costs_give_an_interval_of_zero_width():
    record = forecast(KEY, [right(p) for p in PROMPTS], curve(COSTS), range(5))
    speedup = record.points[2].speedup
    assert speedup == Interval(
        estimate=pytest.approx(2), low=pytest.approx(2), high=pytest.approx(2)
    )


def test_the_forecast_interval_includes_the_cost_error():
    shaky = CostCurve(costs={0: (0.1,) * 6, 2: (0.1, 0.2, 0.15, 0.15, 0.12, 0.18)})
    record = forecast(KEY, [right(p) for p in PROMPTS], shaky, (2,))
    point = record.points[1]
    assert point.cost_error is not None
    assert point.cost_error > 0.01
    assert point.speedup.low < point.speedup.estimate < point.speedup.high


@pytest.mark.parametrize("repeated", [0, 2])
def test_the_forecast_interval_includes_the_one_cost_error_that_is_known(repeated):
    costs = {0: (0.1,), 2: (0.15,), repeated: (0.1, 0.2, 0.15, 0.15, 0.12, 0.18)}
    record = forecast(
        KEY, [right(p) for p in PROMPTS], CostCurve(costs=costs, source="costs.csv"), (2,)
    )
    point = record.points[1]
    assert (point.cost_error is None) == (repeated == 0)
    assert point.speedup.high / point.speedup.low > 1.1


def test_a_k_without_traces_or_costs_is_not_forecast():
    shallow = [right(p, depth=2) for p in PROMPTS]
    record = forecast(KEY, shallow, curve({0: 0.1, 1: 0.1, 3: 0.1}), range(5))
    assert [p.num_speculative_tokens for p in record.points] == [0, 1]
    with pytest.raises(ValueError, match="no K > 0"):
        forecast(KEY, shallow, curve({0: 0.1, 3: 0.1}), range(5))


def test_a_tree_is_forecast_at_its_depth_and_counted_once_at_k_0():
    traces = [right(p, depth=d, is_chain=False) for p in PROMPTS for d in (2, 3)]
    record = forecast(KEY, traces, curve(COSTS), range(5))
    assert [p.num_speculative_tokens for p in record.points] == [0, 2, 3]
    rounds = replayed(traces, 0)
    assert rounds is not None
    assert rounds.num_rounds.tolist() == [12] * 6


def test_with_equal_forecasts_the_smaller_k_is_best():
    record = forecast(KEY, [right(p) for p in PROMPTS], curve(COSTS), range(5))
    assert record.best == 2  # 2.0x like K = 3


def test_a_k_forecast_as_slightly_faster_is_not_measured():
    record = forecast(KEY, [right(p) for p in PROMPTS], curve(CLEAR), range(5))
    assert record.to_measure == (2,)


def test_two_equal_forecasts_are_both_measured():
    """Costs are of all workloads together: a workload's own could put either first."""
    record = forecast(KEY, [right(p) for p in PROMPTS], curve(COSTS), range(5))
    assert record.to_measure == (2, 3)


def test_a_k_within_the_error_of_its_cost_is_measured():
    costs = {k: (cost,) * 6 for k, cost in CLEAR.items()}
    shaky = CostCurve(costs={**costs, 3: (0.21, 0.2, 0.22, 0.215, 0.205, 0.19)})
    record = forecast(KEY, [right(p) for p in PROMPTS], shaky, range(5))
    assert set(record.to_measure) == {2, 3}


def test_the_spread_over_prompts_suggests_no_measurement():
    """Measuring the same prompts again would show the same rounds."""
    traces = [right("a"), wrong("b"), right("c", 40), wrong("d", 30), right("e"), right("f")]
    record = forecast(KEY, traces, curve(COSTS), range(5))
    assert record.points[2].speedup.high / record.points[2].speedup.low > 1.5
    assert len(record.to_measure) == 1


def test_close_k_values_of_an_approximate_replay_are_measured():
    traces = [right(p, is_exact=False) for p in PROMPTS]
    record = forecast(KEY, traces, curve(COSTS), range(5))
    assert not record.is_exact
    assert set(record.to_measure) == {2, 3}


def test_an_approximate_replay_has_an_error_though_prompts_agree():
    traces = [right(p, is_exact=False) for p in PROMPTS]
    best = forecast(KEY, traces, curve(COSTS), range(5)).points[2].speedup
    assert best.estimate == pytest.approx(2.0)
    for end, sign in ((best.low, -1), (best.high, 1)):
        assert end == pytest.approx(2.0 * math.exp(sign * 1.96 * INEXACT), rel=1e-3)


def test_at_most_three_k_are_measured_after_a_forecast():
    shaky = CostCurve(
        costs={k: tuple(c * f for f in (1, 1.5, 0.7, 1.2, 0.8, 1)) for k, c in COSTS.items()}
    )
    shaky = replace(shaky, costs={**shaky.costs, 0: (STEP_S,) * 6})
    points = forecast(KEY, [right(p) for p in PROMPTS], shaky, range(5)).points
    noisy = CostCurve(
        costs={k: tuple(v[(i + k) % 6] for i in range(6)) for k, v in shaky.costs.items()}
    )
    _, to_measure = choose(points, noisy)
    assert len(to_measure) == 3


def test_step_times_of_another_engine_need_no_measurement():
    theirs = replace(curve(COSTS), source="vllm (costs.csv)")
    record = forecast(KEY, [right(p) for p in PROMPTS], theirs, range(5), rule="greedy_draft")
    assert record.to_measure == ()
    assert record.best == 2
    assert (record.costs_of, record.acceptance_rule) == ("vllm (costs.csv)", "greedy_draft")
    assert record.sweep_s is record.measure_s is record.share_saved is None


def test_a_forecast_states_the_share_of_time_that_it_saves():
    effort = Effort(sweep=2, after=1, trace_s=1.0, costs_s=0.5)
    record = forecast(KEY, [right(p) for p in PROMPTS], curve(CLEAR), range(5), effort=effort)
    step, *at_k = (6 * n * s for n, s in zip((12, 6, 4, 3, 3), CLEAR.values(), strict=True))
    # Every K twice, and K = 0 and the best one again; or K = 0 and one K, of which none is again.
    assert record.sweep_s == pytest.approx(2 * (step + sum(at_k) + step + at_k[1]))
    assert record.measure_s == pytest.approx(step + at_k[1])
    spent = 1.5 + record.measure_s
    assert record.share_saved == pytest.approx(1 - spent / record.sweep_s)


def test_a_trace_of_one_token_has_no_round():
    traces = [right(p) for p in PROMPTS]
    empty = trace("z", [])
    assert replayed([empty], 0) is None
    assert replayed([*traces, empty], 1).num_rounds.tolist() == [6.0] * 6


def test_the_middle_context_is_that_of_the_median_output():
    assert middle_context([right("a", 20), right("b", 40), right("c", 400)]) == 10 + 20


def test_fractional_acceptance_chances_are_averaged():
    """One draft kept half the time: 12 tokens in 12 / 1.5 rounds, except at the ends."""
    traces = [trace(p, [0.5] * 300, depth=1) for p in PROMPTS]
    record = forecast(KEY, traces, curve({0: 1.0, 1: 1.0}), (1,))
    assert speedups(record)[1] == pytest.approx(1.5, rel=0.01)
    assert math.isclose(record.points[1].acceptance_rate_per_position[0], 0.5, rel_tol=0.01)


@pytest.mark.parametrize(
    ("method", "rows", "is_exact"),
    [("suffix", 1, True), ("suffix", 4, False), ("ngram", 4, True)],
)
def test_a_replay_is_inexact_if_requests_learn_from_each_other(method, rows, is_exact):
    key = with_axes(KEY, method=method, concurrency=rows)
    record = forecast(key, [right(p) for p in PROMPTS], curve(COSTS), range(5))
    assert record.is_exact is is_exact


def test_three_of_six_equal_candidates_are_measured():
    """Costs of K + 1 steps, so that every K is as fast as K = 0; each K's repetitions differ."""
    visits = {0: (1.0,) * 6}
    for k in range(1, 7):
        factors = [(0.7, 1.3, 0.9, 1.1, 0.8, 1.25)[(i + k) % 6] for i in range(6)]
        visits[k] = tuple((k + 1) * factor for factor in factors)
    noisy = CostCurve(costs=visits)
    traces = [right(p, 43, depth=6) for p in PROMPTS]
    points = forecast(draft(6), traces, noisy, range(7)).points
    rivals = [p for p in points if p.num_speculative_tokens]
    assert len(rivals) == 6
    assert len(choose(points, noisy)[1]) == 3


@pytest.mark.parametrize(
    ("of_others", "to_measure"),
    [
        ((0.983, 0.989, 0.985), (2, 3, 4)),
        ((0.983, 0.989, 0.975), (2, 3, 1)),
        ((0.975, 0.970, 0.985), (2, 4)),
    ],
)
def test_two_k_that_may_be_2_percent_faster_are_measured_best_first(of_others, to_measure):
    """The error of a workload's costs is 4%: enough from 98% of the best speed on."""
    speeds = {2: 1.0, **dict(zip((1, 3, 4), of_others, strict=True))}
    costs = {k: STEP_S * (k + 1) / (1.5 * speed) for k, speed in speeds.items()}
    record = forecast(KEY, [right(p, 61) for p in PROMPTS], curve({0: STEP_S, **costs}), range(5))
    assert record.to_measure == to_measure


def test_load_shared_by_every_k_adds_no_error_to_a_cost_ratio():
    busy = (1.0, 3.0, 1.0, 2.0, 1.5, 4.0)
    visits = {0: busy, 2: tuple(1.5 * b for b in busy)}
    here = CostCurve(costs=visits).ratio(2, 0)
    assert (here.log, here.standard_error) == pytest.approx((math.log(1.5), 0.0), abs=1e-12)
    theirs = CostCurve(costs=visits, source="vllm (costs.csv)").ratio(2, 0)
    assert theirs.standard_error > 0.1  # nothing is paired with another engine


def test_turns_are_replayed_as_separate_texts():
    rounds = replayed([right("a"), right("a", turn=1), right("b")], 1)
    assert rounds.of_texts == (6, 6, 6)


def test_repeated_measurements_multiply_the_forecast_time():
    traces, costs = [right(p) for p in PROMPTS], curve({0: 0.1, 2: 0.15})
    once = forecast(draft(2), traces, costs, (2,))
    thrice = forecast(draft(2), traces, costs, (2,), effort=Effort(after=3.0))
    assert thrice.measure_s == pytest.approx(3 * once.measure_s)


def test_costs_measured_without_k_0_have_no_curve():
    costs = [
        RoundCost(
            cell_ids=("",), num_speculative_tokens=k, num_rows=1, context=8, visits_s=((0.1,),)
        )
        for k in (0, 2)
    ]
    assert measured_here(costs[1:], {0: [4.0], 2: [4.0]}) is None
    assert measured_here(costs, {2: [4.0]}) is None
    curve_of_both = measured_here(costs, {0: [4.0], 2: [4.0]})
    assert curve_of_both is not None
    assert set(curve_of_both.costs) == {0, 2}


def test_a_k_with_other_repetitions_than_k_0_has_no_cost():
    costs = [
        RoundCost(
            cell_ids=("",),
            num_speculative_tokens=k,
            num_rows=1,
            context=8,
            visits_s=((0.1,),) * num,
        )
        for k, num in ((0, 2), (1, 1), (2, 2), (3, 3))
    ]
    curve_of_all = measured_here(costs, {k: [4.0] for k in range(4)})
    assert curve_of_all is not None
    assert set(curve_of_all.costs) == {0, 2}
