"""The record of a response, and how a server's counters appear in it."""

import asyncio
from array import array
from dataclasses import replace

import pytest

from specbench.bench.served.open_session import (
    OpenSession,
    count_problems,
    count_warnings,
    request_records,
)
from specbench.bench.served.running import ServerHandle
from specbench.bench.served.sessions import Answers, cycle_of, requests_of, served_cells
from specbench.probes.gpu import GpuUse
from specbench.records import Kind, RequestCounts
from specbench.servers.facts import Fact, ServerFacts
from specbench.servers.metrics_page import Counters
from specbench.servers.response import StreamedResponse
from tests.bench.served.served_runs import plan_of
from tests.made_records import made_request

SENT_S = 100.0
# Two tokens after 0.5 s, all five 1.5 s later; at the end another event without any.
SAID = StreamedResponse(
    text="Hello",
    token_ids=array("i", range(5)),
    num_tokens=5,
    num_prompt_tokens=7,
    finish_reason="stop",
    first_s=100.5,
    last_s=102.0,
    num_first=2,
    chunk_s=array("d", [0.5, 1.0000004]),
)


def recorded(folder, *answers, concurrency=1):
    plan = plan_of(folder, concurrency=(concurrency,))
    session, *_ = cycle_of(served_cells(plan, "vllm"), 1)
    requests = requests_of(plan, next(session.blocks(plan)))[: len(answers)]
    return request_records(session, session.cells[0], requests, answers)


def test_latencies_are_measured_from_sending_to_the_first_and_last_token(tmp_path):
    (record,) = recorded(tmp_path, replace(SAID, sent_s=SENT_S))
    assert (record.ttft_s, record.decode_s, record.total_s) == (0.5, 1.5, 2.0)
    assert (record.num_output_tokens, record.num_first, record.num_timed_tokens) == (5, 2, 3)
    assert (record.num_prompt_tokens, record.text, record.finish_reason) == (7, "Hello", "eos")
    assert (record.arrived_s, record.repeat) == (None, 2)
    assert record.chunk_s == (0.5, 1.0)  # in whole microseconds, of which a file takes fewer bytes


def test_a_prompt_is_known_by_its_token_ids_if_the_server_gives_them(tmp_path):
    ids = [[1, 2, 3], [1, 2, 3], [12, 3], None]
    answers = [replace(SAID, sent_s=SENT_S, prompt_ids=token_ids) for token_ids in ids]
    first, same, other, unknown = (r.prompt_sha256 for r in recorded(tmp_path, *answers))
    assert first == same != other
    assert unknown is None


def test_the_token_count_comes_from_usage_without_token_ids(tmp_path):
    silent = replace(SAID, token_ids=array("i"), num_first=None, finish_reason="length")
    (record,) = recorded(tmp_path, replace(silent, sent_s=SENT_S))
    assert (record.output_ids, record.num_output_tokens, record.num_first) == ((), 5, 1)
    assert record.finish_reason == "length"


def test_concurrent_requests_arrive_when_the_first_is_sent(tmp_path):
    sent_s = (SENT_S + 0.25, SENT_S)
    answers = [replace(SAID, sent_s=s) for i, s in enumerate(sent_s)]
    records = recorded(tmp_path, *answers, concurrency=2)
    assert [record.arrived_s for record in records] == [0.25, 0.0]


@pytest.mark.parametrize(
    ("answered", "error"),
    [
        (StreamedResponse(sent_s=SENT_S, error="broke off"), "broke off"),
        (StreamedResponse(sent_s=SENT_S), "the answer has no token"),
    ],
)
def test_a_request_without_a_complete_response_is_recorded_as_failed(tmp_path, answered, error):
    (record,) = recorded(tmp_path, answered)
    assert (record.finish_reason, record.error) == ("failed", error)
    assert record.ttft_s is record.decode_s is record.total_s is None


@pytest.mark.parametrize(("command", "expected"), [(("vllm",), (2, 300.0, 10)), ((), (None,) * 3)])
def test_gpu_use_is_recorded_only_for_started_servers(tmp_path, command, expected):
    plan = plan_of(tmp_path)
    session, *_ = cycle_of(served_cells(plan, "vllm"), 0)
    facts = ServerFacts(version="0.32.0", model="tiny", k=Fact.read("#k", 0))
    use = GpuUse(num_gpus=2, power_w=300.0, memory_bytes=10, throttle_reasons=("hot",))
    running = ServerHandle(engine="vllm", clients=(), facts=facts, command=command)
    with asyncio.Runner() as runner:
        server = OpenSession(plan, session, "one", running, runner, Answers(), None).record(use)
    assert (server.num_gpus, server.power_w, server.memory_bytes) == expected
    assert server.throttle_reasons == (("hot",) if command else ())


