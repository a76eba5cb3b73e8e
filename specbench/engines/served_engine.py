"""The base of serving engines: the protocol of their files, and code that several of them share.

`served/` has one file per engine, found by the engine's name. It has the start of the engine, its
requests and responses, its names for methods and its export. The files need no torch.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol, TypeVar, cast
from uuid import uuid4

from pydantic import ValidationError

from specbench.errors import RefusedError, ServerError
from specbench.records import DraftConfig, Request, RequestCounts, RequestSettings, Result
from specbench.servers.facts import ModelNames, ServerFacts
from specbench.servers.metrics_page import MOST_POSITIONS, CounterPage
from specbench.servers.response import Payload, StreamedResponse, invalid_field
from specbench.servers.server_log import LogFormat
from specbench.settings import OMITTABLE, SERVED

if TYPE_CHECKING:
    from specbench.servers.client import Client

# For engines that stream no ids: every event then contains the number of tokens so far.
COUNTED_STREAM = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}

Fields = TypeVar("Fields", bound=Payload)


@dataclass(frozen=True, kw_only=True, slots=True)
class StartOptions:
    """Options of a server's start."""

    exported: tuple[str, ...]  # the command line that `export` made for the model, drafter and K
    config: Path | None = None  # the file that `exported` refers to
    folder: Path  # for files that the command of `launch` refers to
    models: tuple[Path, ...] = ()  # folders of the target and the drafter that are on this disk
    # The Python of the engine's environment, or the engine's program; None: on the PATH.
    python: Path | None = None
    host: str = "127.0.0.1"
    port: int
    max_concurrency: int  # requests
    context: int | None = None  # most tokens of a request with its output; None: engine's default
    keeps_prefixes: bool = False  # whether its cache keeps prefixes of earlier prompts
    constrains_output: bool = False  # whether requests have a response format
    seed: int = 0
    arguments: tuple[str, ...] = ()  # from the user; they override the others


@dataclass(frozen=True, kw_only=True, slots=True)
class StartCommand:
    """The command that starts a server; `environment` is added to this process's."""

    command: tuple[str, ...]
    num_program: int = 1  # number of first words, which --engine-command replaces
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineProperties:
    """Properties of an engine that do not depend on a run."""

    module: str | None = None  # its Python module; None: it is a program
    distributions: tuple[str, ...] = ()  # names of its packages, other builds included
    # The version of a program, by its help; of None: of the one on the PATH.
    ask_version: Callable[[Path | None], str | None] | None = None
    # Settings that its pages lack, of a server that the command started.
    read_command: Callable[[Sequence[str]], dict[str, str]] | None = None
    start_s: float = 90.0  # an estimate until it has served the target
    limits_k: bool = False  # to what a drafter can draft, without an error
    # Fields of a request that set its K; {}: the start sets it. Builds differ: they are probed.
    fields_of_draft: Callable[[DraftConfig], dict[str, Any]] = lambda _: {}
    schemes_reach: int = 0  # its own adaptive schemes draft as many tokens, or the largest K
    health: str = "/health"  # the path that returns 200 once requests are accepted
    simulated_by: tuple[str, ...] = ()  # environment variables that make it simulate acceptance
    unsupported: tuple[str, ...] = ()  # settings of requests that it cannot apply


class ServedEngine(Protocol):
    """A file of engines/served/, named after the engine. It is also an `Exporter` (deployment.py),
    unless the engine cannot be started."""

    PROPERTIES: EngineProperties
    COUNTERS: CounterPage | None  # with the tokens of all clients
    LOG: LogFormat

    def launch(self, start: StartOptions) -> StartCommand:
        """The command that starts it; UsageError if a requirement is missing.

        The user's arguments come last, so that they override the others.
        """
        ...

    async def facts(self, client: "Client", names: ModelNames) -> ServerFacts:
        """Facts of a healthy server and of the model to measure; ServerError."""
        ...

    async def answer(self, client: "Client", model: str, request: Request) -> StreamedResponse:
        """Send the request and stream the response with the engine's counts; ServerError."""
        ...

    def counts(self, answer: StreamedResponse, k: int) -> RequestCounts | None:
        """The rounds of one response at K; None at K = 0, or if the engine does not count them.

        ServerError if the counts do not fit the response.
        """
        ...


def find_served(name: str) -> ServedEngine:
    """The engine with this name in `settings.SERVED`."""
    return cast(ServedEngine, import_module(f"specbench.engines.served.{name}"))


_IN_PROCESS_UNSUPPORTED = ("response_format", "tool_choice", "extra_body")


