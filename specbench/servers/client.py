"""An asynchronous client of one server with an OpenAI-compatible API.

Every fault of a server, from another protocol to silence, raises a ServerError. If a server stops
responding, a warning comes long before a request times out.
"""

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, NoReturn, Self, TypeVar
from urllib.parse import urlsplit

import aiohttp
from pydantic import ValidationError
from pydantic_core import from_json

from specbench.errors import LostError, RefusedError, ServerError
from specbench.inputs.address import Address
from specbench.servers.connections import Connections
from specbench.servers.metrics_page import CounterPage, Counters, read_counters
from specbench.servers.response import EventData, Payload, StreamedResponse, invalid_field
from specbench.untrusted import parse_json

SILENCE_S = 120.0  # how long a server may take to answer, and between two chunks
HEALTH_S = 3.0  # how long its health check may take
# Of a request, by a server that limits the rate of requests: each time, and in all.
SHORTEST_DELAY_S, LONGEST_DELAY_S = 1.0, 60.0
LONGEST_REASON = 200  # characters of a server's error message
LARGEST_PAGE = 2**26  # bytes, more than any engine's page has
STRANGE = "streams events that are not those of an OpenAI-compatible server"

Fields = TypeVar("Fields", bound=Payload)


class Client:
    """Sends requests to one server and to no other host: redirects are refused.

    Proxies and .netrc of the environment are not used. Certificates are verified by those that the
    system trusts, or by SSL_CERT_FILE and SSL_CERT_DIR.
    """

    def __init__(self, address: Address, *, silence_s: float = SILENCE_S) -> None:
        self.address = address
        self.num_events = 0  # received so far
        self.num_open = self.num_closed = 0  # requests
        self._key = address.key()
        self._headers = {"Accept-Encoding": "identity"}  # compression holds events back
        self._headers |= {"Authorization": f"Bearer {self._key}"} if self._key else {}
        self._silence_s = silence_s
        self._has_template = True  # until the server reports that its model has none
        self._http = Connections(silence_s=silence_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self._http.close()

    async def json(self, url: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The JSON object at a URL of the server, or its response to a posted body; ServerError."""
        try:
            page = from_json(await self._page(url, body), allow_inf_nan=False)
        except ValueError:
            self.fail(f"{_path(url)} is not JSON")
        return page if isinstance(page, dict) else {}

    async def parsed(
        self, url: str, form: type[Fields], body: Mapping[str, Any] | None = None
    ) -> Fields:
        """The same, validated as `form`; ServerError names a field of a wrong type."""
        try:
            return form.model_validate(await self.json(url, body))
        except ValidationError as error:
            self.fail(f"{_path(url)}: {invalid_field(error)}")

    async def health_status(self, path: str) -> int | None:
        """The status of a GET of a path, such as /health; None if the server cannot be reached."""
        try:
            url = f"{self.address.root}{path}"
            async with self._http.response("GET", url, headers=self._headers) as response:
                return response.status
        except (aiohttp.ClientError, UnicodeError):
            return None

    async def why_unhealthy(self, path: str) -> str:
        """The fault of the health check; empty if it responds, even with 404 as a proxy does."""
        try:
            async with asyncio.timeout(HEALTH_S):
                status = await self.health_status(path)
        except TimeoutError:
            return f"{path} does not answer within {HEALTH_S:g} s"
        if status is None:
            return f"{path} cannot be reached"
        return f"{path} answers {status}" if status >= 500 else ""

    async def model_cards(self) -> list[dict[str, Any]]:
        """The cards of the models that it lists, each with its `id`; ServerError."""
        models = (await self.json(f"{self.address.api}/models")).get("data")
        cards = models if isinstance(models, list) else []
        return [
            card for card in cards if isinstance(card, dict) and isinstance(card.get("id"), str)
        ]

    async def version(self) -> str:
        """The server's version; empty if it reports none."""
        try:
            return str((await self.json(f"{self.address.root}/version")).get("version", ""))
        except ServerError:  # many servers have no such page, or an HTML one
            return ""

    async def page(self, path: str) -> str:
        """The text at a path of the server; empty if it has none."""
        try:
            return (await self._page(f"{self.address.root}{path}")).decode("utf-8", "replace")
        except RefusedError:
            return ""

    async def counters(self, path: str, pages: Sequence[CounterPage]) -> Counters:
        """The counters at a path, with engine None if the page is missing; ServerError."""
        return (await self.counter_page(path, pages))[0]

    async def counter_page(self, path: str, pages: Sequence[CounterPage]) -> tuple[Counters, str]:
        """The same with the text of the page, for metrics of only one engine; ServerError."""
        text = await self.page(path)
        try:
            return read_counters(text, pages), text
        except ValueError as error:
            self.fail(f"{path} is not a page of counters: {self._quoted(str(error))}")

    async def stream(
        self, path: str, body: Mapping[str, Any], answer: StreamedResponse | None = None
    ) -> StreamedResponse:
        """Request a stream with usage, and collect its events in `answer`; ServerError.

        A path that begins with / is below the server's root, any other below its API. An engine
        whose events have more fields passes a subclass of `StreamedResponse` as `answer`.
        """
        root = self.address.root if path.startswith("/") else f"{self.address.api}/"
        body = {"stream": True, "stream_options": {"include_usage": True}, **body}
        answer, data = answer or StreamedResponse(), EventData()
        answer.delayed_s += await self._read(
            f"{root}{path}", body, lambda piece: self._take(data, piece, answer)
        )
        self._take(data, b"\n", answer)
        if answer.fault:
            self.fail(answer.fault, LostError if answer.is_cut else ServerError)
        return answer

    async def chat(
        self,
        options: Mapping[str, Any],
        conversation: Mapping[str, Any],
        answer: StreamedResponse | None = None,
    ) -> StreamedResponse:
        """The answer to a conversation (`messages`, `tools`, ...); ServerError.

        A model without a chat template gets the text of the messages, joined by empty lines, and
        no tools.
        """
        if self._has_template:
            try:
                return await self.stream("chat/completions", {**options, **conversation}, answer)
            except RefusedError as error:
                self._has_template = not _has_no_chat(error)
                if self._has_template:
                    raise
        if "tools" in conversation:
            self.fail(
                "it has no chat template, so tools cannot be sent to it; leave out prompts with "
                "tools, or start it with a chat template"
            )
        text = "\n\n".join(message["content"] for message in conversation["messages"])
        return await self.stream("completions", {**options, "prompt": text}, answer)

    def _take(self, stream: EventData, piece: bytes, answer: StreamedResponse) -> None:
        """Add the events that end in a piece of the stream to the answer; ServerError."""
        try:
            for data in stream.feed(piece):
                self.num_events += 1
                if data == b"[DONE]":
                    answer.is_done = True
                    continue
                event = from_json(data)
                if not isinstance(event, dict):
                    self.fail(f"{STRANGE}: {self._quoted(str(event))}")
                if event.get("error") is not None:
                    reason = self._quoted(_reason(event["error"]))
                    self.fail(f"failed while it answered: {reason}", LostError)
                answer.add(event)
        except ValidationError as error:
            self.fail(f"{STRANGE}: {invalid_field(error)}")
        except ValueError as error:
            self.fail(f"{STRANGE}: {error}")

    async def _page(self, url: str, body: Mapping[str, Any] | None = None) -> bytes:
        page = bytearray()

        def take(piece: bytes) -> None:
            page.extend(piece)
            if len(page) > LARGEST_PAGE:
                self.fail(f"{_path(url)} has more than {LARGEST_PAGE >> 20} MiB")

        await self._read(url, body, take)
        return bytes(page)

    async def _read(
        self, url: str, body: Mapping[str, Any] | None, take: Callable[[bytes], None]
    ) -> float:
        """Pass the pieces of the response to `take` as they arrive; ServerError.

        If the server limits the rate of requests and says when to retry, the request is sent again
        then. Returns the seconds until it was sent for the last time.
        """
        method = "GET" if body is None else "POST"
        clock = asyncio.get_running_loop().time
        began_s, delayed_s = clock(), 0.0
        while True:
            self.num_open += 1
            try:
                async with self._http.response(
                    method, url, headers=self._headers, json=body
                ) as response:
                    wait_s = _retry_after_s(response)
                    if wait_s is None or delayed_s + wait_s > LONGEST_DELAY_S:
                        await self._require_success(response)
                        async for piece in response.content.iter_any():
                            take(piece)
                        return delayed_s
            except (aiohttp.ClientError, UnicodeError) as error:
                self._fail_by(error)
            finally:
                self.num_open -= 1
                self.num_closed += 1
            await asyncio.sleep(wait_s)
            delayed_s = clock() - began_s

    async def _require_success(self, response: aiohttp.ClientResponse) -> None:
        if 200 <= response.status < 300:
            return
        if 300 <= response.status < 400 and "location" in response.headers:
            self.fail("it redirects to another address, which is refused; give that one instead")
        reason = self._quoted(_reason_of_page(await response.read()) or response.reason or "")
        text = f"{response.url.path} answered {response.status}: {reason}"
        if response.status in (401, 403):
            text += "; give its key as SPECBENCH_API_KEY in the environment"
        elif response.status == 404 and str(response.url) == f"{self.address.api}/models":
            text += (
                f"; if its API has another path, add it: {self.address.root}/v4, or "
                f"{self.address.root}/chat/completions"
            )
        elif response.status == 429:
            wait_s = _retry_after_s(response)
            text += "; " if wait_s is None else f"; it asks to wait {wait_s:.0f} s: "
            text += "lower --concurrency or --request-rate, or measure later"
        raise RefusedError(f"{self.address.root}: {text}", response.status)

    def fail(self, reason: str, kind: type[ServerError] = ServerError) -> NoReturn:
        raise kind(f"{self.address.root}: {reason}")

    def _fail_by(self, error: aiohttp.ClientError | UnicodeError) -> NoReturn:
        # The status of a reply that cannot be read is aiohttp's own.
        text = error.message if isinstance(error, aiohttp.ClientResponseError) else str(error)
        reason = self._quoted(" ".join(text.split())) or type(error).__name__
        if isinstance(error, aiohttp.SocketTimeoutError):
            reason = f"received nothing for {self._silence_s:g} s"
        elif isinstance(error, _UNREACHED):
            reason = f"cannot be reached: {reason}"
        else:
            reason = f"broke off: {reason}"
        if "WRONG_VERSION_NUMBER" in reason:
            reason += "; it does not speak TLS: give its address with http://"
        if "CERTIFICATE_VERIFY_FAILED" in reason and not _OTHER_FAULTS.search(reason):
            reason += _trust_advice()
        raise LostError(f"{self.address.root}: {reason}") from error

    def _quoted(self, text: str) -> str:
        """A server's text, shortened and without our key."""
        return (text.replace(self._key, "***") if self._key else text)[:LONGEST_REASON]


def _has_no_chat(error: RefusedError) -> bool:
    is_about_template = error.status == 400 and "chat template" in str(error)
    return is_about_template or error.status == 404


def _reason_of_page(page: bytes) -> str:
    """The reason in an error response; empty for an HTML page."""
    try:
        content = parse_json(page)
    except ValueError:
        text = page.decode("utf-8", "replace")
        return "" if "<html" in text.lower() else " ".join(text.split())
    return _reason(content.get("error", content) if isinstance(content, dict) else content)


def _reason(error: object) -> str:
    """The reason in an error object, on one line."""
    reason = error.get("message", error) if isinstance(error, dict) else error
    return " ".join(str(reason).split())


def _path(url: str) -> str:
    return urlsplit(url).path


_UNREACHED = (
    aiohttp.ClientConnectorError,
    aiohttp.ConnectionTimeoutError,
    aiohttp.InvalidURL,
    UnicodeError,  # a name that no resolver takes
)


def _retry_after_s(response: aiohttp.ClientResponse) -> float | None:
    """When a server that limits the rate of requests takes this one, by its Retry-After header.

    None for another status or without a legible header.
    """
    value = response.headers.get("retry-after", "").strip()
    if response.status != 429:
        return None
    try:
        is_date = not value.isdecimal()
        seconds = (
            parsedate_to_datetime(value).timestamp() - time.time() if is_date else float(value)
        )
    except ValueError:
        return None
    return max(seconds, SHORTEST_DELAY_S)


_OTHER_FAULTS = re.compile("mismatch|expired|not yet valid")  # of a certificate


def _trust_advice() -> str:
    file = os.environ.get("SSL_CERT_FILE", "")
    if file and not Path(file).is_file():
        return f"; SSL_CERT_FILE is {file}, which is no file"
    return "; give the file of the authority that signed it as SSL_CERT_FILE in the environment"


NOTICE_S = 10.0  # without an event while requests are open
TICK_S = 0.5


@dataclass(kw_only=True, slots=True)
class Stall:
    """A period in which a server sent nothing on any stream."""

    root: str
    seconds: float
    fault: str  # of its health check; empty: healthy

    def __str__(self) -> str:
        health = f"and {self.fault}" if self.fault else "though its health check succeeds"
        return f"{self.root} sent nothing for {self.seconds:.0f} s, {health}"


@asynccontextmanager
async def watch_for_stalls(
    clients: Sequence[Client], health: str, warn: Callable[[str], None]
) -> AsyncIterator[list[Stall]]:
    """Collect stalls while the block runs, and warn of each after `NOTICE_S`, with the result of a
    request to `health`."""
    stalls: list[Stall] = []
    tasks = [asyncio.create_task(_listen(client, health, warn, stalls)) for client in clients]
    try:
        yield stalls
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _listen(
    client: Client, health: str, warn: Callable[[str], None], stalls: list[Stall]
) -> None:
    clock = asyncio.get_running_loop().time
    stall, silent_s, last_counts = None, 0.0, (0, 0)
    while True:
        began_s = clock()
        await asyncio.sleep(TICK_S)
        # A pause of this process itself does not count as the server's silence.
        silent_s += min(clock() - began_s, 2 * TICK_S)
        counts = client.num_events, client.num_closed
        if counts != last_counts or not client.num_open:
            stall, silent_s, last_counts = None, 0.0, counts
        elif stall is not None:
            stall.seconds = silent_s
        elif silent_s >= NOTICE_S:
            began_s = clock()
            stall = Stall(root=client.address.root, seconds=silent_s, fault="")
            stall.fault = await client.why_unhealthy(health)
            silent_s += clock() - began_s
            stalls.append(stall)
            warn(f"{stall}; waiting for it for up to {SILENCE_S:.0f} s")
