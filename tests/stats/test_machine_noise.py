"""The variance between states of the machine, pooled by hand and in simulated runs."""

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from specbench.stats.intervals import interval, speedup_ratio
from specbench.stats.machine_noise import (
    ASSUMED_FREEDOM,
    SHARED,
    MachineKind,
    assumed_noise,
    least_margin,
    num_parts,
)

QUIET = MachineKind.QUIET_CPU


def test_without_parts_the_deviation_is_the_assumed_one():
    for kind in MachineKind:
        noise = assumed_noise(kind).of_parts([])
        assert noise.variance == pytest.approx(kind.assumed**2)
        assert (noise.degrees_of_freedom, noise.num_parts) == (ASSUMED_FREEDOM, 1)
        # A run is one state, whatever part of it is shared.
        assert noise.of_run.standard_error == pytest.approx(kind.assumed)


def test_a_single_part_shows_no_variance():
    assert assumed_noise(QUIET).of_parts([0.7]) == assumed_noise(QUIET).of_parts([])


def test_the_variance_of_parts_is_pooled_with_the_assumed_one_by_degrees_of_freedom():
    # Parts at 0.1, 0.2 and 0.6: variance 0.07, of which 0.01 is error; parts of one run share
    # SHARED of the variance between runs.
    noise = assumed_noise(QUIET).of_parts([0.1, 0.2, 0.6], error=0.01)
    between = 0.06 / (1 - SHARED)
    assert noise.degrees_of_freedom == ASSUMED_FREEDOM + 2
    assert noise.variance == pytest.approx(
        (ASSUMED_FREEDOM * QUIET.assumed**2 + 2 * between) / (ASSUMED_FREEDOM + 2)
    )


def test_parts_that_differ_by_less_than_their_errors_lower_the_variance_but_not_below_0():
    noise = assumed_noise(QUIET).of_parts([0.1, 0.2, 0.6], error=1.0)
    share = ASSUMED_FREEDOM / (ASSUMED_FREEDOM + 2)
    assert noise.variance == pytest.approx(share * QUIET.assumed**2)


def test_parts_share_a_state_and_cycles_that_start_anew_do_not():
    logs = [0.1, 0.2, 0.6]
    parts, cycles = (
        assumed_noise(QUIET).of_parts(logs),
        assumed_noise(QUIET).of_parts(logs, shared=0.0),
    )
    of_mean = SHARED + (1 - SHARED) / 3
    assert parts.of_run.standard_error**2 == pytest.approx(parts.variance * of_mean)
    assert cycles.of_run.standard_error**2 == pytest.approx(cycles.variance / 3)
    assert parts.of_run.degrees_of_freedom == parts.degrees_of_freedom
    assert cycles.variance < parts.variance  # which also differ by what they do not share


RUNS, PROMPTS_SD = 2_000, 0.15
NUM_CONTROLS = 500  # runs to compare with, whose figures are far off


def states_of_parts(rng: np.random.Generator, num_prompts: int) -> np.ndarray:
    """A state per part of a run, which share SHARED of their variance of 1."""
    parts = np.array_split(np.arange(num_prompts), num_parts(num_prompts))
    own = np.repeat(rng.normal(size=len(parts)), [len(part) for part in parts])
    return math.sqrt(SHARED) * rng.normal() + math.sqrt(1 - SHARED) * own


def states_that_last(rng: np.random.Generator, num_prompts: int, lasting: float) -> np.ndarray:
    """States of variance 1 whose correlation falls by e in so many requests (Uhlenbeck and
    Ornstein 1930)."""
    kept, states = math.exp(-1 / lasting), [rng.normal()]
    for step in math.sqrt(1 - kept**2) * rng.normal(size=num_prompts - 1):
        states.append(kept * states[-1] + step)
    return np.array(states)


def covered(
    num_prompts: int,
    *,
    num_runs: int = RUNS,
    of_assumed: float = 1.0,
    knows_machine: bool = True,
    num_earlier: int = 0,
    states: Callable[[np.random.Generator, int], np.ndarray] = states_of_parts,
) -> tuple[float, float]:
    """How often runs contain the truth, and their median half-width; machines of the kind differ in
    deviation, and earlier runs are on the same machine."""
    rng = np.random.default_rng(num_prompts)
    hits, halves = 0, []
    share = SHARED + (1 - SHARED) / num_parts(num_prompts)
    for _ in range(num_runs):
        spread = math.sqrt(ASSUMED_FREEDOM / rng.chisquare(ASSUMED_FREEDOM))
        deviation = of_assumed * QUIET.assumed * spread
        steps = 0.02 * rng.normal(size=num_prompts)  # of a round, in which prompts hardly differ
        cost = deviation * states(rng, num_prompts) + steps
        base_s = rng.lognormal(0.0, 0.4, num_prompts)
        slower = rng.lognormal(-(PROMPTS_SD**2) / 2, PROMPTS_SD, num_prompts)
        ratio = speedup_ratio(base_s, base_s * slower * np.exp(-cost))
        if knows_machine:
            prior = assumed_noise(QUIET)
            if num_earlier:
                of_runs = math.sqrt(share) * deviation * rng.normal(size=num_earlier)
                prior = prior.pooled(of_runs.var(ddof=1) / share, num_earlier - 1)
            ratio = ratio.on(prior.with_run(cost))
        bounds = interval(ratio)
        hits += bounds.low <= 1 <= bounds.high
        halves.append(math.log(bounds.high / bounds.low) / 2)
    return hits / num_runs, float(np.median(halves))


