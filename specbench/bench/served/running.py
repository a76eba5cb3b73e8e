"""Running servers and the facts that they report."""

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
from specbench.records import Kind, Reason, Request
from specbench.servers.client import NOTICE_S, Client
from specbench.servers.process import LOOPBACK, ServerProcess
from specbench.servers.response import StreamedResponse
from specbench.servers.traffic import send_all
from specbench.settings import SERVED, RunSettings

OPTION = "--base-url"
# Pages to fetch: behind a router of two servers, all come from one with probability 1/8.
ROUTER_PAGES = 4


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
        """Whether servers at another K keep running on this machine."""
        hosts = {urlsplit(client.address.root).hostname for client in self.clients}
        return self.process is None and not hosts.isdisjoint(("localhost", LOOPBACK, "::1"))

    async def ask(
        self, engine: str, requests: Sequence[Request], *, concurrency: int
    ) -> list[StreamedResponse]:
        """Send the requests and return the responses in order.

        Raises LostError at the first lost request.
        """

        async def send(
            client: Client, request: Request, _: Sequence[StreamedResponse]
        ) -> StreamedResponse:
            return await find_served(engine).answer(client, self.facts.model, request)

        done = await send_all(
            requests, self.clients, send, concurrency=concurrency, ends_at_loss=True
        )
        try:
            done.require_no_loss()
        except LostError:
            self.require_running()  # raises the cause if the server has ended
            raise
        return done.answers

    def require_running(self) -> None:
        """Raise ServerError, with the cause, if a started server has ended."""
        if self.process is not None:
            self.process.require_running()


class ExternalServers:
    """Servers that run already and are neither started nor stopped; those at one K are replicas."""

    def __init__(self, engine: str, addresses: Sequence[Address]) -> None:
        self._engine, self._addresses = engine, addresses

    @asynccontextmanager
    async def open(self, session: Session) -> AsyncIterator[ServerHandle]:
        """Connect to the session's servers. ServerError if one does not respond or runs at
        another K, or if replicas differ."""
        addresses = [a for a in self._addresses if a.k == session.draft.k]
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(Client(address)) for address in addresses]
            facts = [await _facts(client, self._engine) for client in clients]
            for client, server in zip(clients, facts, strict=True):
                if server.k not in (None, session.draft.k):
                    client.fail(f"it runs at K={server.k}, but K={session.draft.k} is expected")
                if server.model != facts[0].model or server.version != facts[0].version:
                    client.fail(
                        f"it serves {server.model} {server.version}, but another replica at this K "
                        f"serves {facts[0].model} {facts[0].version}; replicas must be equal"
                    )
            yield ServerHandle(clients=tuple(clients), facts=facts[0])


async def _facts(client: Client, name: str) -> ServerFacts:
    """The facts that a server reports; UsageError if its counters belong to another engine.

    ServerError if it takes longer than `NOTICE_S`, or if its counter pages come from
    several servers. Each page is fetched on a new connection, which reveals a router.
    """
    engine, pages = find_served(name), []
    try:
        async with asyncio.timeout(NOTICE_S):
            if engine.COUNTERS is not None:
                for _ in range(ROUTER_PAGES):
                    async with Client(client.address) as connection:
                        page = await connection.counters(engine.COUNTERS.path, counter_pages())
                        pages.append(page)
                if pages[0].engine not in (None, name):
                    raise UsageError(
                        f"{OPTION} {client.address.root}: its counters belong to "
                        f"{pages[0].engine}; measure it with --engine {pages[0].engine}"
                    )
                if any(after.since(before).spans_restart for before, after in pairwise(pages)):
                    client.fail(
                        f"its {engine.COUNTERS.path} pages come from several servers, "
                        f"as behind a router; give the address of each server as {OPTION}"
                    )
            return await engine.facts(client)
    except TimeoutError:
        client.fail(f"did not send all of its facts within {NOTICE_S:g} s")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunningServer:
    """A server of --base-url with the facts that it reports."""

    address: Address  # with its K
    facts: ServerFacts
    is_k_known: bool  # by its address or its report


def running_servers(settings: RunSettings) -> tuple[RunningServer, ...]:
    """The servers of --base-url; UsageError for one that does not respond."""
    urls = settings.servers.base_urls
    if not urls:
        return ()
    engine = next(name for name in settings.load.engines if name in SERVED)
    try:
        return asyncio.run(describe_servers(engine, urls))
    except ServerError as error:
        raise UsageError(f"{OPTION} {error}") from error


def server_warnings(
    running: Sequence[RunningServer], engine: str, target: Target
) -> Iterator[Reason]:
    """Warnings about what is assumed because a server does not report it."""
    for server in running:
        option = f"{OPTION} {server.address.root}"
        if not _names_target(server.facts.model, target):
            yield Kind.OTHER_MODEL(
                option=option,
                served=server.facts.model,
                target=target.name,
                model=target.model.source,
            )
        if not server.facts.version and find_served(engine).COUNTERS is not None:
            yield Kind.NO_VERSION(option=option, engine=engine)
        if not server.is_k_known:
            yield Kind.NO_K(option=option)
    replicas = Counter(server.address.k for server in running)
    for k, num_servers in replicas.items():
        if num_servers > 1:
            yield Kind.REPLICAS(servers=num_servers, k=k)


def _names_target(served: str, target: Target) -> bool:
    """Whether the model name of a server equals the target's name, id or folder."""
    names = {target.name, target.model.source.removeprefix("demo:"), target.model.location}
    served, *known = (PurePath(n).name.lower().removesuffix(".gguf") for n in (served, *names))
    return served in known


async def describe_servers(engine: str, urls: Sequence[str]) -> tuple[RunningServer, ...]:
    """The servers with their K: that of the address (`#k=4`), or the reported one, or 0.

    ServerError if one does not respond; UsageError if it reports another K than its address, or is
    another engine.
    """
    servers = []
    for url in urls:
        address = Address.at(url, OPTION)
        async with Client(address) as client:
            facts = await _facts(client, engine)
        if address.k is not None and facts.k not in (None, address.k):
            raise UsageError(
                f"{OPTION} {url}: the server runs at K={facts.k}; correct #k, or leave it out"
            )
        k = address.k if address.k is not None else facts.k
        if k is None and facts.drafts:
            raise UsageError(
                f"{OPTION} {url}: the server drafts, but does not report its K; add it, as in "
                f"{OPTION} {url}#k=4"
            )
        servers.append(
            RunningServer(address=replace(address, k=k or 0), facts=facts, is_k_known=k is not None)
        )
    return tuple(servers)
