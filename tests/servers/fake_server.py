"""A tiny server with an OpenAI-compatible API: responses take known rounds of a known time.

Its clock is the client's and advances only by rounds: the speed of this machine does not matter.
"""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from specbench.servers import response
from tests.servers.http_server import Handler, serving_with

PATIENCE_S = 120.0  # with a client that does not look at its clock when it reads a chunk
VLLM_PAGE = """\
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{{engine="0",model_name="tiny"}} {drafts}.0
vllm:spec_decode_num_draft_tokens_total{{engine="0",model_name="tiny"}} {draft_tokens}.0
vllm:spec_decode_num_accepted_tokens_total{{engine="0",model_name="tiny"}} {accepted}.0
vllm:num_requests_running{{engine="0",model_name="tiny"}} 0.0
"""
POSITION = 'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="{}"}} 1.0\n'
PLAIN_PAGE = 'vllm:num_requests_running{engine="0",model_name="tiny"} 0.0\n'


class SharedClock:
    """Time that the servers' rounds advance; each of their chunks waits until the client saw it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.start()

    def start(self) -> None:
        """Called while no answer is in progress: a client may have left one unfinished."""
        with self._changed:
            self._now_s = 0.0
            self._num_sent = self._num_seen = 0
            self._patience_s = PATIENCE_S

    def perf_counter(self) -> float:
        """The client's clock: it is read when the client has a chunk."""
        with self._changed:
            self._num_seen += 1
            self._changed.notify_all()
            return self._now_s

    def advance(self, seconds: float) -> int:
        """The number of the chunk that comes after this many seconds."""
        with self._changed:
            self._now_s += seconds
            self._num_sent += 1
            return self._num_sent

    def wait_for_a_look(self, number: int) -> None:
        """Time must not advance before the client saw when its chunk came."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._num_seen >= number, self._patience_s):
                self._patience_s = 0.0  # it never looks, so its measurement fails soon


CLOCK = SharedClock()


@dataclass
class FakeServer:
    """Rounds of `round_s` at `k`, each of which keeps `kept` drafts; the first token is prefill's.

    It has counted rounds of other clients before. Prefill takes as long as a hundred rounds.
    """

    k: int = 3
    kept: int = 1
    round_s: float = 0.004
    num_rounds: int = 8
    has_metrics: bool = True
    metrics_path: str = "/metrics"
    has_usage: bool = True
    has_ids: bool = True
    has_chat: bool = True
    refusal: str = ""  # of every chat
    num_refused: int = 0
    models: tuple[str, ...] = ("tiny",)
    models_page: str = ""  # in place of them
    key: str = ""  # without which it refuses requests
    elsewhere: str = ""  # the target of its redirects
    num_merged: int = 0  # rounds whose tokens come with the first one
    says_end: bool = False  # by an event without text, a round after the last
    nonsense: dict[str, Any] | None = None  # the only event of each stream
    counters: str = ""  # instead of its own page
    num_foreign: int = 0  # tokens of other clients that it counts with each response
    pages: Mapping[str, str] = field(default_factory=dict)  # by path: recorded responses
    requests: list[dict[str, Any]] = field(default_factory=list)
    total_rounds: int = 1_000
    total_tokens: int = 70_000
    lock: threading.Lock = field(default_factory=threading.Lock)

    def page(self) -> str:
        if self.counters:
            return self.counters
        emitted = f'vllm:generation_tokens_total{{engine="0"}} {self.total_tokens}.0\n'
        if not self.k:
            return PLAIN_PAGE + emitted
        rounds = self.total_rounds
        counts = VLLM_PAGE.format(
            drafts=rounds, draft_tokens=rounds * self.k, accepted=rounds * self.kept
        )
        return counts + emitted + "".join(POSITION.format(i) for i in range(self.k))

    def events(self, is_chat: bool) -> Iterator[dict[str, Any]]:
        """A chunk per round; the last event has the usage and no choice."""
        if self.nonsense is not None:
            yield self.nonsense
            return
        a_round = self.kept + 1 if self.k else 1
        for i in range(self.num_merged, self.num_rounds + 1):
            is_first = i == self.num_merged
            number = CLOCK.advance(100 * self.round_s if is_first else self.round_s)
            text = "a" * (1 + i * a_round if is_first else a_round)
            choice = {"delta": {"content": text}} if is_chat else {"text": text}
            yield {"choices": [choice | self._ids(len(text))]}
            CLOCK.wait_for_a_look(number)
        if self.says_end:
            number = CLOCK.advance(self.round_s)
            end = {"delta": {"content": ""}, "finish_reason": "stop"}
            yield {"choices": [end | self._ids(1)]}
            CLOCK.wait_for_a_look(number)
        num_rounds = self.num_rounds + self.says_end
        num_tokens = 1 + self.num_rounds * a_round + self.says_end
        with self.lock:
            self.total_rounds += num_rounds
            self.total_tokens += num_tokens + self.num_foreign
        yield {"choices": [], "usage": {"completion_tokens": num_tokens}} if self.has_usage else {}

    def _ids(self, num_tokens: int) -> dict[str, list[int]]:
        return {"token_ids": [7] * num_tokens} if self.has_ids else {}


class _Handler(Handler):
    fake: FakeServer

    def _is_let_in(self) -> bool:
        """Whether it accepts this request; else it sends the reason."""
        if self.fake.elsewhere:
            self.send("", 307, {"Location": self.fake.elsewhere + self.path})
        elif self.fake.key and self.headers["Authorization"] != f"Bearer {self.fake.key}":
            body = {"error": {"message": f"wrong key {self.headers['Authorization']}"}}
            self.send(json.dumps(body), 401)
        else:
            return True
        return False

    def do_GET(self) -> None:
        fake = self.fake
        if not self._is_let_in():
            return
        path = self.path.partition("?")[0]
        if path in fake.pages:
            self.send(fake.pages[path])
        elif path == "/v1/models":
            named = json.dumps({"data": [{"id": name} for name in fake.models]})
            self.send(fake.models_page or named)
        elif path == "/version":
            self.send('{"version": "0.32.0"}')
        elif path == fake.metrics_path and fake.has_metrics:
            self.send(fake.page())
        else:
            self.send_error(404)

    def do_POST(self) -> None:
        fake, body = self.fake, self.read_body()
        if not self._is_let_in():
            return
        is_chat = self.path == "/v1/chat/completions"
        if is_chat and (fake.refusal or not fake.has_chat):
            fake.num_refused += 1
            self.send_error(400 if fake.refusal else 404, fake.refusal or None)
            return
        with fake.lock:
            fake.requests.append(body)
        if self.path in fake.pages:
            self.send(fake.pages[self.path])
        else:
            self.stream(fake.events(is_chat))


@contextmanager
def serving(fake: FakeServer) -> Iterator[str]:
    """The address of the running server; meanwhile the client has the servers' clock."""
    CLOCK.start()
    with (
        serving_with(_Handler, fake=fake) as url,
        patch.object(response, "perf_counter", CLOCK.perf_counter),
    ):
        yield url
