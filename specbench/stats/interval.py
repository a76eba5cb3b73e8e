"""An estimate with its interval."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """A point estimate with its 95% interval; low and high are None below 5 prompts."""

    estimate: float
    low: float | None
    high: float | None
