"""A verdict, and what it rests on; no torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from specbench.verify.evidence import Distance, Divergence, Subject
from specbench.verify.statistics import Detectable

Verdict = Literal[
    "identical",
    "near_tie",
    "matches_distribution",
    "matches_baseline",
    "mismatch",
    "lossy",
    "inconclusive",
    "failed",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """The verdict about one pairing at one K and temperature, and what it rests on.

    `p_value` is adjusted for all tests of the call; `p_values` are as they came.
    """

    subject: Subject
    verdict: Verdict
    reason: str
    num_tokens: int = 0
    num_prompts: int | None = None
    match_rate: float | None = None
    first_divergence: Divergence | None = None
    p_value: float | None = None
    p_values: Mapping[str, float] = field(default_factory=dict)
    control_p_value: float | None = None
    detectable: Detectable | None = None
    divergences: tuple[Divergence, ...] = ()
    distances: tuple[Distance, ...] = ()
    unseen: str = ""  # why the target's logits were not looked at
    rule: str | None = None  # by which a serving engine accepts drafts

    @property
    def lossless(self) -> bool | None:
        """None where nothing is shown."""
        if self.verdict in ("inconclusive", "failed"):
            return None
        return self.verdict not in ("mismatch", "lossy")

    @property
    def farthest(self) -> Distance | None:
        """Where sampled tokens are farthest from what they should be, chance set aside."""
        return max(self.distances, key=lambda d: d.total_variation - d.floor, default=None)
