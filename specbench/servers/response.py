"""One streamed response: the contents of its events, and the times of its tokens.

Tokens are counted by usage and token ids, never by events: with speculation an event contains
several, and servers merge events and hold back pieces of characters.
"""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

LONGEST_EVENT = 2**24  # bytes
ABORTED = "abort"  # finish reason of vLLM and SGLang for an output that is not complete
Count = Annotated[int, Field(ge=0)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]


class Payload(BaseModel):
    """A part of a server's response: its fields have these types or are absent; unknown fields are
    ignored."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


def invalid_field(error: ValidationError) -> str:
    """The first field of a wrong type, and the type that it should have."""
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


class _ToolFunction(Payload):
    name: str | None = None
    arguments: str | None = None


_NO_FUNCTION = _ToolFunction()


class _ToolCall(Payload):
    function: _ToolFunction | None = None

    @property
    def text(self) -> str:
        function = self.function or _NO_FUNCTION
        return f"{function.name or ''}{function.arguments or ''}"


class _ChatDelta(Payload):
    content: str | None = None
    tool_calls: list[_ToolCall] | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


_NOTHING = _ChatDelta()


class _ChatChoice(Payload):
    delta: _ChatDelta | None = None  # of a chat
    text: str | None = None  # of a completion
    token_ids: list[TokenId] | None = None
    finish_reason: str | None = None

    @property
    def new_text(self) -> str:
        delta = self.delta or _NOTHING  # one round may end the reasoning and begin the answer
        reasoning = delta.reasoning_content or delta.reasoning or ""
        calls = "".join(call.text for call in delta.tool_calls or ())
        return f"{reasoning}{delta.content or ''}{calls}" or self.text or ""


class _UsageDetails(Payload):
    reasoning_tokens: Count | None = None


class _TokenUsage(Payload):
    completion_tokens: Count | None = None
    prompt_tokens: Count | None = None
    total_tokens: Count | None = None
    completion_tokens_details: _UsageDetails | None = None


_NO_CHOICE, _NO_USAGE = _ChatChoice(), _TokenUsage()


class _ChatEvent(Payload):
    """One event of a stream."""

    choices: list[_ChatChoice] | None = None
    usage: _TokenUsage | None = None
    metrics: dict[str, Any] | None = None
    prompt_token_ids: list[TokenId] | None = None


class EventData:
    """Extracts the data of server-sent events from pieces of bytes.

    Only a newline ends a line: other line separators are characters of the answer.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> list[bytes]:
        """The data of all lines that end in this piece; ValueError for a line without an end."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if len(self._rest) > LONGEST_EVENT:
            raise ValueError(f"a line of more than {LONGEST_EVENT >> 20} MiB")
        contents = (line[5:].strip() for line in lines if line.startswith(b"data:"))
        return [content for content in contents if content]


@dataclass(kw_only=True, slots=True)
class StreamedResponse:
    """One streamed response, or the error in its place.

    Times are readings of `perf_counter`.
    """

    reports_all_ids: ClassVar[bool] = True  # if it reports ids, then those of all tokens

    sent_s: float = 0.0  # when the request was sent
    delayed_s: float = 0.0  # before that, by a server that limits the rate of requests
    error: str | None = None
    is_lost: bool = False  # whether the same request may succeed later
    text: str = ""
    token_ids: "array[int]" = field(default_factory=lambda: array("i"))  # empty: not reported
    num_tokens: int | None = None  # of the whole output
    num_prompt_tokens: int | None = None
    num_total_tokens: int | None = None  # of the prompt and the output, as the server adds them
    num_reasoning: int = 0  # of the output, by `usage`
    has_reasoning: bool = False  # whether any of their text came
    prompt_ids: Sequence[int] | None = None  # None: not reported
    finish_reason: str | None = None
    is_done: bool = False  # [DONE] came
    metrics: Mapping[str, Any] | None = None  # the server's own, of this request
    first_s: float | None = None  # when the first event with tokens came
    last_s: float | None = None  # when the last token came; an end-of-text token is one
    num_first: int | None = None  # tokens of the first event; None: not reported
    chunk_s: "array[float]" = field(default_factory=lambda: array("d"))  # between those events
    paused_s: float | None = None  # until then, in which the client stood still; None: not known

    def add(self, content: Mapping[str, Any]) -> None:
        """Add one event of the stream; pydantic's ValidationError for fields of other types.

        Engines with other or additional fields have a subclass.
        """
        event = _ChatEvent.model_validate(content)
        choice = event.choices[0] if event.choices else _NO_CHOICE
        usage = event.usage or _NO_USAGE
        text, ids = choice.new_text, choice.token_ids or ()
        self.text += text
        self.token_ids.extend(ids)
        self.finish_reason = choice.finish_reason or self.finish_reason
        self.metrics = event.metrics or self.metrics
        self.prompt_ids = event.prompt_token_ids or self.prompt_ids
        delta = choice.delta or _NOTHING
        self.has_reasoning |= bool(delta.reasoning or delta.reasoning_content)
        if usage.completion_tokens is not None:
            self.num_tokens, self.num_prompt_tokens = usage.completion_tokens, usage.prompt_tokens
            self.num_total_tokens = usage.total_tokens
            details = usage.completion_tokens_details
            self.num_reasoning = (details and details.reasoning_tokens) or 0
        if text or ids or (choice.finish_reason and self.last_s is not None):
            now_s = perf_counter()
            if self.last_s is None:
                self.first_s = now_s
                self.num_first = len(self.token_ids) or usage.completion_tokens or None
            else:
                self.chunk_s.append(now_s - self.last_s)
            self.last_s = now_s

    @property
    def num_events(self) -> int:
        """Events with tokens."""
        return 0 if self.last_s is None else len(self.chunk_s) + 1

    @property
    def num_unstreamed(self) -> int:
        """Reasoning tokens of which no text came, neither in its own field nor in the answer."""
        is_seen = self.token_ids or self.has_reasoning or "</think>" in self.text
        return 0 if is_seen else self.num_reasoning

    @property
    def num_uncounted(self) -> int:
        """Tokens of the total that are neither of the prompt nor of the output; 0 if unknown."""
        if not self.num_total_tokens or None in (self.num_tokens, self.num_prompt_tokens):
            return 0
        return self.num_total_tokens - (self.num_prompt_tokens or 0) - (self.num_tokens or 0)

    @property
    def is_cut(self) -> bool:
        """Whether the stream ended before the output did."""
        return self.finish_reason == ABORTED or not (self.is_done or self.finish_reason)

    @property
    def fault(self) -> str | None:
        """Why a response whose stream has ended is invalid; None: it is valid."""
        if self.is_cut:
            how = "as the server aborted it" if self.finish_reason else "without a finish reason"
            return f"broke off: its stream ended after {self.num_events} events with tokens, {how}"
        if (
            self.token_ids
            and self.reports_all_ids
            and self.num_tokens not in (None, len(self.token_ids))
        ):
            return (
                f"token counts differ: {self.num_tokens} completion tokens in `usage`, "
                f"{len(self.token_ids)} token ids in the stream"
            )
        return None
