"""The size, such as a context length, at which a falling ratio, such as a speedup, reaches 1."""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from specbench.stats.summaries import Interval

# Sizes, rising, each with a ratio.
Curve = Sequence[tuple[float, float]]


def falls_below_1(curve: Curve) -> Iterator[float]:
    """The sizes at which a straight line of log ratio over log size falls below 1."""
    logs = [(math.log(size), math.log(ratio)) for size, ratio in curve]
    for (x, above), (next_x, below) in pairwise(logs):
        if above >= 0 > below:
            yield math.exp(x + (next_x - x) * above / (above - below))


def break_even(curve: Sequence[tuple[float, Interval]]) -> Interval | None:
    """The size at which the estimate first falls below 1, with its 95% interval.

    The interval has the sizes at which the ratio is not shown to differ from 1: from the first at
    which its lower bound is 1 to the last at which its upper bound is. Between measured sizes the
    bounds are on straight lines. That is at least as wide as the interval of the interpolated
    ratio, however the errors of its ends are correlated, because the standard error of a weighted
    sum is at most the weighted sum of the standard errors.

    A bound beyond the measured sizes is None: a gain is not shown at the smallest one, or a loss
    not at the largest. Sizes without an interval only count if all are without one. None if the
    estimate does not fall below 1 between two sizes.
    """
    ratios = [(size, ratio) for size, ratio in curve if ratio.low is not None] or curve
    estimate = next(falls_below_1([(size, ratio.estimate) for size, ratio in ratios]), None)
    if estimate is None:
        return None
    lows = [(size, ratio.low) for size, ratio in ratios if ratio.low is not None]
    highs = [(size, ratio.high) for size, ratio in ratios if ratio.high is not None]
    is_gain_shown = bool(lows) and lows[0][1] >= 1
    is_loss_shown = bool(highs) and highs[-1][1] < 1
    return Interval(
        estimate=estimate,
        low=next(falls_below_1(lows)) if is_gain_shown else None,
        high=[*falls_below_1(highs)][-1] if is_loss_shown else None,
    )
