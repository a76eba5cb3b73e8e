"""Rounds that are excluded from the graphs, one by one, and what is reported about them."""

import re

import pytest
import torch

from specbench.decode.drafter import NoDrafter
from specbench.decode.scheduler import FixedK
from tests.decoding.fake_graphs import FailingGraphs
from tests.decoding.graph_bench import (
    Bench,
    Cycle,
    Subject,
    eager_texts,
    make_subject,
    one_request,
    some_requests,
)
from tests.decoding.lossless import assert_texts

NO_MEMORY = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nGPU 0 has ...")


@pytest.fixture(scope="module")
def llama() -> Subject:
    return make_subject()


def test_graphs_captured_before_an_out_of_memory_error_stay_in_use(llama: Subject) -> None:
    texts = eager_texts(llama, llama.drafter("draft_model"), one_request(), FixedK(0), 1)
    bench = Bench(llama, llama.drafter("draft_model"), graphs=FailingGraphs(3, error=NO_MEMORY))

    for k, graph in ((0, "round"), (1, "round"), (2, "off"), (3, "round")):
        results = bench.serve(one_request(), FixedK(k))
        assert_texts(results, texts)
        assert results[0].graph == graph
    before = bench.graphs.num_replays
    for k in (0, 1):
        assert_texts(bench.serve(one_request(), FixedK(k)), texts)

    assert bench.graphs.num_captures == 4  # none was given up, and none tried again
    assert bench.graphs.num_replays > before
    assert bench.launcher.graph == "round"
    assert re.fullmatch("rounds .*1 row, K=2, 64 slots .*: CUDA .*2 GiB", bench.launcher.reason)


def test_a_request_whose_rounds_differ_names_both(llama: Subject) -> None:
    bench = Bench(llama, llama.drafter("draft_model"), graphs=FailingGraphs(2))

    (result,) = bench.serve(one_request(), Cycle(0, 3))

    assert result.graph == "off, round"


def test_a_failed_capture_is_counted_as_a_capture(llama: Subject) -> None:
    bench = Bench(llama, NoDrafter(), graphs=FailingGraphs())
    bench.serve(one_request(), FixedK(0))
    assert bench.decoder.num_captures == 1
    bench.serve(one_request(), FixedK(0))
    assert bench.decoder.num_captures == 1


def test_many_refused_buckets_are_summarized(llama: Subject) -> None:
    bench = Bench(llama, llama.drafter("draft_model"), graphs=FailingGraphs(*range(2, 9)))

    for k in range(7):
        bench.serve(one_request(), FixedK(k))

    reason = bench.launcher.reason or ""
    assert re.match("rounds .*1 row, K=1, 64 slots; 1 row, K=2, 64 slots; ", reason)
    assert "; 2 more " in reason


def test_the_least_recently_used_graph_is_dropped_first(llama: Subject) -> None:
    bench = Bench(llama, llama.drafter("draft_model"), most_rounds=2)

    for k, num_captures in ((0, 1), (1, 2), (0, 2), (2, 3), (0, 3), (1, 4)):
        bench.serve(one_request(), FixedK(k))
        assert bench.graphs.num_captures == num_captures

    texts = eager_texts(llama, llama.drafter("draft_model"), some_requests(), FixedK(2), 3)
    assert_texts(bench.serve(some_requests(), FixedK(2), 3), texts)


def test_later_graphs_of_a_kind_need_one_warm_up(llama: Subject) -> None:
    bench = Bench(llama, llama.drafter("draft_model"), graph="step")

    for k in (2, 3, 0):
        bench.serve(one_request(), FixedK(k))

    # Drafting and checking at K = 2, the same at K = 3, then another kind of round.
    assert bench.graphs.warm_ups == [3, 3, 1, 1, 3]
