"""The interval of a break-even covers the truth, and a flat curve has none.

Prompts differ in length (lognormal, sigma 0.6) and in how much speculation helps them (sigma 0.3),
alike at every context length to the given share. Accepted: 92% or more of 500 runs; coverage of
95% falls below that in fewer than 1 of 100 seeds. Observed: 93 to 100%.
"""

import math

import numpy as np
import pytest

from specbench.stats.intervals import break_even, falls_below_1, interval, speedup_ratio
from specbench.stats.summaries import Interval

RUNS = 500
SIZES = (512, 4_096, 16_384, 65_536)
SIGMA = 0.3


def falling(at, size):
    """A speedup of 1 at `at`, which loses 16% per doubling."""
    return (at / size) ** 0.25


def bent(at, size):
    """A curve between the measured sizes: acceptance decays, and reading the cache costs."""

    def speedup(x):
        return (1 + 2.5 * 0.9 ** math.log2(x / 512)) / (1.3 + x / 60_000)

    return speedup(size) / speedup(at)


def measured(rng, n, speedup, shared):
    """Sizes with the interval of their speedup, over the same n prompts."""
    base_s = 2 * rng.lognormal(0.0, 0.6, n)
    common = rng.normal(size=n)
    curve = []
    for size in SIZES:
        error = math.sqrt(shared) * common + math.sqrt(1 - shared) * rng.normal(size=n)
        slower = np.exp(SIGMA * error - SIGMA**2 / 2)
        curve.append((size, interval(speedup_ratio(base_s, base_s * slower / speedup(size)))))
    return curve


def point(size, low, estimate, high):
    return size, Interval(estimate=estimate, low=low, high=high)


def narrowed(curve):
    """Negative control: bounds at half their distance."""

    def half(bound, estimate):
        return math.sqrt(bound * estimate)

    return [
        point(size, half(s.low, s.estimate), s.estimate, half(s.high, s.estimate))
        for size, s in curve
    ]


def coverage(n, shape, truth, shared, change=lambda curve: curve):
    rng = np.random.default_rng(n)
    hits = []
    for _ in range(RUNS):
        curve = measured(rng, n, lambda size: shape(truth, size), shared)
        crossing = break_even(change(curve))
        low, high = crossing.low or 0.0, crossing.high or math.inf
        hits.append(low <= truth <= high)
    return np.mean(hits)


@pytest.mark.sampled(one_in=3, every=["n", "shared", "shape", "truth"])
@pytest.mark.slow
@pytest.mark.parametrize("n", [8, 20, 40])
@pytest.mark.parametrize("shared", [0.0, 0.95])
@pytest.mark.parametrize(("shape", "truth"), [(falling, 9_000), (falling, 4_096), (bent, 9_000)])
def test_the_interval_covers_the_truth(n, shape, truth, shared):
    assert coverage(n, shape, truth, shared) >= 0.92


def test_break_even_bounds_at_half_the_distance_lose_coverage():
    assert coverage(20, falling, 4_096, 0.5, narrowed) < 0.8


@pytest.mark.slow
def test_the_break_even_of_the_best_of_three_covers_the_truth():
    """The curve is the one with the highest lower bound at the longest size with a gain."""
    rng, hits = np.random.default_rng(0), []
    for _ in range(RUNS):
        curves = [measured(rng, 20, lambda size: falling(9_000, size), 0.5) for _ in range(3)]
        for i in reversed(range(len(SIZES))):
            best = max(curves, key=lambda curve: curve[i][1].low)
            if best[i][1].low > 1.01:
                break
        crossing = break_even(best)
        hits.append((crossing.low or 0.0) <= 9_000 <= (crossing.high or math.inf))
    assert np.mean(hits) >= 0.92


@pytest.mark.parametrize("level", [0.85, 1.0, 1.2])
def test_a_flat_speedup_has_no_break_even(level):
    """The two bounds need a gain at one end and a loss at the other: at most 2.5% each."""
    rng = np.random.default_rng(0)
    points = [break_even(measured(rng, 8, lambda _: level, 0.5)) for _ in range(RUNS)]
    both = [p for p in points if p and p.low is not None and p.high is not None]
    assert len(both) / RUNS <= 0.01


def test_a_ratio_of_1_is_where_the_curve_crosses():
    assert [*falls_below_1([(500, 2.0), (1_000, 1.0), (4_000, 0.5)])] == [pytest.approx(1_000)]


def test_each_bound_crosses_on_its_own_line():
    crossing = break_even([point(1_000, 1.25, 2.0, 4.0), point(16_000, 0.2, 0.5, 0.8)])

    def crossing_between(first, last):
        return 1_000 * 16 ** (math.log(first) / math.log(first / last))

    assert crossing.estimate == pytest.approx(4_000)
    assert crossing.low == pytest.approx(crossing_between(1.25, 0.2))
    assert crossing.high == pytest.approx(crossing_between(4.0, 0.8))


def test_a_break_even_bound_outside_the_measured_range_is_unknown():
    gain, loss = point(1_000, 1.2, 1.5, 2.0), point(4_000, 0.2, 0.5, 0.8)
    assert break_even([point(1_000, 0.9, 1.5, 2.0), loss]).low is None
    assert break_even([gain, point(4_000, 0.5, 0.9, 1.1)]).high is None
    assert break_even([gain, point(4_000, 1.1, 1.2, 1.3)]) is None


def test_the_break_even_interval_covers_a_curve_that_rises_again():
    crossing = break_even(
        [
            point(1_000, 1.2, 1.3, 1.4),
            point(2_000, 0.8, 0.9, 0.95),
            point(4_000, 1.1, 1.2, 1.3),
            point(8_000, 0.4, 0.5, 0.6),
        ]
    )
    assert 1_000 < crossing.low < crossing.estimate < 2_000
    assert 4_000 < crossing.high < 8_000


def test_without_intervals_there_is_only_an_estimate():
    crossing = break_even([point(1_000, None, 2.0, None), point(4_000, None, 0.5, None)])
    assert crossing == Interval(estimate=pytest.approx(2_000), low=None, high=None)
    # A size with an interval takes precedence over one without.
    assert break_even([point(1_000, 1.2, 2.0, 3.0), point(4_000, None, 0.5, None)]) is None
