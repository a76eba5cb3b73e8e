"""Round costs of a running server with an OpenAI-compatible API, timed at the K it runs.

Prompts are streamed one after the other, or so many at once as rows are asked about. The
server's own counters say how many rounds that took; chunks of the stream do not.
"""

import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from typing import Any, NamedTuple, NoReturn
from urllib.error import HTTPError, URLError
from urllib.parse import SplitResult, parse_qs, urlsplit, urlunsplit
from urllib.request import Request, urlopen

from specbench.errors import UsageError
from specbench.forecast.metrics_page import Counters, read_counters
from specbench.json_text import parse_json
from specbench.records import EngineCost

MAX_TOKENS = 64  # of an answer
NUM_BATCHES = 6  # each a cost of its own, so that their spread is seen
TIMEOUT_S = 120.0


class _Answer(NamedTuple):
    """What one streamed answer shows."""

    decode_s: float  # first token to last
    num_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Server:
    """Where a server is, and what its address says of K (`#k=0`)."""

    root: str
    api: str
    shown: str
    k: int | None

    @classmethod
    def at(cls, url: str) -> "Server":
        """UsageError for what is no address of a server."""
        parts = urlsplit(url)
        try:
            has_place = bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            has_place = False
        if parts.scheme not in ("http", "https") or not has_place:
            raise UsageError(f"--costs {url}: expected an address such as http://localhost:8000")
        said = parse_qs(parts.fragment).get("k", [""])[0]
        if parts.fragment and not said.isdigit():
            raise UsageError(f"--costs {url}: after # only the K it runs is read, such as #k=0")
        place = parts.netloc.rpartition("@")[2]  # never show a password
        path = parts.path.rstrip("/").removesuffix("/v1")
        root = urlunsplit(SplitResult(parts.scheme, parts.netloc, path, "", ""))
        return cls(
            root=root,
            api=f"{root}/v1",
            shown=f"{parts.scheme}://{place}{path}",
            k=int(said) if said else None,
        )


def time_server(
    url: str,
    prompts: Sequence[str],
    *,
    concurrency: int = 1,
    temperature: float = 0.0,
    max_tokens: int = MAX_TOKENS,
) -> list[EngineCost]:
    """What a round costs there: one cost a batch of `concurrency` requests, after a first one
    that warms up. UsageError where it cannot be reached or does not tell its rounds."""
    server = Server.at(url)
    client = _Client(server, temperature, max_tokens)
    asked = [prompts[i % len(prompts)] for i in range(concurrency * NUM_BATCHES)]
    client.answers(asked[:concurrency])
    costs = []
    for i in range(NUM_BATCHES):
        before = client.counters()
        answers = client.answers(asked[i * concurrency : (i + 1) * concurrency])
        costs.append(_cost(client, answers, client.counters().since(before), concurrency))
    return [cost for cost in costs if cost is not None] or client.fail(
        "its answers have one token each, so rounds cannot be timed; try other prompts"
    )


def _cost(
    client: "_Client", answers: Sequence[_Answer], counted: Counters, concurrency: int
) -> EngineCost | None:
    """None where no answer had a second token."""
    num_tokens = sum(answer.num_tokens - 1 for answer in answers if answer.num_tokens > 1)
    decode_s = sum(answer.decode_s for answer in answers if answer.num_tokens > 1)
    if not num_tokens or decode_s <= 0:
        return None
    k = _k(client, counted)
    num_rounds = float(num_tokens)
    if k:
        if counted.num_rounds is None or (
            counted.num_accepted is None and counted.engine != "sglang"
        ):
            client.fail(
                f"it runs at K = {k} and does not count rounds at {client.server.shown}/metrics; "
                "turn its metrics on, or give its costs as a table"
            )
        # Rounds without a draft are not counted as drafts; drafts past the end of an answer
        # are counted as accepted.
        unaccepted = 0.0 if counted.num_accepted is None else num_tokens - counted.num_accepted
        num_rounds = max(counted.num_rounds, unaccepted)
        if num_rounds <= 0:
            client.fail(
                f"it runs at K = {k} and counted no round of {num_tokens} tokens; give its costs "
                "as a table"
            )
    return EngineCost(
        source=client.server.shown,
        engine=client.engine(counted),
        num_speculative_tokens=k,
        concurrency=concurrency,
        cost=decode_s / num_rounds,
        is_relative=False,
        mean_acceptance_length=num_tokens / num_rounds if k else None,
    )


