"""Servers that run already: which there are, and what a session asks."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import PurePath
from urllib.parse import urlsplit

from specbench.bench.served.sessions import Session
from specbench.engines.served_engine import ServerFacts, counter_pages, find_served
from specbench.errors import LostError, ServerError, UsageError
from specbench.inputs.address import Address
from specbench.inputs.pairing import Target
from specbench.records import Request
from specbench.servers.client import Client
from specbench.servers.process import ServerProcess
from specbench.servers.silence import NOTICE_S
from specbench.servers.streamed import Streamed
from specbench.servers.traffic import send_all
from specbench.settings import SERVED, RunSettings

OPTION = "--base-url"
LOOPBACK = ("localhost", "127.0.0.1", "::1")
ROUTER_PAGES = 4  # of counters: two servers that are drawn at random answer all alike one time in 8


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerHandle:
    """A session's healthy server, or its replicas: one client per address."""

    clients: tuple[Client, ...]
    facts: ServerFacts
    command: tuple[str, ...] = ()
    acceptance_rule: str | None = None
    start_s: float | None = None
    log: str | None = None
    process: ServerProcess | None = None

    @property
    def may_spin(self) -> bool:
        """Whether servers at another K, which go on running, share this machine."""
        hosts = {urlsplit(client.address.root).hostname for client in self.clients}
        return self.process is None and not hosts.isdisjoint(LOOPBACK)

    async def ask(
        self, engine: str, requests: Sequence[Request], *, concurrency: int
    ) -> list[Streamed]:
        """The answers, in order; LostError, after which nothing more is asked, if one is lost."""

        async def send(client: Client, request: Request, _: Sequence[Streamed]) -> Streamed:
            return await find_served(engine).answer(client, self.facts.model, request)

        done = await send_all(
            requests, self.clients, send, concurrency=concurrency, ends_at_loss=True
        )
        try:
            done.require_no_loss()
        except LostError:
            self.require()  # says more if the server has ended
            raise
        return done.answers

    def require(self) -> None:
        """Raises ServerError, which says why, where a started server has ended."""
        if self.process is not None:
            self.process.require_running()


class ExternalServers:
    """Servers that run already, those of the same K as replicas; none is started or stopped."""

    def __init__(self, engine: str, addresses: Sequence[Address]) -> None:
        self._engine, self._addresses = engine, addresses

    @asynccontextmanager
    async def open(self, session: Session) -> AsyncIterator[ServerHandle]:
        """ServerError for a server that does not answer or runs at another K, and for replicas that
        are not alike."""
        addresses = [a for a in self._addresses if a.k == session.draft.k]
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(Client(address)) for address in addresses]
            facts = [await _facts(client, self._engine) for client in clients]
            for client, found in zip(clients, facts, strict=True):
                if found.k not in (None, session.draft.k):
                    client.fail(f"it runs at K = {found.k}, but K = {session.draft.k} is expected")
                if found.model != facts[0].model or found.version != facts[0].version:
                    client.fail(
                        f"it serves {found.model} {found.version}, but another replica at this K "
                        f"serves {facts[0].model} {facts[0].version}; replicas must be alike"
                    )
            yield ServerHandle(clients=tuple(clients), facts=facts[0])


