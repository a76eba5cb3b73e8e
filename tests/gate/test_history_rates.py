"""What `history` says of accidents is a fixed 5 %, and no distribution or length exceeds it."""

import re

import numpy as np
import pytest

from specbench.gate.history import history
from specbench.records import Interval
from specbench.stats.change_points import SIGNIFICANCE, course
from tests.gate.test_history import STEPPED, cell, run, runs
from tests.stats.test_change_points import noisy


@pytest.mark.slow
def test_pooled_over_lengths_and_distributions_noise_steps_in_5_percent_at_most():
    """1,800 series know a rate of 5 % to 0.5 %; docs/history.md and `false_alarms` say 5 %."""
    assert SIGNIFICANCE == 0.05
    steps, trends, num_series = 0, 0, 200
    for num_runs in (8, 12, 20):
        for shape in ("normal", "heavy", "skewed"):
            rng = np.random.default_rng([num_runs, ord(shape[0])])
            for _ in range(num_series):
                found = course(noisy(rng, np.full(num_runs, 1.5), shape))
                steps += bool(found.steps)
                trends += found.trend is not None
    most = 0.05 + 3 * (0.05 * 0.95 / (9 * num_series)) ** 0.5
    assert steps / (9 * num_series) <= most
    assert trends / (9 * num_series) <= 0.05


def test_an_end_to_end_speedup_has_its_own_interval():
    from dataclasses import replace

    own = Interval(estimate=1.2, low=1.15, high=1.25)
    both = replace(cell(1.2, metric="end_to_end_speedup"), speedup_end_to_end=own)
    (series,) = history([run(1, both)], ["end_to_end_speedup"]).series
    assert (series.points[0].low, series.points[0].high) == (1.15, 1.25)


def test_of_ten_series_half_a_one_steps_by_accident():
    found = history(runs([1.5, 1.6] * 5), ["decode_speedup"])
    assert len(found.series) == 1
    assert re.search(r"of 1 series .*\b0\.1 ", found.false_alarms)
    assert history(runs(STEPPED[:4]), ["decode_speedup"]).false_alarms.startswith("no series has")


def test_runs_of_drifting_machines_are_not_exchangeable():
    """Negative control: a random walk is what the test does not hold for, and it shows."""
    rng = np.random.default_rng(0)
    walks = [1.5 + 0.02 * np.cumsum(rng.normal(size=20)) for _ in range(100)]
    found = [course(walk) for walk in walks]
    assert sum(bool(one.steps) or one.trend is not None for one in found) > 50


def test_a_step_before_a_larger_one_is_found():
    rng = np.random.default_rng(3)
    steps = course(noisy(rng, [1.0] * 10 + [1.15] * 10 + [1.8] * 10)).steps
    assert [step.run_index for step in steps] == [10, 20]
