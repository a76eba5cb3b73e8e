"""Detects a new level in a stream of values as they come, without knowing their level before.

The change-point model (Hawkins, Qiu and Kang 2003): at each value, Student's t of the two means at
the best split of all values of the level. Unlike a chart with limits from the first values, it
needs only a few of them before a change.

Values that resemble their neighbors count as fewer: n (1 - r) / (1 + r) of n, with the correlation
r of neighbors within the two levels (Bayley and Hammersley 1946, for an autoregressive stream).
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import stdtr

from specbench.stats.change_points import MIN_LEVEL, MIN_RUNS, split_gains

# Of streams of 1,000 values without a change, at most 1% have an alarm: by simulation of 400, 0% of
# normal values, also if they correlate over 3 neighbors, and 0.3% of Gamma(4) values. Of values
# that correlate over 12 neighbors 10% have one, mostly before the correlation shows.
_SIGNIFICANCE = 1e-6  # of a value; for normal values 1e-5 would do
_LEAST_DEVIATION = 0.02  # relative to the mean: equal values would make any other one an alarm
_MOST = 4_096  # values to look back at
_MOST_ALIKE = 0.97  # correlation of neighbors


@dataclass(frozen=True, kw_only=True, slots=True)
class Drift:
    """A new level, from the value with this index on."""

    index: int
    before: float  # means
    after: float


class DriftDetector:
    """Judges values one by one. After an alarm it begins again with those of the new level."""

    def __init__(self) -> None:
        self._num_past = 0  # values of earlier levels, and those before the last _MOST
        self._level: list[float] = []

    def add(self, value: float) -> Drift | None:
        """The change that this value shows, if any."""
        self._level.append(value)
        n = len(self._level)
        if n < MIN_RUNS:
            return None
        level = np.array(self._level)
        explained = split_gains(level[None])[0]
        at = MIN_LEVEL + int(explained.argmax())
        rest = np.concatenate([part - part.mean() for part in np.split(level, [at])])
        squares = float(rest @ rest)
        alike = (
            min(max(float(rest[1:] @ rest[:-1]) / squares, 0.0), _MOST_ALIKE) if squares else 0.0
        )
        freedom = n * (1 - alike) / (1 + alike) - 2
        if freedom <= 0:
            return None
        squares = max(squares, (n - 2) * (_LEAST_DEVIATION * float(level.mean())) ** 2)
        t = np.sqrt(freedom * explained.max() / squares) if squares else 0.0
        # Twice the tail, for each split (Bonferroni).
        if 2 * float(stdtr(freedom, -t)) * len(explained) < _SIGNIFICANCE:
            self._num_past, self._level = self._num_past + at, self._level[at:]
            before, after = float(level[:at].mean()), float(level[at:].mean())
            return Drift(index=self._num_past, before=before, after=after)
        if n == _MOST:
            self._num_past, self._level = self._num_past + n // 2, self._level[n // 2 :]
        return None
