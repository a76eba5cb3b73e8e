"""An asynchronous client of one server with an OpenAI-compatible API.

Tokens are counted by usage and token ids, never by chunks: with speculation a chunk holds
several, and servers merge chunks and hold back pieces of characters.
"""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from types import TracebackType
from typing import Any, NoReturn, Self

import httpx

from specbench.errors import SpecbenchError
from specbench.inputs.address import Address
from specbench.json_text import parse_json
from specbench.servers.metrics_page import Counters, read_counters

CONNECT_S, SILENCE_S = 10.0, 120.0  # how long a server may take to answer, and between two chunks
LONGEST_REASON = 200  # characters of what a server says of a refusal


class ServerError(SpecbenchError):
    """A server cannot be reached, refuses, or does not tell what is needed of it."""


class RefusedError(ServerError):
    """It answered, with a status that is no success."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


@dataclass(kw_only=True, slots=True)
class Streamed:
    """One streamed answer. Times are of `perf_counter`, when what they name came in."""

    first_s: float | None = None  # the first token, and those that came with it
    last_s: float | None = None  # the last one; an end-of-text token is one
    num_first: int | None = None  # tokens of the first event; None: the server does not tell
    num_tokens: int | None = None  # of the whole answer
    token_ids: list[int] = field(default_factory=list)  # empty where the server gives none
    text: str = ""
    finish_reason: str | None = None
    metrics: Mapping[str, Any] | None = None  # what the server says of this request

    def add(self, event: Mapping[str, Any]) -> None:
        """Take in what one event of the stream says."""
        usage = event.get("usage") or {}
        choice: Mapping[str, Any] = next(iter(event.get("choices") or ()), {})
        ids, text = choice.get("token_ids") or (), _text(choice)
        self.token_ids += ids
        self.text += text
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        self.metrics = event.get("metrics") or self.metrics
        self.num_tokens = usage.get("completion_tokens", self.num_tokens)
        if ids or text or (choice.get("finish_reason") and self.first_s is not None):
            self.last_s = perf_counter()
            if self.first_s is None:
                self.first_s = self.last_s
                self.num_first = len(self.token_ids) or usage.get("completion_tokens")


class Client:
    """Asks one server, and no other host whatever it answers: redirects are refused.

    Proxies and .netrc of the environment are not used. Certificates are verified.
    """

    def __init__(self, address: Address, *, most_at_once: int) -> None:
        self.address = address
        self._key = address.key()
        self._http = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {self._key}"} if self._key else {},
            timeout=httpx.Timeout(SILENCE_S, connect=CONNECT_S),
            limits=httpx.Limits(max_connections=most_at_once + 1),
            follow_redirects=False,
            trust_env=False,
        )

    async def __aenter__(self) -> Self:
        await self._http.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        await self._http.__aexit__(kind, error, at)

    async def json(self, url: str) -> dict[str, Any]:
        """The JSON object at a URL of the server; ServerError."""
        try:
            found = parse_json(await self._page(url))
        except ValueError:
            self.fail(f"{_path(url)} is not JSON")
        return found if isinstance(found, dict) else {}

    async def model(self) -> str:
        """The first model it serves; ServerError where it names none."""
        models = (await self.json(f"{self.address.api}/models")).get("data")
        if not isinstance(models, list) or not models or "id" not in models[0]:
            self.fail("its /v1/models names no model; is this an OpenAI-compatible server?")
        return str(models[0]["id"])

    async def version(self) -> str:
        """What it says of its version; empty where it says nothing."""
        try:
            return str((await self.json(f"{self.address.root}/version")).get("version", ""))
        except RefusedError:
            return ""

    async def counters(self) -> Counters:
        """What its metrics page says; of no engine where it has none."""
        try:
            page = await self._page(f"{self.address.root}/metrics")
        except RefusedError:
            return Counters(engine=None)
        try:
            return read_counters(page.decode("utf-8", "replace"))
        except ValueError as error:
            self.fail(f"/metrics is not a Prometheus page: {error}")

    async def stream(self, path: str, asked: Mapping[str, Any]) -> Streamed:
        """The answer to a request, which asks for a stream and its usage; ServerError."""
        body = {"stream": True, "stream_options": {"include_usage": True}, **asked}
        answer = Streamed()
        async for event in self._events(f"{self.address.api}/{path}", body):
            answer.add(event)
        return answer

    async def _events(self, url: str, body: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """The server-sent events of a stream; what is not a JSON object is passed over."""
        try:
            async with self._http.stream("POST", url, json=body) as response:
                await self._require_success(response)
                async for line in response.aiter_lines():
                    event = _event(line)
                    if event is not None:
                        yield event
        except httpx.HTTPError as error:
            self._fail_to_reach(error)

    async def _page(self, url: str) -> bytes:
        try:
            response = await self._http.get(url)
        except httpx.HTTPError as error:
            self._fail_to_reach(error)
        await self._require_success(response)
        return response.content

    async def _require_success(self, response: httpx.Response) -> None:
        if response.is_success:
            return
        if response.has_redirect_location:
            self.fail("it redirects elsewhere, and only the given address is asked; give that one")
        said = self._without_key(_reason(await response.aread()))
        reason = said[:LONGEST_REASON] or response.reason_phrase
        text = f"{_path(str(response.url))} answered {response.status_code}: {reason}"
        if response.status_code in (401, 403):
            text += "; give its key as SPECBENCH_API_KEY in the environment"
        raise RefusedError(f"{self.address.root}: {text}", response.status_code)

    def fail(self, reason: str) -> NoReturn:
        raise ServerError(f"{self.address.root}: {reason}")

    def _fail_to_reach(self, error: httpx.HTTPError) -> NoReturn:
        said = self._without_key(str(error)) or type(error).__name__
        raise ServerError(f"{self.address.root}: cannot be reached: {said}") from error

    def _without_key(self, text: str) -> str:
        return text.replace(self._key, "***") if self._key else text


def _event(line: str) -> dict[str, Any] | None:
    if not line.startswith("data:"):
        return None
    try:
        event = parse_json(line.removeprefix("data:"))
    except ValueError:  # [DONE] among others
        return None
    return event if isinstance(event, dict) else None


def _text(choice: Mapping[str, Any]) -> str:
    said = choice.get("delta") or {}
    parts = (said.get(name) for name in ("reasoning_content", "reasoning", "content"))
    return next((part for part in parts if part), "") or choice.get("text") or ""


def _reason(page: bytes) -> str:
    """What the page of a refusal says, on one line; empty for a page that is made for browsers."""
    try:
        found = parse_json(page)
    except ValueError:
        text = page.decode("utf-8", "replace")
        return "" if "<html" in text.lower() else " ".join(text.split())
    error = found.get("error", found) if isinstance(found, dict) else found
    said = error.get("message", error) if isinstance(error, dict) else error
    return " ".join(str(said).split())


def _path(url: str) -> str:
    return httpx.URL(url).path
