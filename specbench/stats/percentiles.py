"""Percentiles, where there is enough to tell them from the largest value."""

from collections.abc import Iterable, Sequence
from statistics import median, quantiles

ENOUGH_FOR_P95 = 20


def p95(values: Sequence[float]) -> float | None:
    """The 95th percentile (Hyndman and Fan 1996, type 7); None below 20 values."""
    if len(values) < ENOUGH_FOR_P95:
        return None
    return quantiles(values, n=20, method="inclusive")[-1]


def median_of(values: Iterable[float | None]) -> float | None:
    """The median of the values that are known; None without one."""
    known = [value for value in values if value is not None]
    return median(known) if known else None
