"""The connections of a client to its server: HTTP/1.1, one for each open request.

They replace httpx's own transport, which searches all of its connections for each request and
passes each read through many layers: with 256 streams it takes several times as long per event.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import cached_property

import h11
import httpx

# A request that is sent while the server closes the connection is lost. uvicorn, which most engines
# use, closes an idle connection after 5 s. llama.cpp's server closes it immediately, despite its
# keep-alive header.
SETTLED_S, STALE_S = 0.02, 2.0
CONNECT_S = 10.0
READ_BYTES = 65_536
HEAD_BYTES = 100_000  # a longer one is refused


class Connections(httpx.AsyncBaseTransport):
    """A pool that opens a connection, within `CONNECT_S`, if none is idle.

    A server may be silent for `silence_s` before and within a response. If it closes an idle
    connection while a request is sent, the request is sent again on a new one.
    """

    def __init__(self, *, silence_s: float) -> None:
        self._silence_s = silence_s
        self._idle: deque[_Connection] = deque()  # idle for longest first

    @cached_property
    def _ssl_context(self) -> ssl.SSLContext:
        """Created for the first https:// address: reading all certificates takes tens of ms.

        It trusts what the system trusts, or in its place SSL_CERT_FILE and SSL_CERT_DIR.
        """
        return ssl.create_default_context()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if (idle := await self._take_idle()) is not None:
            try:
                return await self._response(idle, request)
            except (httpx.ReadError, httpx.RemoteProtocolError):
                if not idle.is_unanswered:
                    raise
        return await self._response(await self._open(request.url), request)

    async def _response(self, connection: "_Connection", request: httpx.Request) -> httpx.Response:
        try:
            await connection.send(request)
            head = await connection.head()
        except BaseException:
            await connection.aclose()
            raise
        return httpx.Response(
            head.status_code,
            headers=head.headers.raw_items(),
            stream=_Body(connection, self._idle.append),
            extensions={"reason_phrase": head.reason},
        )

    async def _take_idle(self) -> "_Connection | None":
        while self._idle and self._idle[0].idle_s >= SETTLED_S:
            connection = self._idle.popleft()
            if connection.idle_s < STALE_S and not connection.is_closed:
                return connection
            await connection.aclose()
        return None

    async def _open(self, url: httpx.URL) -> "_Connection":
        is_tls = url.scheme == "https"
        try:
            async with asyncio.timeout(CONNECT_S):
                reader, writer = await asyncio.open_connection(
                    url.host,
                    url.port or (443 if is_tls else 80),
                    ssl=self._ssl_context if is_tls else None,
                )
        except TimeoutError as error:
            raise httpx.ConnectTimeout(f"no connection within {CONNECT_S:g} s") from error
        except (OSError, UnicodeError) as error:
            raise httpx.ConnectError(str(error)) from error
        return _Connection(reader, writer, self._silence_s)

    async def aclose(self) -> None:
        for connection in self._idle:
            await connection.aclose()


class _Connection:
    """One TCP connection, and the HTTP state of both sides."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, silence_s: float
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._silence_s = silence_s
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES)
        self._clock = asyncio.get_running_loop().time
        self._used_s = self._clock()

    @property
    def idle_s(self) -> float:
        return self._clock() - self._used_s

    @property
    def is_closed(self) -> bool:
        return self._reader.at_eof() or self._writer.is_closing()

    async def send(self, request: httpx.Request) -> None:
        head = h11.Request(
            method=request.method, target=request.url.raw_path, headers=request.headers.raw
        )
        events = (head, h11.Data(data=await request.aread()), h11.EndOfMessage())
        self._writer.write(b"".join(self._http.send(event) or b"" for event in events))
        try:
            async with asyncio.timeout(self._silence_s):
                await self._writer.drain()
        except TimeoutError as error:
            raise httpx.WriteTimeout(f"it read nothing for {self._silence_s:g} s") from error
        except OSError:
            pass  # the response may have begun before the server read the whole request

    async def head(self) -> h11.Response:
        while isinstance(event := await self.event(), h11.InformationalResponse):
            pass
        assert isinstance(event, h11.Response)
        return event

    async def event(self) -> object:
        """The next h11 event from the server."""
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                async with asyncio.timeout(self._silence_s):
                    data = await self._reader.read(READ_BYTES)
                if not data and self._http.their_state is h11.SEND_RESPONSE:
                    raise httpx.RemoteProtocolError("it closed the connection without an answer")
                self._http.receive_data(data)
        except TimeoutError as error:
            raise httpx.ReadTimeout(f"received nothing for {self._silence_s:g} s") from error
        except h11.RemoteProtocolError as error:
            raise httpx.RemoteProtocolError(str(error)) from error
        except OSError as error:
            raise httpx.ReadError(str(error)) from error
        return event

    @property
    def is_unanswered(self) -> bool:
        """Whether the server has sent nothing since the request."""
        return self._http.their_state is h11.SEND_RESPONSE and not self._http.trailing_data[0]

    @property
    def is_done(self) -> bool:
        """Whether the response was read to its end, so that another request can be sent."""
        states = (self._http.our_state, self._http.their_state)
        return states == (h11.DONE, h11.DONE) and not self._http.trailing_data[0]

    def start_next(self) -> None:
        self._http.start_next_cycle()
        self._used_s = self._clock()

    async def aclose(self) -> None:
        self._writer.transport.abort()
        with suppress(OSError):
            await self._writer.wait_closed()


class _Body(httpx.AsyncByteStream):
    """A response body; once it is read to the end, its connection is reused."""

    def __init__(self, connection: _Connection, give_back: Callable[[_Connection], None]) -> None:
        self._connection = connection
        self._give_back = give_back

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while isinstance(event := await self._connection.event(), h11.Data):
            yield bytes(event.data)

    async def aclose(self) -> None:
        if self._connection.is_done:
            self._connection.start_next()
            self._give_back(self._connection)
        else:
            await self._connection.aclose()
