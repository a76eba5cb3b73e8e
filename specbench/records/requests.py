"""Prompts and their request settings, sampling, requests of engines, and their arrival times."""

import hashlib
import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """One chat message; `extra` holds further template fields (tool_calls, name ...)."""

    role: Role
    content: str
    extra: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self, *, parses_arguments: bool) -> dict[str, Any]:
        """The message as chat templates take it, with the arguments of tool calls parsed, or else
        as OpenAI's API does, with them as JSON text."""
        fields = {"role": self.role, "content": self.content, **self.extra}
        calls = self.extra.get("tool_calls")
        if isinstance(calls, list | tuple):
            convert = _parsed if parses_arguments else _as_text
            fields["tool_calls"] = [_with_arguments(call, convert) for call in calls]
        return fields


def _with_arguments(call: Any, convert: Callable[[Any], Any]) -> Any:
    """A tool call with its arguments converted; anything else unchanged."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or "arguments" not in function:
        return call
    return {**call, "function": {**function, "arguments": convert(function["arguments"])}}


def _parsed(arguments: Any) -> Any:
    """A JSON object as a mapping; other text unchanged."""
    try:
        parsed = json.loads(arguments)
    except (TypeError, ValueError, RecursionError):
        return arguments
    return parsed if isinstance(parsed, dict) else arguments


def _as_text(arguments: Any) -> Any:
    return (
        json.dumps(arguments, ensure_ascii=False) if isinstance(arguments, Mapping) else arguments
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestSettings:
    """Settings of a prompt's requests, in the words of OpenAI's API except `thinking`."""

    response_format: Mapping[str, Any] | None = None
    stop: tuple[str, ...] = ()  # the answer ends before the first of these strings
    thinking: bool | None = None  # None: the chat template's default
    reasoning_effort: str | None = None
    tool_choice: str | Mapping[str, Any] | None = None
    extra_body: Mapping[str, Any] = field(default_factory=dict)  # more fields for a server

    @property
    def given(self) -> dict[str, Any]:
        """The settings that were given, by name."""
        values = {part.name: getattr(self, part.name) for part in fields(self)}
        return {name: value for name, value in values.items() if value not in (None, (), {})}

    @property
    def template_args(self) -> dict[str, Any]:
        """The settings as arguments of a chat template, which ignores names that it lacks."""
        args: dict[str, Any] = {}
        if self.thinking is not None:
            args = dict.fromkeys(THINKING_ARGS, self.thinking)
        if self.reasoning_effort is not None:
            args["reasoning_effort"] = self.reasoning_effort
        return args

    @property
    def words(self) -> tuple[str, ...]:
        """The settings for people, without long values: `response_format`, `thinking on`."""
        words = {
            "thinking": "thinking on" if self.thinking else "thinking off",
            "reasoning_effort": f"reasoning_effort {self.reasoning_effort}",
        }
        return tuple(words.get(name, name) for name in self.given)


TEMPLATE_SETTINGS = ("thinking", "reasoning_effort")  # arguments of the chat template
THINKING_ARGS = ("enable_thinking", "thinking")  # of Qwen3 and others; of DeepSeek and Granite


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """One unit of a workload: a conversation of one or more turns.

    Each turn is the messages appended before the model answers; the next turn follows the
    model's own answer, or a recorded one if it begins with an assistant message. Intervals
    resample prompts, never turns or rounds. `predictions` are texts that the answers may
    resemble: one per turn, None if unknown, or () without any.
    """

    id: str
    turns: tuple[tuple[Message, ...], ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    template_args: Mapping[str, Any] = field(default_factory=dict)  # those of `settings` included
    settings: RequestSettings = RequestSettings()
    not_applied: tuple[str, ...] = ()  # names of other settings in the file
    category: str = ""
    predictions: tuple[str | None, ...] = ()

    @property
    def text(self) -> str:
        """The contents of all messages, joined."""
        return "".join(message.content for turn in self.turns for message in turn)

    def history(self, turn: int, answers: Sequence[Message]) -> tuple[Message, ...]:
        """The messages before the answer to a turn; `answers` are those to the earlier turns."""
        messages = [*self.turns[0]]
        for answer, later in zip(answers, self.turns[1 : turn + 1], strict=False):
            is_recorded = later[0].role == "assistant"
            messages += later if is_recorded else (answer, *later)
        return tuple(messages)


def ids_sha256(ids: Iterable[int]) -> str:
    """The first digits of a hash of a prompt's token ids."""
    return hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()[:12]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """The sampling of the target's tokens. temperature 0 is greedy; top_k 0 and top_p 1 are off."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0


_GREEDY = Sampling()


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One prompt to decode: token ids here, or messages at a server with a chat template.

    Without `stop_at_eos` exactly `max_new_tokens` are emitted, also past a stop string.
    """

    prompt_ids: tuple[int, ...] = ()
    messages: tuple[Message, ...] = ()  # of all turns so far
    tools: tuple[Mapping[str, Any], ...] = ()
    template_args: Mapping[str, Any] = field(default_factory=dict)
    settings: RequestSettings = RequestSettings()
    max_new_tokens: int
    sampling: Sampling = _GREEDY
    seed: int = 0
    stop_at_eos: bool = True
    conversation: str | None = None  # a later request of the same one waits for the earlier
    # Arrival in seconds since the pass began; None: once a row is free, or a later turn.
    at_s: float | None = None
    prediction_ids: tuple[int, ...] = ()  # a text that the output may resemble
    is_sample: bool = False  # one of several outputs of its prompt, which share its prefill
    keeps_prefixes: bool = False  # whether a server may use its prefix cache
    omitted: tuple[str, ...] = ()  # fields that are not sent, since a server rejects them
    # Keys of its record.
    prompt_id: str = ""
    turn: int = 0
    repeat: int = 0
    sample: int = 0

    @property
    def num_tokens(self) -> int:
        """Prompt and output together, at most."""
        return len(self.prompt_ids) + self.max_new_tokens


def poisson_arrivals(rate: float, seed: int) -> Iterator[float]:
    """Seconds since the first arrival, endlessly; `rate` per second, equal for equal seeds."""
    draw, at_s = random.Random(seed), 0.0
    while True:
        yield at_s
        at_s += draw.expovariate(rate)
