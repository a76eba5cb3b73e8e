"""Percentiles, where there is enough to tell them from the largest value."""

from collections.abc import Sequence
from statistics import quantiles

ENOUGH_FOR_P95 = 20


def p95(values: Sequence[float]) -> float | None:
    """The 95th percentile (Hyndman and Fan 1996, type 7); None below 20 values."""
    if len(values) < ENOUGH_FOR_P95:
        return None
    return quantiles(values, n=20, method="inclusive")[-1]
