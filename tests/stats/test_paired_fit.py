"""Speedups of K that served other prompts, fitted over all of them."""

import math

import numpy as np
import pytest

from specbench.stats.intervals import interval, speedup_ratio
from specbench.stats.paired_fit import fitted_ratios
from specbench.stats.spread import MIN_UNITS

GAP = math.nan


def with_gaps(seconds: np.ndarray, served: int) -> np.ndarray:
    """The seconds of the first prompts, and none of the others."""
    return np.where(np.arange(len(seconds)) < served, seconds, GAP)


def test_k_that_served_every_prompt_have_their_ratio_of_sums_and_its_jackknife():
    rng = np.random.default_rng(1)
    base_s, first_s, second_s = rng.lognormal(0.0, 0.4, (3, 12))
    for fitted, spec_s in zip(
        fitted_ratios(base_s, [first_s, second_s]), (first_s, second_s), strict=True
    ):
        ratio = speedup_ratio(base_s, spec_s)
        assert fitted.log == pytest.approx(ratio.log)
        assert fitted.num_prompts == 12
        assert fitted.spread.standard_error == pytest.approx(ratio.spread.standard_error)


def test_seconds_that_are_a_prompt_times_a_k_are_recovered_from_any_prompts():
    prompts = np.array([1.0, 2.0, 3.0, 5.0, 8.0, 13.0, 21.0])
    kept = with_gaps(prompts / 2.5, 5)
    complete, partial = fitted_ratios(prompts, [prompts / 2, kept])
    assert math.exp(complete.log) == pytest.approx(2.0)
    assert math.exp(partial.log) == pytest.approx(2.5)
    assert (complete.num_prompts, partial.num_prompts) == (7, 5)
    assert partial.spread.standard_error == pytest.approx(0.0, abs=1e-6)


def errors_of_contrasts(num_runs: int = 300) -> tuple[np.ndarray, np.ndarray]:
    """Errors of the log speedup of K on 5 of 40 prompts against that of K on 40: of the fit, and of
    each K over its own prompts. Speedups differ by prompt, alike for both K; the truth is 1.25."""
    rng = np.random.default_rng(3)
    fits, own = [], []
    for _ in range(num_runs):
        base_s = rng.lognormal(0.0, 0.3, 40)
        helped = rng.lognormal(0.0, 0.4, 40)  # what speculation gains on a prompt
        many_s, few_s = (
            base_s / helped / gain * rng.lognormal(0.0, 0.03, 40) for gain in (1.0, 1.25)
        )
        many, few = fitted_ratios(base_s, [many_s, with_gaps(few_s, 5)])
        fits.append(few.log - many.log - math.log(1.25))
        alone = speedup_ratio(base_s[:5], few_s[:5])
        own.append(alone.log - speedup_ratio(base_s, many_s).log - math.log(1.25))
    return np.array(fits), np.array(own)


def test_k_on_5_prompts_compare_with_k_on_40_as_if_they_had_served_the_same():
    fits, own = errors_of_contrasts()
    print(f"deviation of the contrast: {fits.std():.3f}, over own prompts {own.std():.3f}")
    assert abs(fits.mean()) < 0.01
    assert fits.std() < 0.25 * own.std()


def test_the_interval_of_a_k_with_few_prompts_covers_what_all_prompts_would_give():
    """1,000 runs: 0.7 points of standard error."""
    rng = np.random.default_rng(4)
    hits = 0
    for _ in range(1_000):
        base_s = rng.lognormal(0.0, 0.3, 20)
        helped = rng.lognormal(-(0.2**2) / 2, 0.2, 20)  # of seconds: mean 1
        many_s, few_s = (base_s * helped / 1.5 * rng.lognormal(0.0, 0.05, 20) for _ in range(2))
        _, few = fitted_ratios(base_s, [many_s, with_gaps(few_s, 10)])
        bounds = interval(few)
        hits += bounds.low <= 1.5 <= bounds.high
    print(f"covered {hits / 1_000:.1%}")
    assert 0.92 <= hits / 1_000 <= 0.98


def test_below_five_prompts_there_is_an_estimate_without_an_interval():
    prompts = np.arange(1.0, 9.0)
    _, few = fitted_ratios(prompts, [prompts, with_gaps(prompts / 2, MIN_UNITS - 1)])
    assert math.exp(few.log) == pytest.approx(2.0)
    assert few.spread is None
    _, enough = fitted_ratios(prompts, [prompts, with_gaps(prompts / 2, MIN_UNITS)])
    assert enough.spread is not None


def freedom_of(seconds: np.ndarray) -> float:
    """The effective number of prompts - 1, at least 1."""
    return max(seconds.sum() ** 2 / (seconds**2).sum() - 1, 1.0)


@pytest.mark.parametrize("longest", [10.0, 100.0])
def test_the_degrees_of_freedom_are_those_of_the_prompts_that_a_k_served(longest):
    base_s = np.array([1.0, 2.0, 3.0, 4.0, longest, 7.0, 8.0])
    complete, partial = fitted_ratios(base_s, [base_s / 2, with_gaps(base_s / 3, 5)])
    assert complete.spread.degrees_of_freedom == pytest.approx(freedom_of(base_s))
    assert partial.spread.degrees_of_freedom == pytest.approx(freedom_of(base_s[:5]))


@pytest.mark.parametrize(
    ("base_s", "spec_s"),
    [
        ([1.0, GAP], [[1.0, 1.0]]),
        ([1.0, 1.0], [[GAP, GAP]]),
        ([1.0, 1.0], [[0.0, 1.0]]),
        ([1.0, -1.0], [[1.0, 1.0]]),
    ],
)
def test_a_k_without_prompts_and_impossible_seconds_are_refused(base_s, spec_s):
    with pytest.raises(ValueError, match=r"K = 0 needs|above 0"):
        fitted_ratios(base_s, spec_s)


def test_k_that_share_no_prompt_are_compared_by_their_k_0():
    base_s = np.array([1.0, 2.0, 4.0, 3.0, 5.0, 2.0])
    first = np.where(np.arange(6) < 3, base_s / 2, GAP)
    second = np.where(np.arange(6) < 3, GAP, base_s / 3)
    logs = [fitted.log for fitted in fitted_ratios(base_s, [first, second])]
    assert np.exp(logs) == pytest.approx([2.0, 3.0])
