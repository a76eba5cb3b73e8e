"""Running servers and the facts that they report."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple
from urllib.parse import urlsplit

from specbench.bench.served.sessions import Session
from specbench.engines.served_engine import counter_pages, find_served
from specbench.errors import LostError, ServerError, UsageError
from specbench.inputs.address import Address
from specbench.inputs.pairing import Target
from specbench.metrics.server_facts import (
    differences_in,
    is_like_hardware,
    named_facts,
    without_folders,
)
from specbench.records import Kind, Reason, Request
from specbench.servers.client import NOTICE_S, Client
from specbench.servers.facts import ModelNames, ServerFacts
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

    def __init__(self, engine: str, addresses: Sequence[Address], names: ModelNames) -> None:
        self._engine, self._addresses, self._names = engine, addresses, names

    @asynccontextmanager
    async def open(self, session: Session) -> AsyncIterator[ServerHandle]:
        """Connect to the session's servers. ServerError if one does not respond or runs at
        another K, or if replicas differ."""
        addresses = [a for a in self._addresses if a.k == session.draft.k]
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(Client(address)) for address in addresses]
            servers = [
                RunningServer(client.address, await _facts(client, self._engine, self._names))
                for client in clients
            ]
            _require_comparable(servers)
            yield ServerHandle(clients=tuple(clients), facts=servers[0].facts)


async def _facts(client: Client, name: str, names: ModelNames) -> ServerFacts:
    """The facts of a server, whose K is known; UsageError if its counters are another engine's.

    ServerError if its K is unknown, if a fact is contradicted, if it takes longer than `NOTICE_S`,
    or if its counter pages are of several servers. Each page is fetched on a new connection, which
    reveals a router.
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
                is_mixed = any(new.since(old).spans_restart for old, new in pairwise(pages))
                if is_mixed or len(pages[0].servers) > 1:
                    client.fail(
                        f"its {engine.COUNTERS.path} pages are of several servers, as those of a "
                        f"router; give the address of each server as {OPTION}"
                    )
            return (await engine.facts(client, names)).at(client.address)
    except TimeoutError:
        client.fail(f"did not send all of its facts within {NOTICE_S:g} s")


class RunningServer(NamedTuple):
    """A server of --base-url with the facts that it reports."""

    address: Address  # with its K
    facts: ServerFacts


def running_servers(settings: RunSettings, target: Target) -> tuple[RunningServer, ...]:
    """The servers of --base-url; UsageError for one that does not respond or whose K is unknown,
    and for servers that no speedup compares."""
    urls = settings.servers.base_urls
    if not urls:
        return ()
    engine = next(name for name in settings.load.engines if name in SERVED)
    names = ModelNames.of(target, settings.servers.served_model_name)
    try:
        servers = asyncio.run(describe_servers(engine, urls, names))
        _require_comparable(servers)
    except ServerError as error:
        raise UsageError(f"{OPTION} {error}") from error
    return servers


def server_warnings(
    running: Sequence[RunningServer], engine: str, target: Target
) -> Iterator[Reason]:
    """Warnings about what is assumed because a server does not report it."""
    names = ModelNames.of(target, None)
    for server in running:
        option = f"{OPTION} {server.address.root}"
        if not names.fits(server.facts.model):
            yield Kind.OTHER_MODEL(
                option=option,
                served=server.facts.model,
                target=target.name,
                model=target.model.source,
            )
        if not server.facts.version and find_served(engine).COUNTERS is not None:
            yield Kind.NO_VERSION(option=option, engine=engine)
    replicas = Counter(server.address.k for server in running)
    for k, num_servers in replicas.items():
        if num_servers > 1:
            yield Kind.REPLICAS(servers=num_servers, k=k)


async def describe_servers(
    engine: str, urls: Sequence[str], names: ModelNames
) -> tuple[RunningServer, ...]:
    """The servers with their K, by the address (`#k=4`) or by their report.

    ServerError if one does not respond, or if its K is unknown or contradicted; UsageError if it is
    another engine.
    """
    servers = []
    for url in urls:
        address = Address.at(url, OPTION)
        async with Client(address) as client:
            facts = await _facts(client, engine, names)
        servers.append(RunningServer(replace(address, k=facts.k.value), facts))
    return tuple(servers)


def _require_comparable(servers: Sequence[RunningServer]) -> None:
    """Raise ServerError, with all facts that differ, for replicas that are not equal, and for a
    server with another dtype, KV cache or parallelism than that of K = 0."""
    by_k: dict[int | None, RunningServer] = {}
    for server in sorted(servers, key=lambda server: server.address.k or 0):
        first = by_k.setdefault(server.address.k, server)
        base = by_k.get(0, first) if first is server else first
        found = differences_in(_facts_besides_k(base.facts), _facts_besides_k(server.facts))
        is_replica = base.address.k == server.address.k
        if found and (is_replica or any(is_like_hardware(d.name) for d in found)):
            table = "\n".join(f"  {d.name}: {d.baseline} and {d.candidate}" for d in found)
            raise ServerError(
                f"{base.address.root} (K={base.address.k}) and {server.address.root} "
                f"(K={server.address.k}) differ in more than K, so they are not "
                f"{'replicas' if is_replica else 'comparable'}:\n{table}\nstart both alike"
            )


def _facts_besides_k(facts: ServerFacts) -> dict[str, str]:
    named = named_facts(
        version=facts.version,
        prefix_cache=facts.prefix_cache.value or "",
        settings=facts.settings,
    )
    return {"model": without_folders(facts.model), **dict(named)}
