"""The protocol of an engine: it takes requests and yields what happened."""

from dataclasses import dataclass
from typing import Literal, Protocol

from specbench.config import Drafter
from specbench.decoding.tokenizer import Tokenizer
from specbench.records import ModelIdentity, RoundLog, Sampling


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineRequest:
    """One prompt to decode. Without `stop_at_eos` exactly `max_new_tokens` are emitted."""

    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    sampling: Sampling
    seed: int
    stop_at_eos: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineResult:
    """One decoded request; seconds, None where the engine cannot tell."""

    output_ids: tuple[int, ...]
    hit_eos: bool
    prefill_s: float | None
    ttft_s: float | None
    decode_s: float | None
    total_s: float
    cpu_s: float | None
    rounds: RoundLog | None


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundForward:
    """A forward over `num_tokens` tokens a row that a round runs `times` times."""

    role: Literal["target", "drafter"]
    num_tokens: int
    times: int


class Engine(Protocol):
    """A loaded target; drafters are added to it one after the other, so that each one's memory
    can be told."""

    name: str
    dtype: str
    tokenizer: Tokenizer
    eos_ids: tuple[int, ...]
    identity: ModelIdentity  # the target's
    notes: tuple[str, ...]  # what a reader of the results should know

    def add_drafter(self, drafter: Drafter) -> ModelIdentity | None:
        """Load it; its model's identity, None for a method without a model."""

    def remove_drafter(self, name: str) -> None:
        """Give its memory back; a name that was never loaded is no mistake."""

    def generate(self, request: EngineRequest, drafter: str, k: int) -> EngineResult:
        """Decode with the named drafter at K = k; NO_DRAFTER and 0 for the baseline."""
        ...

    def weights_bytes(self, drafter: str) -> int:
        """Weights of the target and the named drafter together (NO_DRAFTER: the target's)."""
        ...

    def kv_bytes_per_token(self, drafter: str) -> int:
        """KV-cache bytes a token of context takes in target and drafter, after a request."""
        ...

    def forwards(self, drafter: str, k: int) -> tuple[RoundForward, ...]:
        """The bare forwards that one round at K = k contains."""
        ...

    def forward_seconds(
        self, drafter: str, forward: RoundForward, context: int, num_samples: int
    ) -> tuple[float, ...]:
        """Seconds of that forward alone, after `context` tokens; one a sample."""
        ...
