"""Engines over a fake server that repeats recorded answers of real ones."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from specbench.engines.served_engine import StartOptions, find_served
from specbench.inputs.address import Address
from specbench.records import Message, Request, Sampling
from specbench.servers.client import Client, StreamedResponse
from specbench.servers.facts import ModelNames, ServerFacts
from tests.servers.fake_server import FakeServer, serving

ANY_MODEL = ModelNames()
REQUEST = Request(
    messages=(Message(role="user", content="Hello"),),
    max_new_tokens=20,
    sampling=Sampling(temperature=0.5, top_p=0.9),
    seed=7,
)


def recorded(name: str) -> str:
    return (Path(__file__).parent / "recorded" / name).read_text(encoding="utf-8")


def facts(engine: str, pages: Mapping[str, str], names: ModelNames = ANY_MODEL) -> ServerFacts:
    """The facts that an engine's file reads from these pages."""

    async def read(url: str) -> ServerFacts:
        async with Client(Address.at(url, "--base-url")) as client:
            return await find_served(engine).facts(client, names)

    with serving(FakeServer(pages=pages, has_metrics=False)) as url:
        return asyncio.run(read(url))


class Replayed(NamedTuple):
    answer: StreamedResponse
    requests: list[dict[str, Any]]  # of the server, in order


def answer(engine: str, pages: Mapping[str, str], request: Request = REQUEST) -> Replayed:
    async def ask(url: str) -> StreamedResponse:
        async with Client(Address.at(url, "--base-url")) as client:
            return await find_served(engine).answer(client, "tiny", request)

    fake = FakeServer(pages=pages)
    with serving(fake) as url:
        return Replayed(asyncio.run(ask(url)), fake.requests)


def start(folder: Path, *exported: str, **changed: Any) -> StartOptions:
    return StartOptions(exported=exported, folder=folder, port=8000, max_concurrency=8, **changed)
