"""A session with running servers: their engine and facts, warm-up, requests and counters."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    nullcontext,
)
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import count
from operator import add
from time import perf_counter
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from specbench.bench.served.sessions import Session
from specbench.engines.recognition import OPTION, recognized
from specbench.engines.served_engine import find_served
from specbench.errors import LostError, ServerError, UsageError
from specbench.inputs.address import Address
from specbench.inputs.pairing import Target
from specbench.metrics.server_facts import (
    differences_in,
    is_like_hardware,
    named_facts,
    without_folders,
)
from specbench.records import Kind, Message, Reason, Request
from specbench.servers.client import Client, Stall, watch_for_stalls
from specbench.servers.facts import ModelNames, ServerFacts
from specbench.servers.metrics_page import Counters
from specbench.servers.process import LOOPBACK, ServerProcess
from specbench.servers.response import StreamedResponse
from specbench.servers.traffic import Traffic, send_all
from specbench.settings import RunSettings
from specbench.stats.summaries import median_of

WARM_UP = "Count from {first} to {last} in words, and say nothing else."  # not in any workload
WARM_UP_TOKENS = 32
WARM_UPS = 2  # the fewest batches; all requests of a batch are concurrent
STEADY_BATCHES, STEADY = 3, 1.1  # consecutive batches; their slowest over their fastest
LONGEST_S = 3.0  # of the wait for the server to become steady
SPIN_S = 1.5  # vLLM keeps a core of this machine busy for 1.1 s after its last answer
IDLE_S, POLL_S = 5.0, 0.05  # for a server to finish its open requests


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerHandle:
    """A session's healthy server, or its replicas: one client per address."""

    engine: str
    clients: tuple[Client, ...]
    facts: ServerFacts
    command: tuple[str, ...] = ()
    acceptance_rule: str | None = None
    start_s: float | None = None
    log: str | None = None
    process: ServerProcess | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)  # of every request

    @property
    def may_spin(self) -> bool:
        """Whether servers at another K keep running on this machine."""
        hosts = {urlsplit(client.address.root).hostname for client in self.clients}
        return self.process is None and not hosts.isdisjoint(("localhost", LOOPBACK, "::1"))

    def watch(self, warn: Callable[[str], None]) -> AbstractAsyncContextManager[Sequence[Stall]]:
        """Collect the servers' stalls while the block runs, and warn of each."""
        return watch_for_stalls(self.clients, find_served(self.engine).PROPERTIES.health, warn)

    async def warm_up(
        self, concurrencies: Iterable[int], like: Request, num: int | None = None
    ) -> None:
        """Send batches at these concurrencies, with the fields of `like` and texts of their own.

        `num` requests at each concurrency; if None, until the servers are steady. ServerError if
        no request of a batch is answered.
        """
        began_s = perf_counter()
        shortest_s = SPIN_S if self.may_spin else 0.0
        for concurrency in concurrencies:
            num_together = concurrency * len(self.clients)
            requests = [
                replace(
                    like,
                    messages=(Message(role="user", content=WARM_UP.format(first=i, last=i + 40)),),
                    max_new_tokens=WARM_UP_TOKENS,
                    seed=i,
                )
                for i in range(num_together)
            ]
            paces: list[float] = []
            for first in count(0, num_together):
                waited_s = perf_counter() - began_s
                if num is not None:
                    if first >= num:
                        break
                elif len(paces) >= WARM_UPS and waited_s >= shortest_s + (
                    0.0 if is_steady(paces) else LONGEST_S
                ):
                    break
                batch = requests[: (num or first + num_together) - first]
                answers = await self.ask(batch, concurrency=len(batch))
                errors = [answer.error for answer in answers if answer.error]
                if len(errors) == len(answers):
                    raise ServerError(f"the server answered no warm-up request: {errors[0]}")
                paces.append(median_of(map(_token_s, answers)) or 0.0)

    async def idle_counters(self) -> Counters:
        """The summed counters of all replicas when no request is open, or after `IDLE_S`."""
        page = find_served(self.engine).COUNTERS
        if page is None:
            return Counters(engine=None)
        ends_s = perf_counter() + IDLE_S
        while True:
            path = page.path_of(self.facts.model)
            pages = [await client.counters(path, [page]) for client in self.clients]
            counters = reduce(add, pages)
            if not counters.num_in_progress or perf_counter() > ends_s:
                return counters
            await asyncio.sleep(POLL_S)

    async def counters_before(self) -> Counters:
        """The counters before requests. ServerError if other clients are being served."""
        counters = await self.idle_counters()
        if counters.num_in_progress:
            at = self.clients[0].address.root
            raise ServerError(f"{at}: another client keeps sending requests; stop it and retry")
        return counters

    async def send(
        self,
        requests: Sequence[Request],
        *,
        concurrency: int,
        request_rate: float | None = None,
        seed: int = 0,
        completed: Callable[[Request, Sequence[StreamedResponse]], Request] | None = None,
    ) -> Traffic:
        """Send the requests as users would (`send_all`) until one is lost.

        `completed`: a request with the answers to the earlier ones of its conversation.
        """
        engine = find_served(self.engine)

        async def answer(
            client: Client, request: Request, earlier: Sequence[StreamedResponse]
        ) -> StreamedResponse:
            whole = completed(request, earlier) if completed else request
            more = {**whole.settings.extra_body, **self.fields}
            whole = replace(whole, settings=replace(whole.settings, extra_body=more))
            return await engine.answer(client, self.facts.model, whole)

        return await send_all(
            requests,
            self.clients,
            answer,
            concurrency=concurrency,
            request_rate=request_rate,
            seed=seed,
            ends_at_loss=True,
        )

    async def ask(self, requests: Sequence[Request], *, concurrency: int) -> list[StreamedResponse]:
        """Send the requests and return the responses in order.

        Raises LostError at the first lost request.
        """
        done = await self.send(requests, concurrency=concurrency)
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


