"""Servers that hang, end, are full, are replaced or routed to: reported, and measured again."""

import threading
from contextlib import contextmanager
from itertools import cycle
from unittest.mock import patch

import pytest

from specbench.errors import UsageError
from specbench.records import Kind
from specbench.report.document import build_document
from specbench.servers import client, connections
from specbench.servers.client import Client
from tests.bench.fakes import RecordingWatch
from tests.bench.served.fake_vllm import Handler
from tests.bench.served.running import running
from tests.bench.served.served_runs import measured, running_settings
from tests.servers.http_server import serving_with

SILENCE_S = 1.0  # instead of a client's timeout of two minutes


class Disturbance:
    """Disturbs the K = 2 server at its third measured request."""

    def __init__(self, kind, engine):
        self.kind, self.engine, self.num = kind, engine, 0
        self.released = threading.Event()
        engine.before_answer, engine.on_health = self.disturb, self.recover

    def disturb(self):
        self.num += 1
        if self.kind == "broken" and self.num >= 3 and not self.released.is_set():
            raise ConnectionResetError  # again and again: the client repeats a request
        if self.num != 3:
            return
        if self.kind == "full":
            self.engine.num_to_refuse, self.engine.refusal_status = 1, 429
        elif self.kind == "replaced":
            self.engine.k, self.engine.started_s = 0, self.engine.started_s + 60
        else:
            self.engine.health_status = 503
            self.released.wait(60)

    def recover(self):
        self.engine.health_status = 200
        if self.kind == "paused":
            self.released.set()

    def end(self):
        self.engine.k, self.engine.num_to_refuse = 2, 0
        self.released.set()


@contextmanager
def impatient():
    """Only for the disturbed run: on a loaded machine others may also seem to hang."""
    with (
        patch.multiple(client, NOTICE_S=0.2, TICK_S=0.02),
        patch.dict(Client.__init__.__kwdefaults__, silence_s=SILENCE_S),
    ):
        yield


def figures_of(stored):
    """The figures that follow from only the prompts and the drafts, by K."""
    return {
        cell.key.draft.k: (
            cell.num_requests,
            cell.metrics["num_cycles"],
            cell.metrics.get("mean_acceptance_length"),
        )
        for cell in build_document(stored).cells
    }


@pytest.fixture(scope="module")
def undisturbed_run(tmp_path_factory):
    """Figures of a run with undisturbed servers."""
    folder = tmp_path_factory.mktemp("undisturbed")
    with running(0, 2) as servers:
        settings = running_settings(folder, *(server.url for server in servers))
        return figures_of(measured(folder, settings))


def check_no_more_requests(stored, watch):
    """A session ends with the first request that has no answer."""
    lost, *_ = [server for server in stored.servers if server.problems]
    (block,) = [block for block in stored.blocks if block.session == lost.session]
    assert sum(not request.error for request in block.requests) == 2
    assert sum("not sent" in (request.error or "") for request in block.requests) == 4
    stalled = [text for text in watch.warnings if "K=2, cycle 1: http" in text]
    (message,) = [text for text in stalled if "sent nothing for" in text]  # for any duration
    assert "/health answers 503" in message


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("full", "answered 429"),
        ("broken", "broke off"),
        ("hung", "received nothing for"),
        ("paused", "/health answers 503"),
        ("replaced", "K is contradicted: 0 (/metrics), 2 (#k)"),
    ],
)
def test_a_disturbed_server_is_reported_and_a_resume_restores_the_result(
    tmp_path, undisturbed_run, kind, message
):
    with running(0, 2) as servers:
        settings = running_settings(tmp_path, *(server.url for server in servers))
        watch = RecordingWatch()
        disturbance = Disturbance(kind, servers[1].engine)
        with impatient():
            stored = measured(tmp_path, settings, watch)
        disturbance.end()
        assert any(message in text and "K=2" in text for text in watch.warnings)
        assert build_document(stored).failures
        if kind == "hung":
            check_no_more_requests(stored, watch)
        again = measured(tmp_path, settings, resume=stored.run.run_id)
    assert build_document(again).failures == ()
    assert figures_of(again) == undisturbed_run


@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_rate_limit_is_waited_out_unless_it_lowers_the_concurrency(
    tmp_path, monkeypatch, undisturbed_run, concurrency
):
    monkeypatch.setattr(client, "SHORTEST_DELAY_S", 0.01)
    with running(0, 2) as servers:
        engine = servers[1].engine
        engine.refusal_status, engine.refusal_headers = 429, {"Retry-After": "0"}

        def refuse_the_next():
            engine.num_to_refuse, engine.before_answer = 1, lambda: None

        engine.before_answer = refuse_the_next
        urls = (server.url for server in servers)
        stored = measured(tmp_path, running_settings(tmp_path, *urls, concurrency=(concurrency,)))
    (limited,) = [s for s in stored.servers if s.warnings or s.problems]
    if concurrency == 1:
        (warning,) = limited.warnings
        assert (warning.kind, warning.figures["delayed"]) == (Kind.RATE_LIMITED, 1)
        assert figures_of(stored) == undisturbed_run
    else:
        (problem,) = limited.problems
        assert "--concurrency" in problem
    assert stored.is_complete


def test_a_router_in_front_of_two_servers_is_refused_before_anything_is_measured(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(connections, "SETTLED_S", 0.0)  # a kept connection is used immediately
    with running(0, 0) as servers:
        engines = cycle(server.engine for server in servers)

        class Routed(Handler):
            def setup(self):
                self.engine = next(engines)
                super().setup()

        servers[1].engine.num_tokens = 500
        with serving_with(Routed) as url, pytest.raises(UsageError, match="several servers"):
            measured(tmp_path, running_settings(tmp_path, url))
    assert not (tmp_path / "runs").exists()
