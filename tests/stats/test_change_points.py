"""Planted steps are found at their place; noise and drift cause no steps."""

import json
from pathlib import Path

import numpy as np
import pytest

from specbench.stats.change_points import MIN_RUNS, SIGNIFICANCE, analyze_series

NOISE = 0.02  # of the level: a coefficient of variation of 2%


def noisy(rng, levels, shape="normal"):
    """A series around these levels."""
    levels = np.asarray(levels, dtype=float)
    draw = {
        "normal": rng.normal(size=len(levels)),
        "heavy": rng.standard_t(3, size=len(levels)) / np.sqrt(3),
        "skewed": rng.exponential(size=len(levels)) - 1,
    }[shape]
    return levels * (1 + NOISE * draw)


@pytest.mark.sampled(one_in=3, every=["shape", "num_runs"])
@pytest.mark.slow
@pytest.mark.parametrize("shape", ["normal", "heavy", "skewed"])
@pytest.mark.parametrize("num_runs", [8, 20, 50])
def test_noise_gives_change_points_at_the_stated_rate(shape, num_runs):
    rng = np.random.default_rng(num_runs)
    num_series = 400
    series = [analyze_series(noisy(rng, np.full(num_runs, 1.5), shape)) for _ in range(num_series)]
    most = SIGNIFICANCE + 3 * (SIGNIFICANCE * (1 - SIGNIFICANCE) / num_series) ** 0.5
    assert sum(bool(s.steps) for s in series) / num_series <= most
    assert sum(s.trend is not None for s in series) / num_series <= most


@pytest.mark.sampled(one_in=3)
@pytest.mark.slow
@pytest.mark.parametrize("at", [5, 10, 16])
def test_a_step_of_three_deviations_is_found_at_its_run(at):
    rng = np.random.default_rng(at)
    num_series, near = 400, 0
    for _ in range(num_series):
        steps = analyze_series(noisy(rng, [1.5] * at + [1.5 * 1.06] * (20 - at))).steps
        near += len(steps) == 1 and abs(steps[0].run_index - at) <= 1
    # 600 series: 86, 82 and 89 in 100, each +- 2 if 400 are drawn.
    assert near / num_series >= {5: 0.79, 10: 0.73, 16: 0.82}[at]


def test_a_clear_step_is_found_with_its_levels_and_change():
    analysis = analyze_series([2.0, 2.01, 1.99, 2.0, 2.0, 1.0, 1.01, 0.99, 1.0, 1.0])
    (step,) = analysis.steps
    assert step.run_index == 5
    assert (step.before, step.after) == pytest.approx((2.0, 1.0))
    assert step.change == pytest.approx(-0.5)
    assert step.p_value <= SIGNIFICANCE
    assert analysis.trend is None


def test_two_steps_of_a_series_are_both_found():
    rng = np.random.default_rng(3)
    steps = analyze_series(noisy(rng, [1.0] * 10 + [1.3] * 10 + [1.1] * 10)).steps
    assert [step.run_index for step in steps] == [10, 20]
    assert steps[0].after == steps[1].before == pytest.approx(1.3, rel=0.02)


@pytest.mark.slow
def test_a_drift_is_a_trend_and_not_a_step():
    rng = np.random.default_rng(5)
    series = [analyze_series(noisy(rng, np.linspace(1.0, 1.25, 24))) for _ in range(300)]
    assert sum(bool(s.steps) for s in series) <= 15
    assert sum(s.trend is not None for s in series) >= 285
    assert series[0].trend.slope == pytest.approx(0.25 / 23, rel=0.35)


@pytest.mark.slow
def test_a_step_is_not_reported_as_a_trend():
    rng = np.random.default_rng(6)
    series = [analyze_series(noisy(rng, [1.0] * 12 + [1.15] * 12)) for _ in range(300)]
    assert sum(len(s.steps) == 1 for s in series) >= 255
    assert sum(s.trend is not None for s in series) <= 15


def test_short_and_constant_series_have_no_change_point():
    assert analyze_series([1.0, 1.0, 1.0, 5.0, 5.0, 5.0, 5.0]) == ((), None)
    assert MIN_RUNS == 8
    assert analyze_series([1.0, 1.0, 1.0, 1.0, 5.0, 5.0, 5.0, 5.0]).steps[0].run_index == 4
    assert analyze_series([2.5] * 30) == ((), None)
    assert analyze_series([]) == ((), None)


@pytest.mark.parametrize("num_runs", [12, 40])
def test_a_change_point_needs_three_runs_on_either_side(num_runs):
    """Two outliers are not a level, however clear: no step begins or ends with fewer than three."""
    for odd, is_level in ((1, False), (2, False), (3, True)):
        late = [2.0] * (num_runs - odd) + [1.0] * odd
        for series, at in ((late, num_runs - odd), (late[::-1], odd)):
            places = [step.run_index for step in analyze_series(series).steps]
            assert (at in places) is is_level
            assert all(3 <= place <= num_runs - 3 for place in places)
    # Two levels of three need six runs: a part is too short to split again.
    assert [s.run_index for s in analyze_series([2.0] * 3 + [1.0] * 5).steps] == [3]


def test_a_series_without_noise_has_its_step_at_the_change():
    (step,) = analyze_series([2.5] * 9 + [2.4] * 9).steps
    assert (step.run_index, step.before, step.after) == pytest.approx((9, 2.5, 2.4))


def test_the_smallest_permutation_p_value_is_1_in_1000():
    assert analyze_series([2.5] * 9 + [2.4] * 9).steps[0].p_value == pytest.approx(1 / 1000)


def test_permutations_that_tie_up_to_rounding_are_counted():
    exact, rounded = (analyze_series([3 * unit] * 3 + [unit] * 5).steps[0] for unit in (1.0, 0.1))
    assert exact.p_value == rounded.p_value


def test_change_points_of_a_staircase_are_found_in_either_direction():
    levels = [1.0] * 10 + [2.0] * 10 + [2.4] * 10 + [2.6] * 10
    for series in (levels, levels[::-1]):
        assert [step.run_index for step in analyze_series(series).steps] == [10, 20, 30]


def test_change_points_are_deterministic_and_independent_of_scale():
    rng = np.random.default_rng(9)
    series = noisy(rng, [1.0] * 8 + [1.05] * 8)
    assert analyze_series(series) == analyze_series(series)
    scaled = analyze_series(series * 1000)
    assert [s.run_index for s in scaled.steps] == [
        s.run_index for s in analyze_series(series).steps
    ]


def test_the_reported_rates_are_the_simulated_ones():
    root = Path(__file__).parents[2]
    simulated = json.loads((root / "benchmarks" / "change_points.json").read_text())
    page = (root / "docs" / "history.md").read_text()
    for row in simulated["false_alarms"]:
        assert f"{row['steps']:.1%}, {row['trends']:.1%}" in page
        assert row["steps"] <= SIGNIFICANCE + 0.01
    for row in simulated["power"]:
        assert f"{row['found']:.0%}" in page