COUNTS = RequestCounts(num_rounds=4, num_drafted=8, num_accepted=5, num_drafting=3, num_overshot=1)


def requests(num, counts=None):
    """Requests of 10 tokens each, for prompts of 20."""
    fields = {"output_ids": tuple(range(10)), "num_prompt_tokens": 20}
    return [made_request("cell", f"p{i}", None, counts=counts, **fields) for i in range(num)]


MAX_TOKENS = 12
FOREIGN = "another client"


def problems(some, k=0, **counted):
    return tuple(count_problems(some, Counters(engine="vllm", **counted), k, MAX_TOKENS))


@pytest.mark.parametrize(
    ("num_tokens", "expected"),
    [
        (26.0, "26 output tokens"),
        (27.0, None),  # a request's end may be counted or not
        (33.0, None),
        (34.0, FOREIGN),
        (None, None),
    ],
)
def test_extra_output_tokens_indicate_another_client(num_tokens, expected):
    assert [expected in text for text in problems(requests(3), num_tokens=num_tokens)] == (
        [True] if expected else []
    )


def test_drafts_past_the_end_may_count_as_output_tokens():
    for num_tokens, is_foreign in ((36.0, False), (37.0, True)):
        texts = problems(requests(3, COUNTS), 2, num_tokens=num_tokens)
        assert [FOREIGN in text for text in texts] == [True] * is_foreign


@pytest.mark.parametrize(
    ("counted", "is_foreign"),
    [
        ({"num_prompt_tokens": 63.0}, False),  # 20 each, and one more per request
        ({"num_prompt_tokens": 64.0}, True),
        ({"num_prompt_tokens": 5.0}, False),  # the rest was cached
        ({"num_prompt_tokens": 83.0, "num_preemptions": 1.0}, False),  # one prefilled twice
        ({"num_prompt_tokens": 84.0, "num_preemptions": 1.0}, True),
        ({"num_requests": 3.0}, False),
        ({"num_requests": 4.0}, True),
        ({"num_in_progress": 0.0}, False),
        ({"num_in_progress": 1.0}, True),
    ],
)
def test_extra_prompt_tokens_or_requests_indicate_another_client(counted, is_foreign):
    texts = problems(requests(3), num_tokens=30.0, **counted)
    assert [FOREIGN in text for text in texts] == [True] * is_foreign


def test_missing_prompt_token_counts_are_not_taken_for_another_client():
    some = [replace(request, num_prompt_tokens=0) for request in requests(3)]
    assert problems(some, num_prompt_tokens=900.0) == ()


def test_a_restarted_server_is_reported_without_comparing_counts():
    (problem,) = problems(requests(3), num_tokens=-5.0, spans_restart=True)
    assert "restarted" in problem


def test_failed_requests_explain_only_their_own_server_counts():
    failed = made_request("cell", "p", None, finish_reason="failed", error="broke off")
    some = [*requests(3), failed]
    served = {"num_tokens": 30.0 + MAX_TOKENS, "num_prompt_tokens": 80.0, "num_requests": 4.0}
    assert problems(some, **served) == ()
    for name, most in (("num_tokens", 46.0), ("num_prompt_tokens", 84.0), ("num_requests", 4.0)):
        assert problems(some, **{name: most}) == ()
        assert [FOREIGN in text for text in problems(some, **{name: most + 1})] == [True]
    (problem,) = problems([failed, failed], num_tokens=500.0)
    assert "broke off" in problem


@pytest.mark.parametrize(
    ("accepted", "rounds", "expected"),
    [
        (12.0, 6.0, ()),  # drafts accepted past the end also count for the server
        (10.0, 6.0, (Kind.ACCEPTED_COUNTS_DIFFER(requests=12, server=10.0),)),
        (12.0, 8.0, (Kind.ROUND_COUNTS_DIFFER(requests=6, server=8.0),)),
        (12.0, None, ()),
        (None, None, ()),
    ],
)
def test_counts_of_requests_are_compared_with_the_servers(accepted, rounds, expected):
    counted = Counters(engine="vllm", num_tokens=20.0, num_accepted=accepted, num_rounds=rounds)
    assert not [*count_problems(requests(2, COUNTS), counted, 2, MAX_TOKENS)]
    assert tuple(count_warnings(requests(2, COUNTS), counted)) == expected
    some = [*requests(1, COUNTS), *requests(1)]
    assert not [*count_warnings(some, counted)]


def test_a_server_that_drafts_is_not_a_baseline():
    (problem,) = problems(requests(3), 0, num_draft_tokens=12.0)
    assert {"12", "K=0;"} <= set(problem.split())
    assert problems(requests(3), 4, num_draft_tokens=12.0) == ()
