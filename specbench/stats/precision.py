"""How many prompts, or cycles of a server's sessions, an answer needs."""

import math

from specbench.stats.interval import Interval
from specbench.stats.spread import MIN_UNITS, UPPER, student_t


def prompts_to_decide(
    measured: Interval, num_prompts: int, *, helps_above: float, nothing_below: float
) -> int:
    """How many more prompts would settle it, were the estimate and the spread to stay.

    Settled: the whole interval lies above `helps_above` or below `nothing_below`. Below
    MIN_UNITS: how many more give an interval at all.
    """
    assert helps_above < nothing_below, "else an estimate between them is never settled"
    if measured.low is None or measured.high is None:
        return max(1, MIN_UNITS - num_prompts)
    quantile = student_t(num_prompts - 1, UPPER)
    spread = math.log(measured.high / measured.low) / 2 / quantile * math.sqrt(num_prompts)
    margin = settling_margin(measured.estimate, helps_above, nothing_below)
    return max(1, _prompts_for(spread, margin) - num_prompts)


def settling_margin(estimate: float, helps_above: float, nothing_below: float) -> float:
    """The half width of an interval, of the log, that would settle it: see `prompts_to_decide`."""
    log = math.log(estimate)
    return max(log - math.log(helps_above), math.log(nothing_below) - log)


def _prompts_for(spread: float, half_width: float) -> int:
    """The least n with t(n - 1) * spread / sqrt(n) <= half_width (both of the log ratio)."""
    normal = student_t(math.inf, UPPER)
    # Student's t is above the normal quantile, so counting starts at the normal answer.
    n = max(MIN_UNITS, math.ceil((normal * spread / half_width) ** 2))
    while student_t(n - 1, UPPER) * spread > half_width * math.sqrt(n):
        n += 1
    return n
