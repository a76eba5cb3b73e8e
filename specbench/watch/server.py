"""Reads the counters of a running server again and again."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from specbench.engines.recognition import OPTION, counting_engine, recognized
from specbench.engines.served_engine import ServedEngine, find_served
from specbench.errors import ServerError, UsageError
from specbench.inputs.address import Address
from specbench.servers.client import Client
from specbench.servers.facts import Fact, ModelNames, ServerFacts
from specbench.servers.metrics_page import Counters
from specbench.watch.traffic import Window


@dataclass(frozen=True, kw_only=True, slots=True)
class WatchedServer:
    """A server with the engine that its counters belong to."""

    client: Client
    name: str
    engine: ServedEngine
    facts: ServerFacts
    names: ModelNames

    @property
    def k(self) -> int | None:
        """By its address, else by its facts."""
        given = self.client.address.k
        return self.facts.k.value if given is None else given

    @property
    def title(self) -> str:
        return f"{self.name} {self.facts.version}".strip()

    async def again(self) -> "WatchedServer":
        """The same after a restart, with the facts of now; K is unknown if it reports none."""
        try:
            facts = await self.engine.facts(self.client, self.names)
        except ServerError:
            facts = replace(self.facts, k=Fact())
        return replace(self, facts=facts)

    async def counters(self) -> Counters:
        """The counts since it started; ServerError without them."""
        page = self.engine.COUNTERS
        assert page is not None
        counted = await self.client.counters(page.path_of(self.facts.model), [page])
        if counted.engine is None:  # such as an error page of a proxy
            self.client.fail("its page has no counters")
        return counted


class Restart(str):
    """Words that tell of a restart."""

    __slots__ = ()


@asynccontextmanager
async def watched_server(address: Address, model: str | None) -> AsyncIterator[WatchedServer]:
    """The server at an address, with the name of its model if it has several; UsageError without
    counters, ServerError for a router."""
    async with Client(address) as client:
        name = await counting_engine(client)
        if name is None:
            raise UsageError(
                f"{OPTION} {address.root}: it has no page of counters that is known, such as "
                "/metrics of vLLM; start it with one (llama.cpp: --metrics, SGLang: "
                "--enable-metrics)"
            )
        names, engine = ModelNames(served=model), find_served(name)
        _, facts = await recognized(client, names, name)
        yield WatchedServer(client=client, name=name, engine=engine, facts=facts, names=names)


async def windows(
    server: WatchedServer, *, seconds: float, every_s: float
) -> AsyncGenerator[Window | str, None]:
    """The counts of each interval, or in words why it has none: it restarted, or cannot be
    reached."""
    began, ends = _now(), time.monotonic() + seconds
    last, is_lost = await server.counters(), False
    read_at = time.monotonic()
    while (left_s := ends - time.monotonic()) > 0:
        await asyncio.sleep(min(every_s, left_s))
        at, began_before, began = time.monotonic(), began, _now()
        try:
            counted = await server.counters()
        except ServerError as error:
            if not is_lost:
                yield str(error)
            is_lost = True
            continue
        since = counted.since(last)
        if since.spans_restart:
            yield Restart(f"{server.client.address.root} restarted")
        elif is_lost:
            yield "it answers again"
        else:
            yield Window(began_at=began_before, seconds=at - read_at, counters=since)
        last, read_at, is_lost = counted, at, False


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
