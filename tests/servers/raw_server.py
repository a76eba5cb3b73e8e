"""A server that answers any request with the same bytes, and the client's error for them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from specbench.errors import ServerError
from specbench.inputs.address import Address
from specbench.records import Request
from specbench.servers import traffic
from specbench.servers.client import Client
from specbench.servers.response import StreamedResponse


def client_of(url: str, **more: Any) -> Client:
    return Client(Address.at(url, "--base-url"), **more)


def stream_of(*lines: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\n\r\n" + b"".join(line + b"\n\n" for line in lines)


@asynccontextmanager
async def raw_server(reply: Callable[[bytes], bytes], **more: Any) -> AsyncIterator[str]:
    """`reply` makes the answer's bytes of a request's head; `more` is for `start_server`."""
    left = asyncio.Event()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(reply(await reader.readuntil(b"\r\n\r\n")))
        writer.close()
        await writer.wait_closed()
        left.set()

    server = await asyncio.start_server(connected, "127.0.0.1", 0, **more)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await left.wait()


def failure_of(
    reply: Callable[[bytes], bytes],
    call: Callable[[Client], Awaitable[Any]] = lambda client: client.stream("completions", {}),
) -> str:
    """The error of a call of the client; it names the server."""

    async def ask() -> str:
        async with raw_server(reply) as url, client_of(url) as client:
            with pytest.raises(ServerError) as wrong:
                await call(client)
            assert str(wrong.value).startswith(f"{url}: ")
            return str(wrong.value)

    return asyncio.run(ask())


@dataclass(frozen=True, kw_only=True, slots=True)
class PostedRequest(Request):
    """A request of the API, whose body may follow from the answers before."""

    path: str
    body: Callable[[Sequence[StreamedResponse]], Mapping[str, Any]]


def posted(
    path: str,
    body: Callable[[Sequence[StreamedResponse]], Mapping[str, Any]],
    conversation: str | None = None,
) -> PostedRequest:
    return PostedRequest(path=path, body=body, conversation=conversation, max_new_tokens=0)


async def _post(
    client: Client, request: Request, earlier: Sequence[StreamedResponse]
) -> StreamedResponse:
    assert isinstance(request, PostedRequest)
    return await client.stream(request.path, request.body(earlier))


send_all = partial(traffic.send_all, send=_post)
