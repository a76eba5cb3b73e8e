"""What an answer becomes as a record: its times, its tokens, its end."""

import asyncio
from array import array
from dataclasses import replace

import pytest

from specbench.bench.served.open_session import OpenSession, request_records
from specbench.bench.served.running import ServerHandle
from specbench.bench.served.sessions import Answers, cycle_of, requests_of, served_cells
from specbench.engines.served_engine import ServerFacts
from specbench.probes.gpu import GpuUse
from specbench.servers.streamed import Streamed
from tests.bench.served.served_runs import plan_of

SENT_S = 100.0
# Two tokens after 0.5 s, all five 1.5 s later; at the end another event without any.
SAID = Streamed(
    text="Hello",
    token_ids=array("i", range(5)),
    num_tokens=5,
    num_prompt_tokens=7,
    finish_reason="stop",
    num_events=3,
    first_s=100.5,
    last_s=102.0,
    num_first=2,
    chunk_s=array("d", [0.5, 1.0000004]),
)


def recorded(folder, *answers, concurrency=1):
    plan = plan_of(folder, concurrency=(concurrency,))
    session, *_ = cycle_of(served_cells(plan, "vllm"), 1)
    asked = requests_of(plan, next(session.blocks(plan)))[: len(answers)]
    return request_records(session, session.cells[0], asked, answers)


def test_times_are_from_sending_to_the_first_token_and_on_to_the_last(tmp_path):
    (one,) = recorded(tmp_path, replace(SAID, sent_s=SENT_S))
    assert (one.ttft_s, one.decode_s, one.total_s) == (0.5, 1.5, 2.0)
    assert (one.num_output_tokens, one.num_first, one.num_timed_tokens) == (5, 2, 3)
    assert (one.num_prompt_tokens, one.text, one.finish_reason) == (7, "Hello", "eos")
    assert (one.arrived_s, one.repeat) == (None, 2)
    assert one.chunk_s == (0.5, 1.0)  # in whole microseconds, of which a file takes fewer bytes


def test_a_prompt_is_known_by_its_token_ids_if_the_server_gives_them(tmp_path):
    ids = [[1, 2, 3], [1, 2, 3], [12, 3], None]
    said = [replace(SAID, sent_s=SENT_S, prompt_ids=own) for own in ids]
    one, same, other, unknown = (r.prompt_sha256 for r in recorded(tmp_path, *said))
    assert one == same != other
    assert unknown is None


def test_without_ids_tokens_are_those_of_the_usage(tmp_path):
    silent = replace(SAID, token_ids=array("i"), num_first=None, finish_reason="length")
    (one,) = recorded(tmp_path, replace(silent, sent_s=SENT_S))
    assert (one.output_ids, one.num_output_tokens, one.num_first) == ((), 5, 1)
    assert one.finish_reason == "length"


def test_many_at_once_have_arrived_since_the_first_of_them_was_sent(tmp_path):
    sent_s = (SENT_S + 0.25, SENT_S)
    answers = [replace(SAID, sent_s=s) for i, s in enumerate(sent_s)]
    found = recorded(tmp_path, *answers, concurrency=2)
    assert [one.arrived_s for one in found] == [0.25, 0.0]


@pytest.mark.parametrize(
    ("answered", "error"),
    [
        (Streamed(sent_s=SENT_S, error="broke off"), "broke off"),
        (Streamed(sent_s=SENT_S), "the answer has no token"),
    ],
)
def test_what_has_no_answer_has_failed(tmp_path, answered, error):
    (one,) = recorded(tmp_path, answered)
    assert (one.finish_reason, one.error) == ("failed", error)
    assert one.ttft_s is one.decode_s is one.total_s is None


@pytest.mark.parametrize(("command", "told"), [(("vllm",), (2, 300.0, 10)), ((), (None,) * 3)])
def test_the_gpus_here_are_those_of_servers_that_were_started_here(tmp_path, command, told):
    plan = plan_of(tmp_path)
    session, *_ = cycle_of(served_cells(plan, "vllm"), 0)
    facts = ServerFacts(version="0.32.0", model="tiny", k=0)
    use = GpuUse(num_gpus=2, power_w=300.0, memory_bytes=10, throttle_reasons=("hot",))
    running = ServerHandle(clients=(), facts=facts, command=command)
    with asyncio.Runner() as runner:
        server = OpenSession(plan, session, "one", running, runner, Answers(), None).record(use)
    assert (server.num_gpus, server.power_w, server.memory_bytes) == told
    assert server.throttle_reasons == (("hot",) if command else ())
