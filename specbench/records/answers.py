"""What follows from it: intervals, summaries, decisions."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from specbench.records.keys import CellKey, Condition, Draft
from specbench.stats.interval import Interval


@dataclass(frozen=True, kw_only=True, slots=True)
class CellSummary:
    """A cell after analysis: its metrics, its validity and its speed-up."""

    key: CellKey
    valid: bool
    invalid_reasons: tuple[str, ...]
    num_prompts: int
    num_requests: int
    metrics: Mapping[str, float | tuple[float, ...]]
    speedup: Interval | None  # decode_speedup; None for K = 0
    speedup_end_to_end: Interval | None = None
    minimum_detectable_effect: float | None = None
    warnings: tuple[str, ...] = ()  # worth a second look, yet no reason to call it invalid


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """The answer for one pairing under one condition."""

    leader: CellKey  # the cell that it speaks of, also where the answer is not to use it
    draft: Draft  # what to use: the leader's; of no method at K = 0, or not shown to help
    speedup: Interval | None
    sentence: str
    reasons: tuple[str, ...]
    warnings: tuple[str, ...] = ()  # about the measurement that the sentence quotes

    @property
    def reasons_and_warnings(self) -> tuple[str, ...]:
        """Where no list of all warnings stands beside it."""
        return (*self.reasons, *self.warnings)

    @property
    def condition(self) -> Condition:
        return self.leader.condition

    @property
    def key(self) -> CellKey:
        """The cell to use, which at K = 0 is called by the pairing that was asked about."""
        return replace(self.leader, draft=self.draft)
