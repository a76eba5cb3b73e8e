"""What the server counted beside what was asked of it."""

import pytest

from specbench.bench.served.crosscheck import checked
from specbench.records import RequestCounts
from specbench.servers.metrics_page import Counters
from tests.made_records import made_request

COUNTS = RequestCounts(num_rounds=4, num_drafted=8, num_accepted=5, num_drafting=3, num_overshot=1)


def requests(num, counts=None):
    """Of 10 tokens each."""
    return [
        made_request("cell", f"p{i}", None, output_ids=tuple(range(10)), counts=counts)
        for i in range(num)
    ]


@pytest.mark.parametrize(
    ("num_tokens", "said"),
    [
        (26.0, "the server counted 26 tokens, our requests have 30"),
        (27.0, None),  # a request's end may be counted or not
        (33.0, None),
        (34.0, "another client was served meanwhile: the server counted 34 tokens"),
        (-5.0, "the server restarted"),
        (None, None),
    ],
)
def test_tokens_that_nobody_here_asked_for_are_another_clients(num_tokens, said):
    found = checked(requests(3), Counters(engine="vllm", num_tokens=num_tokens), 0).problems
    assert [said in problem for problem in found] == ([True] if said else [])


def test_a_failed_request_leaves_the_count_unchecked_and_all_of_them_are_a_problem():
    failed = made_request("cell", "p", None, finish_reason="failed", error="broke off")
    foreign = Counters(engine="vllm", num_tokens=500.0)
    assert checked([*requests(3), failed], foreign, 0).problems == ()
    (problem,) = checked([failed, failed], foreign, 0).problems
    assert problem == "no request was answered: broke off"


@pytest.mark.parametrize(
    ("accepted", "rounds", "said"),
    [
        (12.0, 6.0, ()),  # what is accepted past the end is the server's, too
        (10.0, 6.0, ("requests accepted 12 drafts by their own counts, 10 by the server's",)),
        (12.0, 8.0, ("requests count 6 rounds that drafted, the server 8",)),
        (12.0, None, ()),
        (None, None, ()),
    ],
)
def test_counts_of_requests_are_compared_with_the_servers(accepted, rounds, said):
    counted = Counters(engine="vllm", num_tokens=20.0, num_accepted=accepted, num_rounds=rounds)
    assert checked(requests(2, COUNTS), counted, 2) == ((), said)
    assert checked([*requests(1, COUNTS), *requests(1)], counted, 2).warnings == ()


def test_a_server_that_drafts_is_no_baseline():
    counted = Counters(engine="vllm", num_draft_tokens=12.0)
    (problem,) = checked(requests(3), counted, 0).problems
    assert problem.startswith("it drafted 12 tokens, and is measured as K = 0")
    assert checked(requests(3), counted, 4).problems == ()
