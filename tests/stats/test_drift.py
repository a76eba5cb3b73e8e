"""The detector of a new level: false alarms, delay, and where the change began."""

import numpy as np
import pytest

from specbench.stats.change_points import MIN_RUNS
from specbench.stats.drift import DriftDetector

STREAMS = 40

VALUES = 1_000  # per stream


def alarms(values):
    detector = DriftDetector()
    return [(i, drift) for i, v in enumerate(values) if (drift := detector.add(v)) is not None]


def moving_average(rng, width, num_values=VALUES):
    """Values that correlate with those up to `width` - 1 places away."""
    noise = rng.normal(0, 1, num_values + width - 1)
    return 3.0 + 0.4 * np.convolve(noise, np.full(width, width**-0.5), "valid")


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("shape", ["normal", "skewed", "rare", "alike over 3"])
def test_streams_without_a_change_have_hardly_an_alarm(shape):
    """At 1%, more than 3 of 40 streams have an alarm in 1 of 1,500 seeds."""
    rng = np.random.default_rng(7)
    draw = {
        "normal": lambda: rng.normal(3.0, 0.4, VALUES),
        "skewed": lambda: 1 + rng.gamma(4.0, 0.5, VALUES),
        "rare": lambda: 1 + rng.poisson(0.5, VALUES) / 10,
        "alike over 3": lambda: moving_average(rng, 4),
    }[shape]
    num_alarmed = sum(bool(alarms(draw())) for _ in range(STREAMS))
    print(f"{shape}: {num_alarmed} of {STREAMS} streams")
    assert num_alarmed <= 3


def test_most_streams_whose_values_correlate_over_12_neighbors_have_no_alarm():
    """One in ten looks like a change before that shows, mostly within 250 values. If values counted
    in full, all would have an alarm. Standard error of the share: 5%, at any length."""
    rng = np.random.default_rng(7)
    num_alarmed = sum(bool(alarms(moving_average(rng, 13, 250))) for _ in range(STREAMS))
    print(f"{num_alarmed} of {STREAMS} streams")
    assert num_alarmed <= 10


@pytest.mark.parametrize("sign", [1, -1])
def test_a_large_change_is_found_soon_and_at_its_place(sign):
    rng = np.random.default_rng(3)
    delays, errors = [], []
    for _ in range(100):
        values = rng.normal(3.0, 0.3, 60)
        values[40:] += sign * 1.2
        (at, drift), *more = alarms(values)
        assert not more
        assert (drift.after > drift.before) == (sign > 0)
        delays.append(at - 39)
        errors.append(abs(drift.index - 40))
    print(f"found after {np.median(delays)} values, {max(delays)} at most")
    assert np.quantile(delays, 0.9) <= 7
    assert np.quantile(errors, 0.9) <= 1


def test_the_new_level_is_the_next_one_to_compare_with():
    rng = np.random.default_rng(5)
    values = np.concatenate([rng.normal(m, 0.2, 40) for m in (3.0, 1.5, 3.0)])
    found = [drift for _, drift in alarms(values)]
    assert len(found) == 2
    assert [drift.index for drift in found] == pytest.approx([40, 80], abs=1)
    assert found[0].after == pytest.approx(1.5, abs=0.2)
    assert found[-1].after == pytest.approx(3.0, abs=0.2)


def test_equal_values_and_too_few_of_them_are_no_change():
    assert not alarms([1.0] * 50)
    assert not alarms([1.0] * (MIN_RUNS - 2) + [9.0])


def test_streams_without_noise_change_by_more_than_a_little():
    assert not alarms([3.0] * 20 + [3.03] * 20)
    ((_, drift),) = alarms([3.0] * 20 + [1.0] * 20)
    assert (drift.index, drift.before, drift.after) == (20, 3.0, 1.0)


def test_one_outlier_is_no_change():
    values = np.random.default_rng(1).normal(3.0, 0.2, 40)
    values[30] = 30.0
    assert not alarms(values)
