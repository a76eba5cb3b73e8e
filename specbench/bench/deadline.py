"""How much of a time budget is left for exploring and for confirming."""

from collections.abc import Callable
from typing import Literal

Phase = Literal["explore", "confirm"]
EXPLORE_SHARE = 0.8  # the rest measures the winners again, one cell each beside K = 0


class Deadline:
    """A budget in seconds, None for none; earlier sessions of the run spent `spent_s` of it."""

    def __init__(
        self, budget_s: float | None, clock: Callable[[], float], *, spent_s: float = 0.0
    ) -> None:
        self._budget_s = budget_s
        self._clock = clock
        self._began_s = clock() - spent_s

    def seconds_left(self, phase: Phase) -> float | None:
        """Seconds until the phase should end; negative when it is late."""
        if self._budget_s is None:
            return None
        share = EXPLORE_SHARE if phase == "explore" else 1.0
        return self._budget_s * share - self.spent_s

    @property
    def spent_s(self) -> float:
        return self._clock() - self._began_s

    def part(self, share: float) -> "Deadline":
        """The deadline of work that may take this share of the seconds left."""
        left_s = self.seconds_left("confirm")
        return self if left_s is None or share == 1 else Deadline(left_s * share, self._clock)

    def is_over(self, phase: Phase) -> bool:
        left_s = self.seconds_left(phase)
        return left_s is not None and left_s <= 0
