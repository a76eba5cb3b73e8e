"""Finds out which engine a running server is, and the facts that it reports."""

import asyncio
from itertools import pairwise

from specbench.engines.served_engine import counter_pages, find_served
from specbench.errors import UsageError
from specbench.servers.client import NOTICE_S, Client
from specbench.servers.facts import ModelNames, ServerFacts
from specbench.servers.metrics_page import Counters
from specbench.settings import OPENAI

OPTION = "--base-url"
# Pages to fetch: behind a router that picks one of two servers at random, all come from one with
# probability 1/8. A router that keeps a client on one server is not noticed.
ROUTER_PAGES = 4


async def counting_engine(client: Client) -> str | None:
    """The engine whose counters a server has; None if it has none that are known."""
    known = counter_pages()
    # The longest path is tried first, since TensorRT-LLM also has JSON at /metrics.
    for path in sorted({page.path for page in known}, key=len, reverse=True):
        if name := (await client.counters(path, known)).engine:
            return name
    return None


async def recognized(
    client: Client, names: ModelNames, name: str | None = None
) -> tuple[str, ServerFacts]:
    """The engine of a server, by its counters if no `name` is given, and the facts it reports.

    UsageError if its counters are another engine's. ServerError if it takes longer than `NOTICE_S`,
    or if its counter pages are of several servers. Each page is fetched on a new connection, which
    reveals a router.
    """
    known = counter_pages()
    try:
        async with asyncio.timeout(NOTICE_S):
            name = name or await counting_engine(client) or OPENAI
            engine, pages = find_served(name), list[Counters]()
            if engine.COUNTERS is not None:
                for _ in range(ROUTER_PAGES):
                    async with Client(client.address) as connection:
                        pages.append(await connection.counters(engine.COUNTERS.path, known))
                if pages[0].engine not in (None, name):
                    raise UsageError(
                        f"{OPTION} {client.address.root}: its counters belong to "
                        f"{pages[0].engine}; measure it with --engine {pages[0].engine}"
                    )
                is_mixed = any(new.since(old).spans_restart for old, new in pairwise(pages))
                if is_mixed or len(pages[0].servers) > 1:
                    client.fail(
                        f"its {engine.COUNTERS.path} pages are of several servers, as those of a "
                        "router; give the address of each server"
                    )
            return name, await engine.facts(client, names)
    except TimeoutError:
        client.fail(f"did not send all of its facts within {NOTICE_S:g} s")
