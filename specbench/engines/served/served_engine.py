"""The protocol of a serving engine: how it is started, asked and read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from specbench.records import Request, RequestCounts, Result
from specbench.servers.client import Client, ServerError
from specbench.servers.server_log import LogFormat
from specbench.servers.streamed import Streamed


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """What a server is started with; the exporters turn pairing and K into `exported`."""

    exported: tuple[str, ...]  # the engine's command line for the model, drafter and K
    config: Path | None = None  # the file that `exported` refers to
    folder: Path  # where launch may write what its command refers to
    models: tuple[Path, ...] = ()  # folders of the target and the drafter that are on this disk
    # Of the engine's environment, or the program of an engine that has none; None: on the PATH.
    python: Path | None = None
    host: str = "127.0.0.1"
    port: int
    most_at_once: int  # concurrent requests
    context: int | None = None  # tokens of a request and its answer at most; None: the engine's own
    keeps_prefixes: bool = False  # of earlier prompts, in its cache
    seed: int = 0
    arguments: tuple[str, ...] = ()  # the user's own: the last word


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """The command that starts a server; `environment` is added to ours."""

    command: tuple[str, ...]
    num_program: int = 1  # first words of it, which the user's --engine-command replaces
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerFacts:
    """What a running server says of itself; None or empty: it does not say."""

    version: str
    model: str  # what requests must call it
    k: int | None = None  # 0: without speculation
    drafts: bool = False  # whether it says that it speculates; not every one tells K
    kv_tokens: int | None = None  # tokens that its KV cache has room for
    settings: Mapping[str, str] = field(default_factory=dict)  # effective ones, for provenance
    prefix_cache: str = "unknown"  # off, on, unknown, or "by request": each asks for it or not


class ServedEngine(Protocol):
    """A file of engines/served/: it is named as the engine, and as its exporter."""

    MODULE: str | None  # that its Python must have, which reads model folders; None: a program
    LOG: LogFormat
    HEALTH: str  # the path that answers 200 once requests are taken
    COUNTERS: str | None  # the path of its page of counters, which has the tokens of all clients

    def launch(self, start: Start) -> Launch:
        """The command that starts it; UsageError where something that it needs is missing.

        The user's own arguments come last, so that they have the last word.
        """
        ...

    async def facts(self, client: Client) -> ServerFacts:
        """What a healthy server says of itself; ServerError."""
        ...

    async def answer(self, client: Client, model: str, request: Request) -> Streamed:
        """Ask, and stream the answer with whatever the engine can count of it; ServerError."""
        ...

    def counts(self, answer: Streamed, k: int) -> RequestCounts | None:
        """The rounds of one answer at K; None at K = 0, or where the engine does not count them.

        ServerError where its counts cannot be those of this answer.
        """
        ...


def result_of(engine: ServedEngine, answer: Streamed, k: int) -> Result:
    """An answer as a result; failed if it has no token, or counts that cannot be its own."""
    if answer.error or answer.first_s is None or answer.last_s is None:
        return Result.failed(answer.error or "the answer has no token")
    num_tokens = len(answer.token_ids) or answer.num_tokens
    if num_tokens is None:
        return Result.failed("it tells no usage, so its tokens cannot be counted")
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
        text=answer.text,
        counts=counts,
        chunk_s=tuple(round(gap_s, 6) for gap_s in answer.chunk_s),
    )
