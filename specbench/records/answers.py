"""What follows from it: intervals, summaries, decisions."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from specbench.records.keys import CellKey, Condition, Draft
from specbench.stats.interval import Interval


@dataclass(frozen=True, kw_only=True, slots=True)
class Goodput:
    """Requests per second within the limits of an SLO, over those of K = 0."""

    limits: str  # such as `ttft=200ms,tpot=20ms`
    ratio: Interval
    minimum_detectable_effect: float | None


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
    goodput: Goodput | None = None  # None: K = 0, or a run without --slo
    warnings: tuple[str, ...] = ()  # worth a second look, yet no reason to call it invalid

    @property
    def as_decided(self) -> "CellSummary":
        """With what decisions compare as its speed-up: the goodput ratio if there is an SLO."""
        if self.goodput is None:
            return self
        effect = self.goodput.minimum_detectable_effect
        return replace(self, speedup=self.goodput.ratio, minimum_detectable_effect=effect)


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """The answer for one pairing under one condition."""

    leader: CellKey  # the cell that it speaks of, also where the answer is not to use it
    draft: Draft  # what to use: the leader's; of no method at K = 0, or not shown to help
    speedup: Interval | None  # of goodput if there is an SLO
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
