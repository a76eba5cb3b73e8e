"""Undecided answers say what is known first, and no number that equal runs contradict."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest

from specbench.decide.explanation import what_would_narrow
from specbench.decide.recommend import SpeedupVerdict, choose, decide, judge
from specbench.records import Interval
from specbench.stats.intervals import interval, minimum_detectable_effect, speedup_ratio
from specbench.stats.spread import UPPER, student_t
from tests.cell_keys import with_axes

IN_ALL = 40  # prompts of the workload


def advice(cell, workload_prompts=IN_ALL):
    return what_would_narrow(cell, workload_prompts)


def numbers(text):
    return [int(number) for number in re.findall(r"\d+", text)]


def test_an_undecided_sentence_gives_the_range_and_no_estimate(summarized):
    sentence = decide(choose([summarized(4, 0.60, 2.01, 6.60, num_prompts=5)])).sentence
    assert re.search(r"undecided: 0\.60x to 6\.60x at K=4", sentence)
    assert "2.01" not in sentence


def test_no_prompt_count_is_advised_for_an_effect_above_100_percent(summarized):
    cell = summarized(4, 0.60, 2.01, 6.60, num_prompts=5)
    loud = advice(replace(cell, minimum_detectable_effect=1.01))
    assert numbers(loud) == []
    assert "noise" in loud
    assert numbers(advice(replace(cell, minimum_detectable_effect=1.0)))[0] == IN_ALL


def test_the_verdict_names_the_available_prompts_and_the_width_they_give(summarized):
    cell = summarized(4, 0.9, 1.0, 1 / 0.9, num_prompts=8)
    # Half width of the log: 10.5% * sqrt(8 / 40) * t(39) / t(7) = 4.0%.
    narrower = math.log(1 / 0.9) * math.sqrt(8 / 40) * student_t(39, UPPER) / student_t(7, UPPER)
    assert 0.035 < math.expm1(narrower) < 0.045
    assert numbers(advice(cell)) == [IN_ALL, 4]
    assert f"--num-prompts {IN_ALL} " in advice(cell)
    cut_short = what_would_narrow(cell, IN_ALL, is_cut_short=True)
    assert "--time-budget" in cut_short
    assert "--num-prompts" not in cut_short


def test_a_run_cut_short_by_its_budget_is_advised_a_longer_budget(summarized):
    cell = summarized(4, None, 1.5, None, num_prompts=1)
    assert numbers(advice(cell)) == [4, 5]  # more prompts, and in all
    text = what_would_narrow(cell, IN_ALL, is_cut_short=True)
    assert "--time-budget" in text
    assert numbers(text) == []


@pytest.mark.parametrize("in_all", [0, 3, 8])
def test_repeats_are_advised_if_no_more_prompts_exist(summarized, in_all):
    text = advice(summarized(4, 0.9, 1.0, 1.1, num_prompts=8), in_all)
    assert numbers(text) == []
    assert "--repeats" in text


def test_no_advice_is_given_for_a_workload_of_unknown_size(summarized):
    assert advice(summarized(4, 0.9, 1.0, 1.1, num_prompts=8), None) == ""


@pytest.mark.parametrize(("in_all", "named"), [(40, [2, 5]), (5, [2, 5]), (4, [2, 1]), (3, [2])])
def test_the_advice_asks_for_five_prompts_or_more_in_the_workload(summarized, in_all, named):
    text = advice(summarized(4, None, 5.0, None, num_prompts=3), in_all)
    assert numbers(text) == named
    assert ("add some" in text) == (in_all < 5)


def test_the_advice_for_passes_is_to_repeat_them(summarized):
    cell = summarized(4, 1.0, 1.08, 1.166, num_prompts=40, metrics={"num_passes": 8})
    cell = replace(cell, key=with_axes(cell.key, concurrency=4))
    assert numbers(advice(cell)) == []
    assert "--repeats" in advice(cell)
    few = replace(
        cell, metrics={"num_passes": 4}, speedup=Interval(estimate=2, low=None, high=None)
    )
    assert numbers(advice(few)) == [1]


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
        figures = numbers(advice(replace(cell, minimum_detectable_effect=effect)))
        named.update(figures[:1])
        widths += figures[1:]
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
