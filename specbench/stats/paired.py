"""Ratios of costs that were measured in pairs, such as rounds at two K in the same repetition."""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specbench.stats.intervals import LogRatio
from specbench.stats.spread import MIN_UNITS, of_mean

_FAR_OFF = 5.0  # standard deviations of the pairs' log ratios, told from their median
_NEAR = math.log(1.1)  # and no pair within a tenth is far off


def paired_log_ratio(numerators: ArrayLike, denominators: ArrayLike) -> LogRatio:
    """log(mean cost / other mean cost): of sums, as the speed-up of a sweep is, not of ratios.

    Pairs whose ratio is far off are left out: something else ran then (Hampel 1974, The influence
    curve and its role in robust estimation). Standard error: of the ratio's linear part (delta
    method).
    """
    over = np.asarray(numerators, dtype=np.float64)
    under = np.broadcast_to(np.asarray(denominators, dtype=np.float64), over.shape)
    is_near = _is_near(np.log(over / under))
    over, under = over[is_near], under[is_near]
    return LogRatio(
        log=math.log(over.mean()) - math.log(under.mean()),
        spread=of_mean(over / over.mean() - under / under.mean()),
        num_prompts=len(over),
    )


def _is_near(logs: NDArray[np.float64]) -> NDArray[np.bool_]:
    """All but those far from the median; of few pairs nobody can tell."""
    if len(logs) < MIN_UNITS:
        return np.ones(len(logs), dtype=bool)
    distance = np.abs(logs - np.median(logs))
    deviation = 1.4826 * np.median(distance)  # of normal errors, from the median distance
    return np.asarray(distance <= max(_FAR_OFF * deviation, _NEAR))
