"""What follows from it: intervals, summaries, decisions."""

from collections.abc import Mapping
from dataclasses import dataclass

from specbench.records.measured import CellKey
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
    """The answer for one target, workload and setting."""

    target: str
    pairing: str
    workload: str
    engine: str
    concurrency: int
    temperature: float
    dtype: str
    method: str  # NO_DRAFTER: do not speculate, or not shown to help
    num_speculative_tokens: int
    speedup: Interval | None
    sentence: str
    reasons: tuple[str, ...]
