"""What is asked: messages, prompts, and how tokens are picked."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """One chat message; `extra` holds further template fields (tool_calls, name ...)."""

    role: Role
    content: str
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """One unit of a workload: a conversation of one or more turns.

    Each turn is the messages appended before the model answers; the next turn follows the
    model's own answer. Intervals resample prompts, never turns or rounds. `predictions` are
    texts that the answers may resemble, one a turn where there are any, None where unknown.
    """

    id: str
    turns: tuple[tuple[Message, ...], ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    template_args: Mapping[str, Any] = field(default_factory=dict)
    request_settings: Mapping[str, Any] = field(default_factory=dict)  # asked for, and not applied
    category: str = ""
    predictions: tuple[str | None, ...] = ()


def ids_sha256(ids: Iterable[int]) -> str:
    """The first digits of a hash of a prompt's token ids."""
    return hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()[:12]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """How the target picks tokens. temperature 0 is greedy; top_k 0 and top_p 1 are off."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
