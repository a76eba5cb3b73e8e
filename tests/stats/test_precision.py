import math

from specbench.stats.crossed import NO_PROMPTS, SessionNoise, more_prompts_for
from specbench.stats.interval import Interval
from specbench.stats.precision import prompts_to_decide
from specbench.stats.spread import Spread, student_t

UNDECIDED = Interval(estimate=1.03, low=0.98, high=1.08)


def test_the_answer_is_the_least_number_of_prompts_that_is_narrow_enough():
    measured = math.log(1.08 / 0.98) / 2
    n = 8 + prompts_to_decide(UNDECIDED, 8, helps_above=1.01, nothing_below=1.02)

    def half_width(num_prompts: int) -> float:
        spread = measured / student_t(7, 0.975) * math.sqrt(8)
        return student_t(num_prompts - 1, 0.975) * spread / math.sqrt(num_prompts)

    assert half_width(n) <= math.log(1.03 / 1.01) < half_width(n - 1)


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


def test_more_prompts_of_a_server_are_the_fewest_whose_spread_is_small_enough():
    prompts = Spread(standard_error=0.2 / math.sqrt(5), degrees_of_freedom=4.0)
    noise = SessionNoise(cycle_sd=0.0, prompts=prompts)

    def half_width(num_prompts: int) -> float:
        return student_t(num_prompts - 1, 0.975) * 0.2 / math.sqrt(num_prompts)

    n = 5 + more_prompts_for(noise, 4, 5, 0.1)
    assert half_width(n) <= 0.1 < half_width(n - 1)


def test_no_number_of_prompts_makes_up_for_cycles_that_differ():
    noise = SessionNoise(cycle_sd=0.2, prompts=NO_PROMPTS)
    assert more_prompts_for(noise, 4, 5, 0.01) is None