async def _facts(client: Client, name: str) -> ServerFacts:
    """What a server says of itself; UsageError if its counters are those of another engine.

    ServerError if it hangs: it takes longer than `NOTICE_S`; or if its counters are those of
    several servers. Each page is asked for on a connection of its own, so that a router shows
    itself.
    """
    engine, pages = find_served(name), []
    try:
        async with asyncio.timeout(NOTICE_S):
            if engine.COUNTERS is not None:
                for _ in range(ROUTER_PAGES):
                    async with Client(client.address) as fresh:
                        pages.append(await fresh.counters(engine.COUNTERS.path, counter_pages()))
                if pages[0].engine not in (None, name):
                    raise UsageError(
                        f"{OPTION} {client.address.root}: its counters are those of "
                        f"{pages[0].engine}; measure it with --engine {pages[0].engine}"
                    )
                if any(after.since(before).is_of_a_restart for before, after in pairwise(pages)):
                    client.fail(
                        f"its {engine.COUNTERS.path} pages are those of several servers: a router? "
                        f"give the address of each server as {OPTION}"
                    )
            return await engine.facts(client)
    except TimeoutError:
        client.fail(f"does not answer within {NOTICE_S:g} s, not even what it serves")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunningServer:
    """What a server that was named says of itself."""

    address: Address  # with its K
    model: str
    is_k_told: bool  # by its address or by itself
    is_engine_told: bool = True
    context: int | None = None  # tokens of a request and its answer


def running_servers(settings: RunSettings) -> tuple[RunningServer, ...]:
    """The servers that were named; UsageError for one that does not answer."""
    urls = settings.servers.base_urls
    if not urls:
        return ()
    engine = next(name for name in settings.load.engines if name in SERVED)
    try:
        return asyncio.run(looked_at(engine, urls))
    except ServerError as error:
        raise UsageError(f"{OPTION} {error}") from error


def running_ks(running: Sequence[RunningServer]) -> tuple[int, ...] | None:
    """The K that they have; None where servers are started."""
    return tuple(dict.fromkeys(one.address.k or 0 for one in running)) or None


def running_context(running: Sequence[RunningServer]) -> int | None:
    """The tokens of a request and its answer that all of them take; None if none says it."""
    return min((one.context for one in running if one.context is not None), default=None)


def server_warnings(running: Sequence[RunningServer], engine: str, target: Target) -> Iterator[str]:
    """What is believed of the servers and was not told by them."""
    for one in running:
        at = f"{OPTION} {one.address.root}"
        if not _may_be(one.model, target):
            yield (
                f"{at} serves {one.model}, and the target {target.name} is "
                f"{target.model.source}: check that they are the same model"
            )
        if not one.is_engine_told and find_served(engine).COUNTERS is not None:
            yield f"{at} does not report its version: check that it is {engine}"
        if not one.is_k_told:
            yield f"{at} does not report its K: measured as K = 0; if it drafts, say {at}#k=4"
    replicas = Counter(one.address.k for one in running)
    for k, num in replicas.items():
        if num > 1:
            yield f"{num} servers run at K = {k}: as replicas of one, they share its requests"


def _may_be(served: str, target: Target) -> bool:
    """Whether a server's name of its model has the target's in it: of its id, or of its folder."""
    names = {target.name, target.model.source.removeprefix("demo:"), target.model.location}
    name = PurePath(served).name.removesuffix(".gguf").lower()
    return name in {PurePath(own).name.lower() for own in names}


async def looked_at(engine: str, urls: Sequence[str]) -> tuple[RunningServer, ...]:
    """Each with its K: what `#k=4` says, else what its server tells, else 0.

    ServerError if one does not answer; UsageError if it tells another K than its address, or is
    another engine.
    """
    found = []
    for url in urls:
        address = Address.at(url, OPTION)
        async with Client(address) as client:
            facts = await _facts(client, engine)
        if address.k is not None and facts.k not in (None, address.k):
            raise UsageError(
                f"{OPTION} {url}: the server runs at K = {facts.k}; correct #k, or leave it out"
            )
        told = address.k if address.k is not None else facts.k
        if told is None and facts.drafts:
            raise UsageError(
                f"{OPTION} {url}: the server drafts, and does not tell how many tokens; say so "
                "after the address, such as #k=4"
            )
        found.append(
            RunningServer(
                address=replace(address, k=told or 0),
                model=facts.model,
                is_k_told=told is not None,
                is_engine_told=bool(facts.version),
                context=facts.context,
            )
        )
    return tuple(found)
