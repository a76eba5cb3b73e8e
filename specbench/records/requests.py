"""What is decoded: one request, at a decoder in this process or at a server."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from specbench.records.prompts import Message, Sampling

_GREEDY = Sampling()


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One prompt to decode: token ids here, or messages at a server with a chat template.

    Without `stop_at_eos` exactly `max_new_tokens` are emitted.
    """

    prompt_ids: tuple[int, ...] = ()
    messages: tuple[Message, ...] = ()  # all up to this turn
    tools: tuple[Mapping[str, Any], ...] = ()
    template_args: Mapping[str, Any] = field(default_factory=dict)
    max_new_tokens: int
    sampling: Sampling = _GREEDY
    seed: int = 0
    stop_at_eos: bool = True
    conversation: str | None = None  # a later request of the same one waits for the earlier
    # When it comes in, seconds since the pass began; None: when a row is free, or as a later turn.
    at_s: float | None = None
    prediction_ids: tuple[int, ...] = ()  # a text that the answer may resemble
    is_sample: bool = False  # one of several answers to its prompt, which share its prefill
    keeps_prefixes: bool = False  # whether a server may find it in its prefix cache
    # What its record is filed under.
    prompt_id: str = ""
    turn: int = 0
    repeat: int = 0
    sample: int = 0

    @property
    def num_tokens(self) -> int:
        """Prompt and output together, at most."""
        return len(self.prompt_ids) + self.max_new_tokens
