"""The plan that follows from one timed session."""

from specbench.bench.served.trial import TrialTimes
from specbench.stats.spread import MIN_UNITS

TIMES = TrialTimes(start_s=2.0, prompt_s=0.5)


def test_the_first_cycle_takes_its_share_of_the_budget():
    # A quarter of 400 s are 10 sessions of 10 s: 8 s for prompts.
    assert TIMES.num_prompts(400.0, 10, most=20) == 16
    assert TIMES.num_prompts(400.0, 10, most=12) == 12
    assert TIMES.num_prompts(40.0, 10, most=12) == MIN_UNITS


def test_the_least_time_has_one_cycle_of_all_and_two_passes_of_one_k():
    session_s = TIMES.session_s(6)
    assert session_s == 5.0
    # The first cycle, then K = 0 and one K up and down: once more, and twice to confirm it.
    assert TIMES.least_s(6, 10) == (10 + 3 * 4) * session_s
    assert TIMES.longest_s(6, 10) == 12 * (10 + 4) * session_s
