"""One streamed answer: what the events of its stream say, and when its tokens came.

Tokens are counted by usage and token ids, never by events: with speculation an event holds
several, and servers merge events and hold back pieces of characters.
"""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

LONGEST_EVENT = 2**24  # bytes
Count = Annotated[int, Field(ge=0)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]


class Payload(BaseModel):
    """A part of what a server says: these fields are of these types, or absent; any other is
    passed over."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


def invalid_field(error: ValidationError) -> str:
    """The first field of another type, and what it should be."""
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


class _ChatDelta(Payload):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


_NOTHING = _ChatDelta()


class _ChatChoice(Payload):
    delta: _ChatDelta | None = None  # of a chat
    text: str | None = None  # of a completion
    token_ids: list[TokenId] | None = None
    finish_reason: str | None = None

    @property
    def said(self) -> str:
        said = self.delta or _NOTHING
        return said.reasoning_content or said.reasoning or said.content or self.text or ""


class _TokenUsage(Payload):
    completion_tokens: Count | None = None
    prompt_tokens: Count | None = None


_NO_CHOICE, _NO_USAGE = _ChatChoice(), _TokenUsage()


class _ChatEvent(Payload):
    """One event of a stream."""

    choices: list[_ChatChoice] | None = None
    usage: _TokenUsage | None = None
    metrics: dict[str, Any] | None = None
    prompt_token_ids: list[TokenId] | None = None


class EventData:
    """The data of server-sent events, out of bytes in whatever pieces they come.

    Lines end with a newline alone: other separators of lines are characters of the answer.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> list[bytes]:
        """The data of all lines that end in this piece; ValueError where one has no end."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if len(self._rest) > LONGEST_EVENT:
            raise ValueError(f"a line of more than {LONGEST_EVENT >> 20} MiB")
        data = (line[5:].strip() for line in lines if line.startswith(b"data:"))
        return [one for one in data if one]


@dataclass(kw_only=True, slots=True)
class Streamed:
    """One streamed answer, or why there is none.

    Times are of `perf_counter`, when what they name came in.
    """

    tells_all_ids: ClassVar[bool] = True  # where it tells any

    sent_s: float = 0.0  # when the request was
    error: str | None = None  # why there is no answer
    is_lost: bool = False  # whether the same request may be answered another time
    text: str = ""
    token_ids: "array[int]" = field(default_factory=lambda: array("i"))  # where the server tells
    num_tokens: int | None = None  # of the whole answer
    num_prompt_tokens: int | None = None
    prompt_ids: Sequence[int] | None = None  # where the server tells
    finish_reason: str | None = None
    is_done: bool = False  # [DONE] came
    metrics: Mapping[str, Any] | None = None  # what the server says of this request
    num_events: int = 0  # with tokens
    first_s: float | None = None  # when the first token came, and those that came with it
    last_s: float | None = None  # when the last token came; an end-of-text token is one
    num_first: int | None = None  # tokens of the first event, where the server tells
    chunk_s: "array[float]" = field(default_factory=lambda: array("d"))  # between those events

    def add(self, said_in_event: Mapping[str, Any]) -> None:
        """Take in what one event of the stream says; pydantic's ValidationError for nonsense.

        An engine that says more, or says it in other words, has an answer of its own.
        """
        event = _ChatEvent.model_validate(said_in_event)
        choice = event.choices[0] if event.choices else _NO_CHOICE
        usage = event.usage or _NO_USAGE
        said, ids = choice.said, choice.token_ids or ()
        self.text += said
        self.token_ids.extend(ids)
        self.finish_reason = choice.finish_reason or self.finish_reason
        self.metrics = event.metrics or self.metrics
        self.prompt_ids = event.prompt_token_ids or self.prompt_ids
        if usage.completion_tokens is not None:
            self.num_tokens, self.num_prompt_tokens = usage.completion_tokens, usage.prompt_tokens
        if said or ids or (choice.finish_reason and self.num_events):
            now_s = perf_counter()
            if self.last_s is None:
                self.first_s = now_s
                self.num_first = len(self.token_ids) or usage.completion_tokens or None
            else:
                self.chunk_s.append(now_s - self.last_s)
            self.last_s = now_s
            self.num_events += 1

    @property
    def is_cut(self) -> bool:
        """Whether its stream ended before the answer did."""
        return not self.is_done and self.finish_reason is None

    @property
    def fault(self) -> str | None:
        """The fault of an answer whose stream has ended."""
        if self.is_cut:
            return (
                f"broke off: its stream ended after {self.num_events} events with tokens, without "
                "a finish reason and without [DONE]"
            )
        if (
            self.token_ids
            and self.tells_all_ids
            and self.num_tokens not in (None, len(self.token_ids))
        ):
            return (
                f"counts differ: its usage says {self.num_tokens} completion tokens, and "
                f"{len(self.token_ids)} token ids came"
            )
        return None