@pytest.mark.parametrize("num_prompts", [9, 39])
def test_runs_cover_the_truth_whatever_the_number_of_prompts(num_prompts):
    """Standard error 0.5 points; a method that covers 95% leaves the range in 1 of 1,000 seeds."""
    share, _ = covered(num_prompts)
    print(f"{num_prompts} prompts: {share:.1%}")
    assert 0.93 <= share <= 0.97


@pytest.mark.parametrize(
    ("lasting", "least"),
    [(1, 0.95), pytest.param(8, 0.88, marks=pytest.mark.long), (40, 0.78)],
    ids=["a request", "some requests", "a run"],
)
def test_states_of_any_duration_are_covered_in_long_runs(lasting, least):
    """Standard error 1 point. Only earlier runs show states that last longer than a run."""
    states = partial(states_that_last, lasting=lasting)
    few, many = covered(10, states=states, num_runs=NUM_CONTROLS), covered(40, states=states)
    print(f"lasting {lasting}: {few[0]:.1%} of 10, {many[0]:.1%} of 40, half {many[1]:.3f}")
    assert many[0] >= least
    assert many[1] < 0.7 * few[1]  # more prompts narrow it


def test_a_run_has_at_least_three_parts_and_as_many_as_each_has_requests():
    assert [num_parts(n) for n in (5, 10, 15, 16, 56, 100)] == [3, 3, 3, 4, 7, 10]
    noise = assumed_noise(QUIET).with_run(np.zeros(56))
    assert (noise.num_parts, noise.degrees_of_freedom) == (7, ASSUMED_FREEDOM + 6)
    assert noise.variance == pytest.approx(ASSUMED_FREEDOM * QUIET.assumed**2 / 10)


def test_the_noise_of_requests_is_not_that_of_the_parts():
    # Parts of two requests that differ by 0.2: each mean has an error of variance 0.01.
    noise = assumed_noise(QUIET).with_run([0.1, 0.3, 0.2, 0.4, 0.6, 0.8])
    by_hand = assumed_noise(QUIET).of_parts([0.2, 0.3, 0.7], error=0.01)
    assert noise.num_parts == by_hand.num_parts == 3
    assert noise.variance == pytest.approx(by_hand.variance)
    assert assumed_noise(QUIET).with_run([0.1, 0.3, 0.2, 0.4, 0.6]).num_parts == 1


def test_more_prompts_lower_the_least_margin_of_a_run():
    # Six parts: variance 0.06**2 * 4 / 9, of the mean 0.3 + 0.7 / 6 of it, and t of 9 is 2.262.
    assert least_margin(QUIET, 40) == pytest.approx(math.expm1(2.262 * 0.04 * 0.6455), rel=1e-3)
    assert least_margin(QUIET, 10) > 1.3 * least_margin(QUIET, 40)
    # Five are one part: its deviation alone, and t of 4 is 2.776.
    assert least_margin(QUIET, 5) == pytest.approx(math.expm1(2.776 * 0.06), rel=1e-3)


def test_a_machine_that_varies_half_as_much_as_assumed_has_wider_intervals():
    share, _ = covered(39, of_assumed=0.5)
    print(f"half of the assumed deviation: {share:.1%}")
    assert share > 0.96


def test_without_the_machine_more_prompts_make_intervals_too_narrow():
    few, many = (covered(num, knows_machine=False, num_runs=NUM_CONTROLS)[0] for num in (9, 39))
    print(f"without the machine: {few:.1%} of 9 prompts, {many:.1%} of 39")
    assert many < 0.80 < few + 0.05


def test_what_earlier_runs_measured_is_pooled_by_degrees_of_freedom():
    noise = assumed_noise(QUIET).pooled(0.2**2, 4)
    assert noise.degrees_of_freedom == ASSUMED_FREEDOM + 4
    assert noise.variance == pytest.approx((0.06**2 + 0.2**2) / 2)
    assert noise.pooled(0.5, 0) == noise


def test_cells_that_both_draft_are_assumed_to_follow_the_machine_less():
    assert assumed_noise(QUIET, alike=True).variance < assumed_noise(QUIET).variance


def test_earlier_runs_make_the_machines_part_right_where_the_assumption_is_not():
    """Standard error 0.5 points; eight earlier runs know a machine that varies twice as much."""
    alone, _ = covered(19, of_assumed=2.0)
    known, _ = covered(19, of_assumed=2.0, num_earlier=8)
    print(f"twice the assumed deviation: {alone:.1%} alone, {known:.1%} with eight earlier runs")
    assert alone < 0.91
    assert known > alone + 0.02
    _, wide = covered(19, of_assumed=0.25)
    share, narrow = covered(19, of_assumed=0.25, num_earlier=8)
    print(f"a quarter: half-width {wide:.3f} alone, {narrow:.3f} with them, covered {share:.1%}")
    assert narrow < 0.9 * wide
    assert share > 0.95
