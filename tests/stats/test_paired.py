"""Costs in pairs: their ratio is that of sums, without the pairs that something disturbed."""

import math

import numpy as np
import pytest

from specbench.stats.intervals import interval, paired_log_ratio

RUNS = 10_000
NOISE = 0.15  # of a cost, log-normal
NUM_PAIRS = 12


def test_the_paired_ratio_equals_a_worked_example() -> None:
    """Means 3 and 2."""
    over, under = [1.0, 4.0, 5.0, 2.5, 2.5], [1.0, 2.0, 3.0, 2.0, 2.0]
    ratio = paired_log_ratio(over, under)
    assert math.exp(ratio.log) == pytest.approx(3 / 2)
    residuals = [a / 3 - b / 2 for a, b in zip(over, under, strict=True)]
    assert ratio.standard_error == pytest.approx(
        math.sqrt(5 / 4 * sum(r * r for r in residuals) / 25)
    )
    assert ratio.spread.degrees_of_freedom == 4


def test_two_pairs_give_a_ratio_without_a_standard_error() -> None:
    ratio = paired_log_ratio([2.0, 4.0], [1.0, 1.0])
    assert (ratio.log, ratio.standard_error) == (pytest.approx(math.log(3)), None)


def test_an_outlying_timing_repetition_is_excluded() -> None:
    """A repetition of three times the time: the mean would be off by a third."""
    busy = paired_log_ratio([1.6, 1.6, 4.8, 1.6, 1.6, 1.6], [1.0] * 6)
    assert math.exp(busy.log) == pytest.approx(1.6)
    assert busy.num_prompts == 5


def test_four_timings_left_after_an_outlier_give_no_spread() -> None:
    ratio = paired_log_ratio([1.6, 1.6, 4.8, 1.6, 1.6], 1.0)
    assert (math.exp(ratio.log), ratio.spread) == (pytest.approx(1.6), None)


def test_a_ratio_within_the_common_spread_is_kept() -> None:
    spread = [0.5, 0.7, 1.0, 1.4, 2.0, 2.8]
    assert paired_log_ratio(spread, 1.0).num_prompts == 6


@pytest.mark.parametrize(("far", "num_left"), [(0.73, 9), (0.75, 7)])
def test_ratios_beyond_5_standard_deviations_are_excluded(far: float, num_left: int) -> None:
    """The median distance is 0.1, of normal errors that of a deviation of 0.148."""
    logs = [-far, -0.1, -0.1, -0.1, 0.0, 0.1, 0.1, 0.1, far]
    assert paired_log_ratio(np.exp(logs), 1.0).num_prompts == num_left


def _coverage() -> float:
    """How often the interval covers the ratio of expected costs; some repetitions are all slow."""
    rng = np.random.default_rng(7)
    covered = 0
    for _ in range(RUNS):
        shared = rng.lognormal(0, 0.3, NUM_PAIRS)  # a busy machine hits both
        over = 1.6 * shared * rng.lognormal(0, NOISE, NUM_PAIRS)
        under = shared * rng.lognormal(0, NOISE, NUM_PAIRS)
        bounds = interval(paired_log_ratio(over, under))
        assert bounds.low is not None
        assert bounds.high is not None
        covered += bounds.low <= 1.6 <= bounds.high
    return covered / RUNS


@pytest.mark.slow
def test_the_interval_has_its_nominal_coverage() -> None:
    """95% is claimed; 93 to 97 is accepted: four deviations from what seeds have shown, 94."""
    share = _coverage()
    print(f"covered {share:.1%}")
    assert 0.93 <= share <= 0.97


def test_noise_shared_by_both_sides_of_a_pair_does_not_widen_the_interval() -> None:
    rng = np.random.default_rng(1)
    shared, noise = rng.lognormal(0, 0.5, NUM_PAIRS), rng.lognormal(0, 0.02, NUM_PAIRS)
    together = paired_log_ratio(1.6 * shared * noise, shared).standard_error
    apart = paired_log_ratio(1.6 * shared * noise, rng.permutation(shared)).standard_error
    assert together is not None
    assert apart is not None
    assert together < 0.02 < 0.1 < apart