async def mean_drafts(running: ServerHandle, k: int) -> float:
    """Tokens drafted per round that drafts, in one answer at K; 0 if unknown. ServerError."""
    text = WARM_UP.format(first=1, last=40)
    request = Request(messages=(Message(role="user", content=text),), max_new_tokens=WARM_UP_TOKENS)
    (answer,) = await running.ask([request], concurrency=1)
    counts = find_served(running.engine).counts(answer, k)
    if counts is None or not counts.num_drafting or counts.num_drafted is None:
        return 0.0
    return counts.num_drafted / counts.num_drafting


def is_steady(paces: Sequence[float]) -> bool:
    """Whether the last `STEADY_BATCHES` paces, in seconds per token, differ by at most `STEADY`."""
    last = paces[-STEADY_BATCHES:]
    return len(last) == STEADY_BATCHES and max(last) <= STEADY * min(last)


def _token_s(answer: StreamedResponse) -> float | None:
    if answer.last_s is None or not answer.num_tokens:
        return None
    return (answer.last_s - answer.sent_s) / answer.num_tokens


class ExternalServers:
    """Servers that run already and are neither started nor stopped; those at one K are replicas."""

    def __init__(self, engine: str, addresses: Sequence[Address], names: ModelNames) -> None:
        self._engine, self._addresses, self._names = engine, addresses, names

    def sharing(self, sessions: Sequence[Session]) -> AbstractContextManager[None]:  # noqa: ARG002
        return nullcontext()

    def stop_shared(self) -> None:
        """Nothing is stopped."""

    @asynccontextmanager
    async def open(self, session: Session) -> AsyncIterator[ServerHandle]:
        """Connect to the session's servers. ServerError if one does not respond or runs at
        another K, or if replicas differ."""
        addresses = [a for a in self._addresses if a.k == session.draft.k]
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(Client(address)) for address in addresses]
            servers = [await _described(client, self._engine, self._names) for client in clients]
            _require_comparable(servers)
            yield ServerHandle(engine=self._engine, clients=tuple(clients), facts=servers[0].facts)


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
    engine, *_ = settings.load.served
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
        async with Client(Address.at(url, OPTION)) as client:
            servers.append(await _described(client, engine, names))
    return tuple(servers)


async def _described(client: Client, engine: str, names: ModelNames) -> RunningServer:
    _, facts = await recognized(client, names, engine)
    facts = facts.at(client.address)
    return RunningServer(replace(client.address, k=facts.k.value), facts)


def _require_comparable(servers: Sequence[RunningServer]) -> None:
    """Raise ServerError, with all facts that differ, for replicas that are not equal, and for a
    server with another dtype, KV cache or parallelism than that of K = 0."""
    by_k: dict[int | None, RunningServer] = {}
    for server in sorted(servers, key=lambda server: server.address.k or 0):
        first = by_k.setdefault(server.address.k, server)
        base = by_k.get(0, first) if first is server else first
        differences = differences_in(_facts_besides_k(base.facts), _facts_besides_k(server.facts))
        is_replica = base.address.k == server.address.k
        if differences and (is_replica or any(is_like_hardware(d.name) for d in differences)):
            table = "\n".join(f"  {d.name}: {d.baseline} and {d.candidate}" for d in differences)
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
