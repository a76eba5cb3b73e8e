"""Summaries of many values: an estimate with its interval, a median, a percentile."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Annotated

from specbench.doc import Doc


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """A point estimate with its 95% interval; low and high are None below 5 prompts."""

    estimate: Annotated[float, Doc("the ratio or difference")]
    low: Annotated[float | None, Doc("lower end of the 95% interval; absent: not known")]
    high: Annotated[float | None, Doc("upper end; absent: not known")]


def percentile(values: Sequence[float], percent: int) -> float | None:
    """A percentile (Hyndman and Fan 1996, type 7); None below `num_needed` values."""
    needed = num_needed(percent)
    if len(values) < needed:
        return None
    return quantiles(values, n=needed, method="inclusive")[-1]


def num_needed(percent: int) -> int:
    """The number of values of which one is expected above the percentile: 20 for the 95th."""
    return 100 // (100 - percent)


def median_of(values: Iterable[float | None]) -> float | None:
    """The median of the known values; None if there are none."""
    known = [value for value in values if value is not None]
    return median(known) if known else None
