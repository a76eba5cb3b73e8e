"""A server for many concurrent requests, in an event loop; the prompt says how to answer.

It streams as real ones do: HTTP/1.1 over persistent connections, a chunk per event. `python -m
tests.servers.crowd_server EVENTS PAUSE_S` is one by itself, and prints its address.
"""

import asyncio
import json
import socket
import struct
import sys
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

FAULTS = {  # prompt -> the error that a client must report
    "500": "answered 500: out of memory",
    "error": "failed while it answered: the engine died",
    "cut": "broke off: Response payload is not completed",
    "reset": "ConnectionResetError",
    "end": "broke off: its stream ended after 1 events",
    "counts": "counts differ: 10 completion tokens in `usage`, 9 token ids",
    "hang": "received nothing for",
}
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
IDS = [1234, 567, 89]  # of each event
# With the other fields that vLLM sends.
CHUNK = {
    "id": "chatcmpl-8f3a2b1c9d8e7f6a5b4c3d2e1f0a9b8c",
    "object": "chat.completion.chunk",
    "created": 1790000000,
    "model": "tiny",
}
CHOICE = {"index": 0, "logprobs": None, "finish_reason": None}
EVENT = {**CHUNK, "choices": [{**CHOICE, "delta": {"content": " a b c"}, "token_ids": IDS}]}


@dataclass
class CrowdServer:
    """Answers have `num_events` of three tokens, `pause_s` apart."""

    key: str = ""
    num_events: int = 3
    pause_s: float = 0.0
    requests: list[str] = field(default_factory=list)
    num_connections: int = 0  # opened so far
    num_tokens: int = 70_000  # emitted since it started, for all clients
    num_active: int = 0
    num_hanging: int = 0  # the ones of them that stopped for good
    max_active: int = 0
    writers: set[StreamWriter] = field(default_factory=set)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        async with server:
            try:
                yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            finally:
                self.drop_all()
                await self.until(lambda: not self.writers)

    def drop_all(self) -> None:
        for writer in self.writers:
            writer.transport.abort()

    async def restart_when(self, num_hanging: int) -> None:
        """It answers nothing that was under way, and counts from nothing."""
        await self.until(lambda: self.num_hanging == num_hanging)
        self.num_tokens = 0
        self.drop_all()

    async def until(self, happened: Callable[[], bool]) -> None:
        async with self.changed:
            await self.changed.wait_for(happened)

    async def _tell(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def _connected(self, reader: StreamReader, writer: StreamWriter) -> None:
        self.num_connections += 1
        self.writers.add(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await self._answer(reader, writer)
        with suppress(ConnectionError):
            writer.close()
            await writer.wait_closed()
        self.writers.discard(writer)
        await self._tell()

    async def _answer(self, reader: StreamReader, writer: StreamWriter) -> None:
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        fields = (line.partition(": ") for line in lines)
        headers = {name.lower(): value for name, _, value in fields}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        authorization = headers.get("authorization", "")
        if self.key and authorization != f"Bearer {self.key}":
            _send_page(writer, "401 Unauthorized", f"wrong key {authorization}")
        elif first.startswith("GET"):
            page = f"vllm:generation_tokens_total {self.num_tokens}\n"
            _send_page(writer, "200 OK", page)
        else:
            self.num_active += 1
            self.max_active = max(self.max_active, self.num_active)
            try:
                await self._stream(json.loads(body), reader, writer, authorization)
            finally:
                self.num_active -= 1
                await self._tell()
        await writer.drain()

    async def _stream(
        self, body: dict[str, object], reader: StreamReader, writer: StreamWriter, key: str
    ) -> None:
        prompt = str(body["prompt"])
        self.requests.append(prompt)
        if prompt == "500":
            _send_page(writer, "500 Internal Server Error", f"out of memory, {key}")
            return
        if prompt in CLOSED and self.requests.count(prompt) == 1:
            CLOSED[prompt](writer)
            raise ConnectionAbortedError
        if prompt == "begun":  # and closed before its status line ends
            writer.write(HEAD[:10])
            await writer.drain()
            writer.close()
            raise ConnectionAbortedError
        writer.write(HEAD)
        _send(writer, EVENT)
        if prompt == "error":
            _send(writer, {"error": {"message": "the engine died", "code": 500}})
        elif prompt == "cut":
            raise ConnectionAbortedError
        elif prompt == "reset":
            reset(writer)
        elif prompt == "hang":
            await self._hang(reader)
        elif prompt != "end":
            await self._rest(writer, num_more=prompt == "counts")
        writer.write(b"0\r\n\r\n")
        if prompt == "more":
            writer.write(b"HTTP/1.1 500 More\r\ncontent-length: 0\r\n\r\n")

    async def _rest(self, writer: StreamWriter, num_more: int) -> None:
        for _ in range(self.num_events - 1):
            await asyncio.sleep(self.pause_s)
            _send(writer, EVENT)
        num_tokens = len(IDS) * self.num_events + num_more
        self.num_tokens += num_tokens
        usage = {
            "completion_tokens": num_tokens,
            "prompt_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": 4},
        }
        _send(writer, {**CHUNK, "choices": [], "usage": usage})
        _send_data(writer, b"[DONE]")

    async def _hang(self, reader: StreamReader) -> None:
        self.num_hanging += 1
        await self._tell()
        try:
            await reader.readexactly(1)  # until the client leaves
        finally:
            self.num_hanging -= 1


def reset(writer: StreamWriter) -> None:
    """Close its connection as a killed process may do."""
    linger = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()


# What the server does with the connection of the first request with a prompt.
CLOSED: dict[str, Callable[[StreamWriter], None]] = {
    "closed": StreamWriter.close,
    "reset at first": reset,
}


def _send(writer: StreamWriter, event: dict[str, object]) -> None:
    _send_data(writer, json.dumps(event).encode())


def _send_data(writer: StreamWriter, data: bytes) -> None:
    line = b"data: " + data + b"\n\n"
    writer.write(b"%x\r\n%s\r\n" % (len(line), line))


def _send_page(writer: StreamWriter, status: str, text: str) -> None:
    writer.write(f"HTTP/1.1 {status}\r\ncontent-length: {len(text)}\r\n\r\n{text}".encode())


async def _serve_process(num_events: str, pause_s: str) -> None:
    server = CrowdServer(num_events=int(num_events), pause_s=float(pause_s))
    async with server.serving() as url:
        print(url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve_process(*sys.argv[1:]))