def _k(client: "_Client", counted: Counters) -> int:
    if client.server.k is not None:
        return client.server.k
    if counted.num_positions:
        return counted.num_positions
    if counted.num_rounds and counted.num_draft_tokens:
        return round(counted.num_draft_tokens / counted.num_rounds)
    if counted.engine is not None and not counted.num_rounds:  # it counted no speculation
        return 0
    client.fail(
        f"{client.server.shown}/metrics does not report its K; state it: "
        f"{client.server.shown}#k={4 if counted.num_rounds else 0}"
    )


class _Client:
    def __init__(self, server: Server, temperature: float, max_tokens: int) -> None:
        self.server = server
        self._asking = {"temperature": temperature, "max_tokens": max_tokens}
        models = self._json(f"{server.api}/models").get("data")
        if not isinstance(models, list) or not models or "id" not in models[0]:
            self.fail("its /v1/models names no model; is this an OpenAI-compatible server?")
        self._model = str(models[0]["id"])
        self._version: str | None = None

    def fail(self, reason: str) -> NoReturn:
        raise UsageError(f"--costs {self.server.shown}: {reason}")

    def counters(self) -> Counters:
        try:
            with self._open(f"{self.server.root}/metrics") as response:
                return read_counters(response.read().decode("utf-8", "replace"))
        except HTTPError:
            return Counters(engine=None)

    def engine(self, counted: Counters) -> str:
        """Such as `vllm 0.32.0`."""
        if self._version is None:
            try:
                self._version = str(self._json(f"{self.server.root}/version").get("version", ""))
            except UsageError:
                self._version = ""
        return " ".join(filter(None, (counted.engine or "server", self._version)))

    def answers(self, prompts: Sequence[str]) -> list[_Answer]:
        """All of them at once."""
        with ThreadPoolExecutor(len(prompts)) as pool:
            return list(pool.map(self._answer, prompts))

    def _answer(self, prompt: str) -> _Answer:
        chat = {"messages": [{"role": "user", "content": prompt}]}
        try:
            return self._stream("chat/completions", chat)
        except HTTPError as error:
            if error.code not in (400, 404):
                self.fail(f"it answered {error.code} to a chat: {_reason(error)}")
        try:  # a model without a chat template
            return self._stream("completions", {"prompt": prompt})
        except HTTPError as error:
            self.fail(f"it answered {error.code} to a completion: {_reason(error)}")

    def _stream(self, path: str, asked: dict[str, Any]) -> _Answer:
        body = {
            "model": self._model,
            **self._asking,
            **asked,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        times: list[float] = []
        num_tokens = 0
        with self._open(f"{self.server.api}/{path}", json.dumps(body).encode()) as response:
            for event in _events(response):
                if any(map(_has_text, event.get("choices") or ())):
                    times.append(time.perf_counter())
                num_tokens = (event.get("usage") or {}).get("completion_tokens", num_tokens)
        if times and not num_tokens:
            self.fail("its stream has no usage, so tokens cannot be counted; pass a table instead")
        return _Answer(times[-1] - times[0] if times else 0.0, num_tokens)

    def _json(self, url: str) -> dict[str, Any]:
        try:
            with self._open(url) as response:
                found = parse_json(response.read())
        except HTTPError as error:
            self.fail(f"{urlsplit(url).path} answered {error.code}")
        except ValueError:
            self.fail(f"{urlsplit(url).path} is not JSON")
        return found if isinstance(found, dict) else {}

    def _open(self, url: str, body: bytes | None = None) -> HTTPResponse:
        headers = {"Content-Type": "application/json"} if body else {}
        try:
            opened: HTTPResponse = urlopen(Request(url, body, headers), timeout=TIMEOUT_S)
        except HTTPError:
            raise
        except (URLError, OSError, HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            self.fail(f"cannot be reached: {reason}; start the server, or give a table")
        return opened


def _events(response: HTTPResponse) -> Iterator[dict[str, Any]]:
    """The server-sent events of a stream; what is not JSON object is passed over."""
    for line in response:
        text = line.decode("utf-8", "replace").strip()
        if text.startswith("data:") and not text.endswith("[DONE]"):
            try:
                event = parse_json(text.removeprefix("data:"))
            except ValueError:
                continue
            if isinstance(event, dict):
                yield event


def _has_text(choice: dict[str, Any]) -> bool:
    said = choice.get("delta") or {}
    return any(said.get(name) for name in ("content", "reasoning_content", "reasoning")) or bool(
        choice.get("text")
    )


def _reason(error: HTTPError) -> str:
    return error.read(200).decode("utf-8", "replace").strip() or str(error.reason)
