"""Policies that choose K of the next round."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol


class ObservedRound(NamedTuple):
    """The outcome of a round over `num_rows` computed rows, with one entry per live row.

    `num_caught_up`: tokens of a row, emitted at K = 0, that the drafter first saw in it; their time
    is in `seconds`.
    """

    k: int
    num_rows: int
    num_accepted: Sequence[int]
    num_emitted: Sequence[int]
    num_caught_up: int
    seconds: float


class Policy(Protocol):
    """Chooses K round by round, the same for all rows."""

    @property
    def max_k(self) -> int:
        """The largest K that it may choose; rows have capacity for it."""
        ...

    def choose(self, num_rows: int, num_live: int, num_behind: int) -> int:
        """K of the next round over `num_rows` computed rows, `num_live` of them in use.

        The drafter has yet to see the last `num_behind` tokens of a row, at most.
        """
        ...

    def observe(self, ended: ObservedRound) -> None:
        """Take the outcome of a round."""


class FixedK:
    """The same K in every round."""

    def __init__(self, k: int) -> None:
        self.max_k = k

    def choose(self, num_rows: int, num_live: int, num_behind: int) -> int:  # noqa: ARG002
        return self.max_k

    def observe(self, ended: ObservedRound) -> None:
        """Does nothing."""


class ObservedFixedK(FixedK):
    """The same K in every round of one row, and `between` called after each with the number of
    tokens that it emitted: to measure between rounds."""

    def __init__(self, k: int, between: Callable[[int], None]) -> None:
        super().__init__(k)
        self._between = between

    def observe(self, ended: ObservedRound) -> None:
        self._between(ended.num_emitted[0])
