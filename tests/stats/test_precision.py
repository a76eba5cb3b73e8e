import math

import numpy as np
import pytest

from specbench.records import Interval
from specbench.stats.intervals import LogRatio, speedup_interval, speedup_ratio, student_t
from specbench.stats.precision import prompts_for_half_width, prompts_to_decide

PILOT = LogRatio(log=0.0, standard_error=0.05, degrees_of_freedom=9.0, num_prompts=10)
UNDECIDED = Interval(estimate=1.03, low=0.98, high=1.08)


def test_the_answer_is_the_least_number_of_prompts_that_is_narrow_enough():
    n = prompts_for_half_width(PILOT, 0.02)

    def half_width(num_prompts: int) -> float:
        spread = 0.05 * math.sqrt(10)
        return student_t(num_prompts - 1, 0.975) * spread / math.sqrt(num_prompts)

    assert half_width(n) <= math.log(1.02) < half_width(n - 1)


def test_a_steady_pilot_still_needs_enough_prompts_for_an_interval():
    steady = LogRatio(log=0.7, standard_error=0.0, degrees_of_freedom=9.0, num_prompts=10)
    assert prompts_for_half_width(steady, 0.02) == 5


def test_a_pilot_without_a_spread_is_refused():
    with pytest.raises(ValueError, match="5 prompts, not 3"):
        prompts_for_half_width(speedup_ratio([1, 1, 1], [1, 1, 1]), 0.02)


def test_the_promised_width_is_kept():
    """Simulated: pilots of 20 prompts promise 10 %; the median run is within a fifth of it."""
    rng = np.random.default_rng(0)
    widths = []
    for _ in range(300):
        base, slower = rng.lognormal(0.0, 0.3, (2, 20))
        n = prompts_for_half_width(speedup_ratio(base, base * slower), 0.10)
        base, slower = rng.lognormal(0.0, 0.3, (2, n))
        measured = speedup_interval(base, base * slower)
        assert measured.low is not None
        widths.append(measured.estimate / measured.low - 1)
    assert np.median(widths) == pytest.approx(0.10, rel=0.2)


def test_more_prompts_decide_once_the_lower_bound_would_clear_the_bar():
    more = prompts_to_decide(UNDECIDED, 8, helps_above=1.01, nothing_below=1.02)
    # The half-width must shrink from 4.9 % to 2.0 %: about (4.9 / 2.0)^2 = 6 times 8 prompts,
    # fewer because Student's t shrinks too.
    assert 25 < more < 40


def test_more_prompts_decide_once_the_upper_bound_would_fall_to_no_gain():
    hurting = Interval(estimate=0.97, low=0.90, high=1.045)
    more = prompts_to_decide(hurting, 8, helps_above=1.01, nothing_below=1.02)
    assert 1 <= more <= 8  # from 7.5 % to 5 %


def test_an_estimate_between_the_bars_is_decided_in_the_end():
    between = Interval(estimate=1.015, low=0.97, high=1.06)
    assert prompts_to_decide(between, 8, helps_above=1.01, nothing_below=1.02) > 100


def test_without_an_interval_the_answer_is_what_an_interval_needs():
    none = Interval(estimate=1.3, low=None, high=None)
    assert prompts_to_decide(none, 3, helps_above=1.01, nothing_below=1.02) == 2
