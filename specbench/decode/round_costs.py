"""What a round costs in seconds for each number of rows and each K: measured, then followed."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from math import exp, log
from statistics import fmean, median
from typing import NamedTuple

_PACE_GAIN = 0.05  # the machine's pace is a mean over about 20 rounds
_LARGEST_SURPRISE = 0.2  # of log seconds: a round of three times the time counts as one of 1.2
_FRESH_ROUNDS = 8  # rounds after a change of K that tell how the two K differ
_STEADY_ROUNDS = 8  # over as many rows before that, so that the pace is theirs
_LONGEST_RECORD = 50  # rounds: what a cell has learnt weighs at most this much


class CatchUp(NamedTuple):
    """Seconds a drafter takes to read the tokens that it missed in K = 0 rounds."""

    fixed_s: float = 0.0
    per_token_s: float = 0.0  # of each row


class _Cell:
    """One (rows, K): seconds at calibration, corrected against the cells run beside it."""

    def __init__(self, samples: Sequence[float]) -> None:
        self.seconds = median(samples)
        self.num_seen = len(samples)


class RoundCosts:
    """Seconds of a round, by (rows, K), on a machine whose speed drifts.

    A time is split into the machine's pace, common to all cells, and the cell's own seconds. A
    round soon after a change of K corrects that K; every round moves the pace. So a K that is not
    run goes on being compared fairly with the one that is. A change of rows corrects nothing: K
    is chosen among cells of the same rows, and rows that come and go would wear out one K.
    """

    def __init__(self, cells: Mapping[tuple[int, int], Sequence[float]], catch_up: CatchUp) -> None:
        self._cells = {key: _Cell(samples) for key, samples in cells.items()}
        self._rows = sorted({rows for rows, _ in cells})
        self._catch_up = catch_up
        self._pace = 1.0
        self._last: tuple[int, int] | None = None
        self._rounds_at_k = 0
        self._rounds_at_rows = _STEADY_ROUNDS

    @classmethod
    def from_samples(
        cls,
        round_s: Mapping[tuple[int, int], Sequence[float]],
        *,
        catch_up_s: Sequence[tuple[int, float]] = (),
    ) -> "RoundCosts":
        """Costs from a calibration: `round_s[num_rows, k]` holds the seconds of a few rounds.

        `catch_up_s` holds (tokens a row is behind, seconds); a line is fitted, and none means
        that catching up is free.
        """
        return cls(round_s, _line(catch_up_s))

    def round_s(self, num_rows: int, k: int) -> float:
        """Seconds of a round now; between two measured numbers of rows they lie on a line."""
        return self._seconds(num_rows, k) * self._pace

    def catch_up_s(self, num_tokens: int) -> float:
        """Seconds to read `num_tokens` tokens a row; 0 for none."""
        if not num_tokens:
            return 0.0
        return (self._catch_up.fixed_s + self._catch_up.per_token_s * num_tokens) * self._pace

    def observe(self, num_rows: int, k: int, seconds: float) -> None:
        """Learn from one round's seconds; an outlier moves nothing far."""
        surprise = log(seconds / self.round_s(num_rows, k))
        surprise = min(max(surprise, -_LARGEST_SURPRISE), _LARGEST_SURPRISE)
        last_rows, last_k = self._last or (num_rows, k)
        if num_rows != last_rows:
            self._rounds_at_rows, self._rounds_at_k = 0, _FRESH_ROUNDS
        elif k == last_k:
            self._rounds_at_k += 1
        else:
            self._rounds_at_k = 0 if self._rounds_at_rows >= _STEADY_ROUNDS else _FRESH_ROUNDS
        self._rounds_at_rows += 1
        cell = self._cells.get((num_rows, k))
        if cell is not None and self._last is not None and self._rounds_at_k < _FRESH_ROUNDS:
            cell.num_seen = min(cell.num_seen + 1, _LONGEST_RECORD)
            cell.seconds *= exp(surprise / cell.num_seen)
        self._pace *= exp(_PACE_GAIN * surprise)
        self._last = (num_rows, k)

    def _seconds(self, num_rows: int, k: int) -> float:
        at = bisect_left(self._rows, num_rows)
        if at == len(self._rows) or self._rows[at] == num_rows or at == 0:
            return self._cells[self._rows[min(at, len(self._rows) - 1)], k].seconds
        below, above = self._rows[at - 1], self._rows[at]
        less, more = self._cells[below, k].seconds, self._cells[above, k].seconds
        return less + (more - less) * (num_rows - below) / (above - below)


def _line(points: Sequence[tuple[int, float]]) -> CatchUp:
    """Least squares through (tokens, seconds), neither part below zero."""
    if not points:
        return CatchUp()
    mean_x, mean_y = fmean(x for x, _ in points), fmean(y for _, y in points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0
    slope = min(max(slope, 0.0), mean_y / mean_x)
    return CatchUp(mean_y - slope * mean_x, slope)