def unsupported_setting(engine: str, settings: RequestSettings) -> str | None:
    """The first setting of a request that the engine cannot apply; None if it can apply all.

    A `tool_choice` of none or auto counts as supported, since it does not constrain the output.
    """
    names = (
        find_served(engine).PROPERTIES.unsupported if engine in SERVED else _IN_PROCESS_UNSUPPORTED
    )
    is_free = settings.tool_choice in ("none", "auto")
    unsupported = (n for n in names if n in settings.given and not (n == "tool_choice" and is_free))
    return next(unsupported, None)


def counter_pages() -> list[CounterPage]:
    """The metrics pages of all engines, which identify the engine of a server: those with a marker
    first."""
    pages = (find_served(name).COUNTERS for name in SERVED)
    return sorted((page for page in pages if page is not None), key=lambda page: not page.marker)


_BODY_SETTINGS = ("response_format", "stop", "reasoning_effort", "tool_choice")


def request_fields(model: str, request: Request) -> dict[str, Any]:
    """The fields of a request in the OpenAI-compatible API, without the conversation and without
    top-k, whose value for "off" differs by engine."""
    settings = {n: v for n, v in request.settings.given.items() if n in _BODY_SETTINGS}
    return {
        "model": model,
        "max_tokens": request.max_new_tokens,
        "temperature": request.sampling.temperature,
        "top_p": request.sampling.top_p,
        "seed": request.seed,
        **settings,
        **request.settings.extra_body,
    }


def conversation_fields(request: Request) -> dict[str, Any]:
    """The fields of a request that the chat template renders into the prompt."""
    messages = [m.as_dict(parses_arguments=False) for m in request.messages]
    fields: dict[str, Any] = {"messages": messages}
    if request.tools:
        fields["tools"] = [dict(tool) for tool in request.tools]
    if request.template_args:
        fields["chat_template_kwargs"] = dict(request.template_args)
    return fields


def neutral_fields(model: str, request: Request) -> dict[str, Any]:
    """The same for servers that fill in missing fields from the model's generation_config.json,
    with a unique salt, so that the prefix cache has no entry for this request."""
    neutral = {"top_k": request.sampling.top_k or -1, "min_p": 0.0, "repetition_penalty": 1.0}
    salt = {} if request.keeps_prefixes else {"cache_salt": uuid4().hex}
    return {**request_fields(model, request), **neutral, **salt}


_UNPROCESSABLE = (400, 422)  # HTTP statuses of a request that the server understood, and refuses
_REJECTION = re.compile(
    r"(not|n't|un)[ -]?(support|permit|allow|recogni|expect)|unknown|extra|invalid", re.IGNORECASE
)
_IDS = "return_token_ids"


