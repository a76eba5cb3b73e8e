"""The protocol of a serving engine: how it is started, asked and read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from specbench.records import Message, RequestCounts, Sampling
from specbench.servers.client import Client
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
    num_program: int = 1  # first words of it, which the user's --launch replaces
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """One request: a conversation that the server's own chat template makes a prompt of."""

    messages: tuple[Message, ...]
    max_tokens: int
    sampling: Sampling
    seed: int
    tools: tuple[Mapping[str, object], ...] = ()
    template_args: Mapping[str, object] = field(default_factory=dict)
    keeps_prefixes: bool = False


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

    async def answer(self, client: Client, model: str, question: Question) -> Streamed:
        """Ask, and stream the answer with whatever the engine can count of it; ServerError."""
        ...

    def counts(self, answer: Streamed, k: int) -> RequestCounts | None:
        """The rounds of one answer at K; None at K = 0, or where the engine does not count them.

        ServerError where its counts cannot be those of this answer.
        """
        ...
