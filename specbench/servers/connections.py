"""The connections of a client to its server: one for each open request.

Each has a session of its own, since aiohttp's pool has no rule for connections that are idle only
since a moment, and repeats no POST.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import cached_property
from typing import Any

from aiohttp import (
    ClientOSError,
    ClientResponse,
    ClientSession,
    ClientTimeout,
    DummyCookieJar,
    ServerDisconnectedError,
    TCPConnector,
)

# A request that is sent while the server closes the connection is lost. uvicorn, which most engines
# use, closes an idle connection after 5 s. llama.cpp's server closes it immediately, despite its
# keep-alive header.
SETTLED_S, STALE_S = 0.02, 2.0
CONNECT_S = 10.0


class _Response(ClientResponse):
    """A response that knows its connection also when it has been read to its end."""

    used: Any  # aiohttp's ResponseHandler, which has no type of its public interface

    async def start(self, connection: Any) -> ClientResponse:
        self.used = connection.protocol
        return await super().start(connection)


class Connections:
    """A pool that opens a connection, within `CONNECT_S`, if none is idle.

    A server may be silent for `silence_s` before and within a response. If it closes an idle
    connection while a request is sent, the request is sent again on a new one.
    """

    def __init__(self, *, silence_s: float) -> None:
        self._timeout = ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=silence_s)
        self._idle: deque[tuple[float, ClientSession, Any]] = deque()  # idle for longest first

    @cached_property
    def _ssl_context(self) -> ssl.SSLContext:
        """Created for the first https:// address: reading all certificates takes tens of ms.

        It trusts what the system trusts, or in its place SSL_CERT_FILE and SSL_CERT_DIR.
        """
        return ssl.create_default_context()

    @asynccontextmanager
    async def response(
        self, method: str, url: str, *, headers: Mapping[str, str], json: Any = None
    ) -> AsyncIterator[ClientResponse]:
        """The response to a request, once its head is there; aiohttp.ClientError."""
        known: dict[str, Any] = {"headers": headers, "json": json, "allow_redirects": False}
        session = await self._take_idle()
        is_new = session is None
        session = session or self._new(url)
        try:
            try:
                response = await session.request(method, url, **known)
            except (ClientOSError, ServerDisconnectedError) as error:
                if is_new or _has_begun(error):
                    raise
                await session.close()
                session = self._new(url)
                response = await session.request(method, url, **known)
            async with response:
                yield response
        except BaseException:
            await session.close()
            raise
        assert isinstance(response, _Response)
        self._idle.append((asyncio.get_running_loop().time(), session, response.used))

    def _new(self, url: str) -> ClientSession:
        return ClientSession(
            connector=TCPConnector(
                limit=1, ssl=self._ssl_context if url.startswith("https:") else False
            ),
            cookie_jar=DummyCookieJar(),
            response_class=_Response,
            timeout=self._timeout,
        )

    async def _take_idle(self) -> ClientSession | None:
        now_s = asyncio.get_running_loop().time()
        while self._idle and now_s - self._idle[0][0] >= SETTLED_S:
            since_s, session, connection = self._idle.popleft()
            if now_s - since_s < STALE_S and not connection.should_close:  # it sent no more bytes
                return session
            await session.close()
        return None

    async def close(self) -> None:
        for _, session, _ in self._idle:
            await session.close()


def _has_begun(error: ClientOSError | ServerDisconnectedError) -> bool:
    """Whether the server has sent a part of a response's head."""
    return isinstance(error, ServerDisconnectedError) and not isinstance(error.message, str)