def without_omitted(request: Request, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields without those of `--omit-fields`. The newer name of the output limit replaces an
    omitted one, since output lengths would differ without a limit."""
    kept = {name: value for name, value in fields.items() if name not in request.omitted}
    newer = "max_completion_tokens"
    if "max_tokens" in fields.keys() - kept.keys() and newer not in request.omitted:
        kept[newer] = request.max_new_tokens
    return kept


async def ask_chat(
    client: "Client",
    request: Request,
    options: Mapping[str, Any],
    answer: StreamedResponse | None = None,
) -> StreamedResponse:
    """The answer to a request's conversation; ServerError, with the option that leaves out a field
    that the server rejects, or token ids that are not those of all tokens."""
    sent, answer = without_omitted(request, options), answer or StreamedResponse()
    try:
        return await client.chat(sent, conversation_fields(request), answer)
    except RefusedError as error:
        text = str(error)
        named = (n for n in OMITTABLE if n in sent and re.search(rf"\b{n}\b", text))
        rejected = next(named, None)
        if rejected and error.status in _UNPROCESSABLE and _REJECTION.search(text):
            remedy = f"leave the field out: --omit-fields {','.join((*request.omitted, rejected))}"
            raise RefusedError(f"{text.rstrip('.')}; {remedy}", error.status) from error
        raise
    except ServerError as error:
        if answer.is_done and answer.token_ids and answer.num_tokens != len(answer.token_ids):
            raise ServerError(
                f"{error}: a parser of reasoning or tool calls may hold some back; start the "
                f"server without --reasoning-parser, or count by `usage`: --omit-fields {_IDS}"
            ) from error
        raise


def result_of(engine: ServedEngine, answer: StreamedResponse, k: int) -> Result:
    """The result of a response; failed if it has no token, or counts that do not fit."""
    if answer.error or answer.first_s is None or answer.last_s is None:
        return Result.failed(answer.error or "the answer has no token")
    num_tokens = len(answer.token_ids) or answer.num_tokens
    if num_tokens is None:
        return Result.failed("the response has no `usage`, so its tokens cannot be counted")
    try:
        counts = engine.counts(answer, k)
    except ServerError as error:
        return Result.failed(str(error))
    return Result(
        output_ids=tuple(answer.token_ids),
        finish_reason="length" if answer.finish_reason == "length" else "eos",
        prefill_s=None,
        ttft_s=answer.first_s - answer.sent_s,
        decode_s=answer.last_s - answer.first_s,
        total_s=answer.last_s - answer.sent_s,
        cpu_s=None,
        rounds=None,
        num_tokens=None if answer.token_ids else num_tokens,
        num_first=min(answer.num_first or 1, num_tokens),
        num_unstreamed=answer.num_unstreamed,
        num_uncounted=answer.num_uncounted,
        text=answer.text,
        counts=counts,
        chunk_s=tuple(round(gap_s, 6) for gap_s in answer.chunk_s),
        paused_s=answer.paused_s,
    )


# Counts are cut at the end of the output, as in our decoder. Every round emits its accepted tokens
# and one more. If the rounds with drafts would have emitted more tokens than the output has, the
# last of them accepted tokens past the end. If fewer, the other tokens came from rounds without
# drafts. If both happen, they cancel out, unless the engine reports more. A draft that ends the
# text also counts as past the end: if the output's length is known, as in a greedy cell, our
# decoder drafts all tokens but the last.


class DraftedRound(NamedTuple):
    """A round with draft tokens."""

    num_drafted: int
    num_accepted: int


def read_counts(form: type[Fields], reported: object) -> Fields:
    """The counts of one response, validated as `form`; ServerError names a wrong field."""
    try:
        return form.model_validate(reported)
    except ValidationError as error:
        raise ServerError(f"the server's counts cannot be read: {invalid_field(error)}") from error


def counts_of_rounds(
    answer: StreamedResponse,
    rounds: Sequence[DraftedRound],
    k: int,
    *,
    num_overshot: int | None = None,
) -> RequestCounts:
    """Counts from the rounds with drafts, in order; ServerError if they do not fit the response."""
    accepted = [drafted.num_accepted for drafted in rounds]
    num_accepted = sum(accepted)
    if not all(0 <= r.num_accepted <= min(r.num_drafted, MOST_POSITIONS) for r in rounds):
        _refuse(answer, num_accepted, len(rounds))
    num_rounds, num_overshot = _cut(answer, num_accepted, len(rounds), num_overshot)
    if num_overshot:
        accepted[-1] -= num_overshot
        if accepted[-1] < 0:
            _refuse(answer, num_accepted, len(rounds))
    # If the output ended within the drafts of the last round, that round rejected none.
    judged = rounds[:-1] if num_overshot else rounds
    by_accepted = [accepted.count(i) for i in range(max([k, *accepted]) + 1)]
    by_accepted[0] += num_rounds - len(rounds)
    return RequestCounts(
        num_rounds=num_rounds,
        num_drafted=sum(drafted.num_drafted for drafted in rounds),
        num_accepted=sum(accepted),
        num_drafting=len(rounds),
        num_rejecting=sum(drafted.num_accepted < drafted.num_drafted for drafted in judged),
        num_by_accepted=tuple(by_accepted),
        num_overshot=num_overshot,
    )


def counts_of_sums(
    answer: StreamedResponse,
    *,
    num_accepted: int,
    num_drafted: int | None,
    num_drafting: int | None = None,
) -> RequestCounts:
    """Counts from sums, without rejections and positions; ServerError if they do not fit."""
    num_rounds, num_overshot = _cut(answer, num_accepted, num_drafting or 0)
    return RequestCounts(
        num_rounds=num_rounds,
        num_drafted=num_drafted,
        num_accepted=num_accepted - num_overshot,
        num_drafting=num_drafting,
        num_overshot=num_overshot,
    )


def _cut(
    answer: StreamedResponse, num_accepted: int, num_drafting: int, num_overshot: int | None = None
) -> tuple[int, int]:
    """The number of rounds, and of draft tokens accepted past the end of the output."""
    num_later = (answer.num_tokens or len(answer.token_ids) or 1) - 1
    if num_overshot is None:
        num_overshot = max(num_drafting + num_accepted - num_later, 0)
    num_rounds = num_later - num_accepted + num_overshot
    if num_overshot > num_accepted or num_rounds < num_drafting:
        _refuse(answer, num_accepted, num_drafting)
    return num_rounds, num_overshot


def _refuse(answer: StreamedResponse, num_accepted: int, num_drafting: int) -> NoReturn:
    raise ServerError(
        f"the server's counts contradict each other and cannot be used: {num_accepted} accepted "
        f"drafts in {num_drafting} rounds for {answer.num_tokens} output tokens"
    )
