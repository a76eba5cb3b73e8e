"""What the server counted beside what was asked of it."""

from dataclasses import replace

import pytest

from specbench.bench.served.open_session import count_problems, count_warnings
from specbench.records import RequestCounts
from specbench.servers.metrics_page import Counters
from tests.made_records import made_request

COUNTS = RequestCounts(num_rounds=4, num_drafted=8, num_accepted=5, num_drafting=3, num_overshot=1)


def requests(num, counts=None):
    """Of 10 tokens each, to prompts of 20."""
    asked = {"output_ids": tuple(range(10)), "num_prompt_tokens": 20}
    return [made_request("cell", f"p{i}", None, counts=counts, **asked) for i in range(num)]


MOST_TOKENS = 12
FOREIGN = "another client"


def problems(some, k=0, **counted):
    return tuple(count_problems(some, Counters(engine="vllm", **counted), k, MOST_TOKENS))


@pytest.mark.parametrize(
    ("num_tokens", "said"),
    [
        (26.0, "26 output tokens"),
        (27.0, None),  # a request's end may be counted or not
        (33.0, None),
        (34.0, FOREIGN),
        (None, None),
    ],
)
def test_output_tokens_beyond_ours_are_another_clients(num_tokens, said):
    assert [said in text for text in problems(requests(3), num_tokens=num_tokens)] == (
        [True] if said else []
    )


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
def test_prefill_and_requests_beyond_ours_are_another_clients(counted, is_foreign):
    found = problems(requests(3), num_tokens=30.0, **counted)
    assert [FOREIGN in text for text in found] == [True] * is_foreign


def test_a_server_that_does_not_report_prompt_tokens_per_request_is_not_accused():
    some = [replace(request, num_prompt_tokens=0) for request in requests(3)]
    assert problems(some, num_prompt_tokens=900.0) == ()


def test_a_restart_is_named_and_counts_after_it_are_not_compared():
    (problem,) = problems(requests(3), num_tokens=-5.0, spans_restart=True)
    assert "restarted" in problem


def test_our_failed_requests_may_have_been_served_and_no_more_than_that():
    failed = made_request("cell", "p", None, finish_reason="failed", error="broke off")
    some = [*requests(3), failed]
    served = {"num_tokens": 30.0 + MOST_TOKENS, "num_prompt_tokens": 80.0, "num_requests": 4.0}
    assert problems(some, **served) == ()
    for name, most in (("num_tokens", 46.0), ("num_prompt_tokens", 84.0), ("num_requests", 4.0)):
        assert problems(some, **{name: most}) == ()
        assert [FOREIGN in text for text in problems(some, **{name: most + 1})] == [True]
    (problem,) = problems([failed, failed], num_tokens=500.0)
    assert "broke off" in problem


@pytest.mark.parametrize(
    ("accepted", "rounds", "said"),
    [
        (12.0, 6.0, ()),  # what is accepted past the end is the server's, too
        (10.0, 6.0, ("accepted drafts: 12 by the requests' counts, 10 by the server's",)),
        (12.0, 8.0, ("rounds with drafts: 6 by the requests' counts, 8 by the server's",)),
        (12.0, None, ()),
        (None, None, ()),
    ],
)
def test_counts_of_requests_are_compared_with_the_servers(accepted, rounds, said):
    counted = Counters(engine="vllm", num_tokens=20.0, num_accepted=accepted, num_rounds=rounds)
    assert not [*count_problems(requests(2, COUNTS), counted, 2, MOST_TOKENS)]
    assert tuple(count_warnings(requests(2, COUNTS), counted)) == said
    some = [*requests(1, COUNTS), *requests(1)]
    assert not [*count_warnings(some, counted)]


def test_a_server_that_drafts_is_no_baseline():
    (problem,) = problems(requests(3), 0, num_draft_tokens=12.0)
    assert {"12", "0;"} <= set(problem.split())
    assert problems(requests(3), 4, num_draft_tokens=12.0) == ()
