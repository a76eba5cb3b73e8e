"""Undecided answers say what is known first, and no number that equal runs contradict."""

import math
from dataclasses import replace

import numpy as np
import pytest

from specbench.decide.explanation import what_would_narrow
from specbench.decide.recommend import choose, decide, judge
from specbench.records import Interval, Kind, SpeedupVerdict
from specbench.stats.intervals import interval, minimum_detectable_effect, speedup_ratio
from specbench.stats.spread import UPPER, student_t
from tests.cell_keys import with_axes

IN_ALL = 40  # prompts of the workload


def advice(cell, workload_prompts=IN_ALL):
    return list(what_would_narrow(cell, workload_prompts))


def test_an_undecided_answer_is_the_range(summarized):
    cell = summarized(4, 0.60, 2.01, 6.60, num_prompts=5)
    decision = decide(choose([cell]))
    assert decision.verdict is SpeedupVerdict.UNDECIDED
    assert decision.answer[0] == Kind.RANGE(k=4, mean_k=None, speedup=cell.speedup)


def test_no_prompt_count_is_advised_for_an_effect_above_100_percent(summarized):
    cell = summarized(4, 0.60, 2.01, 6.60, num_prompts=5)
    loud = replace(cell, minimum_detectable_effect=1.01)
    assert advice(loud) == [Kind.TOO_NOISY(effect=1.01, option="--repeats")]
    (quieter,) = advice(replace(cell, minimum_detectable_effect=1.0))
    assert quieter.figures["prompts"] == IN_ALL


def test_the_verdict_names_the_available_prompts_and_the_width_they_give(summarized):
    cell = summarized(4, 0.9, 1.0, 1 / 0.9, num_prompts=8)
    # Half width of the log: 10.5% * sqrt(8 / 40) * t(39) / t(7) = 4.0%.
    narrower = math.log(1 / 0.9) * math.sqrt(8 / 40) * student_t(39, UPPER) / student_t(7, UPPER)
    width = math.expm1(narrower)
    assert 0.035 < width < 0.045
    assert advice(cell) == [Kind.ALL_PROMPTS(prompts=IN_ALL, width=pytest.approx(width))]
    assert [*what_would_narrow(cell, IN_ALL, is_cut_short=True)] == [
        Kind.BUDGET_FOR_ALL(width=pytest.approx(width))
    ]


def test_a_run_cut_short_by_its_budget_is_advised_a_longer_budget(summarized):
    cell = summarized(4, None, 1.5, None, num_prompts=1)
    assert advice(cell) == [Kind.NEEDS_MORE(missing=(4, "prompt"), num_prompts=5)]
    assert [*what_would_narrow(cell, IN_ALL, is_cut_short=True)] == [Kind.LONGER_BUDGET()]


@pytest.mark.parametrize("in_all", [0, 3, 8])
def test_other_prompts_are_advised_if_the_workload_has_no_more(summarized, in_all):
    told = advice(summarized(4, 0.9, 1.0, 1.1, num_prompts=8), in_all)
    assert told == [Kind.ADD_PROMPTS()]


def test_no_advice_is_given_for_a_workload_of_unknown_size(summarized):
    assert advice(summarized(4, 0.9, 1.0, 1.1, num_prompts=8), None) == []


@pytest.mark.parametrize(
    ("in_all", "num_prompts", "left"), [(40, 5, []), (5, 5, []), (4, None, [1]), (3, None, [0])]
)
def test_the_advice_asks_for_five_prompts_or_more_in_the_workload(
    summarized, in_all, num_prompts, left
):
    needed, *rest = advice(summarized(4, None, 5.0, None, num_prompts=3), in_all)
    assert needed == Kind.NEEDS_MORE(missing=(2, "prompt"), num_prompts=num_prompts)
    assert rest == [Kind.NOT_ENOUGH_LEFT(left=n) for n in left]


def test_the_advice_for_passes_is_to_repeat_them(summarized):
    cell = summarized(4, 1.0, 1.08, 1.166, num_prompts=40, metrics={"num_passes": 8})
    cell = replace(cell, key=with_axes(cell.key, concurrency=4))
    assert advice(cell) == [Kind.MORE_OF(option="--repeats")]
    few = replace(
        cell, metrics={"num_passes": 4}, speedup=Interval(estimate=2, low=None, high=None)
    )
    assert advice(few) == [Kind.NEEDS_MORE(missing=(1, "pass"), num_prompts=None)]


RUNS, GROUP = 400, 4


def undecided_runs(rng, num_prompts, speedup, prompts_sd, noise):
    """Intervals and detectable effects of equal runs, of the ones that decide nothing."""
    while True:
        base_s = rng.lognormal(0.0, 0.3, num_prompts)
        spec_s = base_s / speedup * np.exp(rng.normal(0.0, prompts_sd, num_prompts))
        times = (side * np.exp(rng.normal(0.0, noise, num_prompts)) for side in (base_s, spec_s))
        ratio = speedup_ratio(*times)
        if judge(ci := interval(ratio)) is SpeedupVerdict.UNDECIDED:
            yield ci, minimum_detectable_effect(ratio)


@pytest.mark.parametrize(
    ("num_prompts", "speedup", "prompts_sd", "noise", "most"),
    [(5, 1.3, 0.15, 0.2, 3.5), (10, 1.1, 0.1, 0.1, 2.0), (20, 1.1, 0.15, 0.2, 2.0)],
)
def test_equal_runs_get_equal_advice(summarized, num_prompts, speedup, prompts_sd, noise, most):
    """Four equal runs give the same number of prompts, and widths within a factor of `most`.

    The control is the number of prompts that would decide: it varies by a factor of tens.
    """
    runs = undecided_runs(np.random.default_rng(31), num_prompts, speedup, prompts_sd, noise)
    named, widths, needed = set(), [], []
    for _ in range(RUNS):
        ci, effect = next(runs)
        cell = summarized(4, ci.low, ci.estimate, ci.high, num_prompts=num_prompts)
        (told,) = advice(replace(cell, minimum_detectable_effect=effect))
        if told.kind is not Kind.TOO_NOISY:
            named.add(told.figures["prompts"])
            widths.append(told.figures["width"])
        margin = max(math.log(ci.estimate / 1.01), math.log(1.02 / ci.estimate))
        half = math.log(ci.high / ci.low) / 2
        needed.append(num_prompts * (half / margin) ** 2)
    assert named == {IN_ALL}
    assert len(widths) > RUNS / 2  # otherwise the noise hides any speedup
    assert ratio_of_four(widths) <= most
    assert ratio_of_four(needed) > 10


def ratio_of_four(values):
    """The median over groups of four of the ratio of the largest to the smallest."""
    groups = np.array(values[: len(values) // GROUP * GROUP]).reshape(-1, GROUP)
    return np.median(groups.max(axis=1) / groups.min(axis=1))
