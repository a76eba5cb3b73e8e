"""Spreads against plain restatements, and against scipy's t-tests if both compute the same."""

import math

import numpy as np
import pytest
from scipy.stats import ttest_1samp, ttest_ind

from specbench.stats.spread import (
    MIN_UNITS,
    Uncertainty,
    cautiously_combined,
    combined,
    jackknife,
    of_mean,
)

SEEDS = range(200)


def spread(error: float, freedom: float) -> Uncertainty:
    return Uncertainty(standard_error=error, degrees_of_freedom=freedom)


def test_the_spread_of_a_mean_is_that_of_the_t_test():
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        values = rng.normal(rng.normal(), rng.uniform(0.1, 3), rng.integers(MIN_UNITS, 30))
        known = of_mean(values)
        ends = ttest_1samp(values, 0).confidence_interval(0.95)
        assert values.mean() + known.margin() == pytest.approx(ends.high)
        assert values.mean() + known.margin(0.025) == pytest.approx(ends.low)
        above = ttest_1samp(values, 0, alternative="greater").pvalue
        assert known.p_value(values.mean()) == pytest.approx(above)


def test_spreads_are_combined_as_in_welchs_t_test():
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        first = rng.normal(0, rng.uniform(0.1, 3), rng.integers(MIN_UNITS, 30))
        other = rng.normal(0, rng.uniform(0.1, 3), rng.integers(MIN_UNITS, 30))
        both = combined(of_mean(first), of_mean(other))
        welch = ttest_ind(first, other, equal_var=False)
        assert both.degrees_of_freedom == pytest.approx(welch.df)
        assert both.standard_error == pytest.approx((first.mean() - other.mean()) / welch.statistic)


def test_an_exact_value_adds_no_error_to_a_combined_spread():
    known = combined(spread(0.3, 7.0), spread(0.0, math.inf))
    assert (known.standard_error, known.degrees_of_freedom) == pytest.approx((0.3, 7.0))
    assert combined(spread(0.0, math.inf), spread(0.3, 7.0)) == known
    assert combined(spread(0.0, 8.0), spread(0.0, 5.0)) == spread(0.0, 8.0)
    assert combined(spread(3.0, math.inf), spread(4.0, math.inf)) == spread(5.0, math.inf)


def test_a_cautious_spread_has_the_mean_quantile_weighted_by_variance():
    first, second = spread(3.0, 1.0), spread(4.0, 39.0)
    both = cautiously_combined(first, second)
    assert both.standard_error == pytest.approx(5.0)
    # Variances 9 and 16; t(1) and t(39) at 0.975.
    assert both.margin() == pytest.approx(5 * (9 * 12.7062 + 16 * 2.0227) / 25, rel=1e-4)
    assert both.margin() > combined(first, second).margin()


def test_cautious_combination_equals_the_plain_one_in_limit_cases():
    exact, known = spread(0.0, math.inf), spread(0.3, 1.0)
    for both in (cautiously_combined(known, exact), cautiously_combined(exact, known)):
        assert both.standard_error == pytest.approx(0.3)
        assert both.degrees_of_freedom == pytest.approx(1.0)
    assert cautiously_combined(known, known).degrees_of_freedom == pytest.approx(1.0)
    assert cautiously_combined(exact, exact) == exact


def test_the_jackknife_equals_its_formula():
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        left_out = rng.normal(size=rng.integers(MIN_UNITS, 30)).tolist()
        weights = rng.dirichlet(np.full(len(left_out), rng.uniform(0.05, 3))).tolist()
        n, mean = len(left_out), sum(left_out) / len(left_out)
        squares = sum((value - mean) ** 2 for value in left_out)
        uncertainty = jackknife(left_out, weights)
        assert uncertainty.standard_error == pytest.approx(math.sqrt((n - 1) / n * squares))
        effective = 1 / sum(w * w for w in weights)
        assert uncertainty.degrees_of_freedom == pytest.approx(max(1.0, effective - 1))


def test_four_units_have_no_spread_and_five_have():
    for n in (0, 1, 4):
        assert of_mean(np.arange(n)) is None
        assert jackknife(np.arange(n), np.full(n, 1 / max(n, 1))) is None
    assert of_mean(np.arange(5)) is not None
    assert jackknife(np.arange(5), np.full(5, 0.2)) is not None


def test_margins_and_detectable_effects_match_the_t_table():
    assert spread(2.0, 4.0).margin() == pytest.approx(2 * 2.7764, rel=1e-4)
    assert spread(2.0, math.inf).margin() == pytest.approx(2 * 1.95996, rel=1e-4)
    assert spread(2.0, 4.0).margin(0.5) == pytest.approx(0.0, abs=1e-12)
    # t(4) at 0.975 and at 0.80.
    assert spread(2.0, 4.0).detectable() == pytest.approx(2 * (2.7764 + 0.9410), rel=1e-4)
    assert spread(2.0, 4.0).detectable(0.95, 0.9) == pytest.approx(2 * (2.1318 + 1.5332), rel=1e-4)


def test_a_spread_of_zero_gives_p_values_of_0_or_1():
    sure = spread(0.0, math.inf)
    assert (sure.p_value(1e-9), sure.p_value(0.0), sure.p_value(-1.0)) == (0.0, 1.0, 1.0)
    assert sure.margin() == sure.detectable() == 0.0
    assert spread(0.1, 9.0).p_value(0.0) == pytest.approx(0.5)
