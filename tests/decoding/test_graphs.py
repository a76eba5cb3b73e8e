"""Rounds as graphs, on fakes of what CUDA does: the texts of eager rounds, whatever happens.

That the captured functions can be captured at all is traced on fake CUDA tensors.
"""

import pytest
import torch
from torch import Tensor

from specbench.decode.drafter import Capabilities, Drafter
from specbench.decode.launcher import GraphKind, catch_up
from specbench.decode.round import run_round
from specbench.decode.rows import Rows
from specbench.decode.sampling import Sampler
from specbench.decode.scheduler import FixedK
from specbench.decode.verifier import verify
from specbench.drafters.ngram import Ngram
from specbench.forward.runner import StockRunner
from specbench.records import Request, Sampling
from tests.decoding.fake_cuda import DEVICE, HostWatch, fake_cuda
from tests.decoding.fake_graphs import FailingGraphs, InertGraphs, LateClock, graphed
from tests.decoding.graph_bench import (
    GREEDY,
    WARM,
    Bench,
    Cycle,
    Subject,
    eager_texts,
    make_subject,
    one_request,
    some_requests,
)
from tests.decoding.lossless import (
    acceptance_rate,
    assert_texts,
    filled_rows,
    make_drafter,
    parts_of,
)
from tests.decoding.models import random_prompt, tiny_llama


@pytest.fixture(scope="module")
def llama() -> Subject:
    return make_subject()


@pytest.mark.sampled(one_in=2, every=["method", "graph", "num_rows"])
@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_rows", "sampling"), [(1, GREEDY), (5, WARM)], ids=["1 greedy", "5 sampled"]
)
@pytest.mark.parametrize("graph", ["round", "step"])
@pytest.mark.parametrize(("method", "k"), [("none", 0), ("ngram", 3), ("draft_model", 4)])
def test_texts_are_those_of_eager_rounds(
    llama: Subject, method: str, k: int, graph: GraphKind, num_rows: int, sampling: Sampling
) -> None:
    requests, drafter = some_requests(), llama.drafter(method)
    texts = eager_texts(llama, drafter, requests, FixedK(k), num_rows, sampling)
    bench = Bench(llama, drafter, graph=graph)

    assert_texts(bench.serve(requests, FixedK(k), num_rows, sampling), texts)
    assert bench.graphs.num_replays > 0
    assert (bench.launcher.graph, bench.launcher.reason, bench.launcher.lag) == (graph, None, 1)


@pytest.mark.parametrize("graph", ["round", "step"])
def test_a_late_end_of_text_leaves_the_text_unchanged(llama: Subject, graph: GraphKind) -> None:
    requests, drafter = some_requests(), llama.drafter("draft_model")
    text = eager_texts(llama, drafter, requests, FixedK(4), 3)[4]
    eos_ids = (text[3], text[5])
    texts = eager_texts(llama, drafter, requests, FixedK(4), 3, eos_ids=eos_ids)

    results = Bench(llama, drafter, graph=graph, eos_ids=eos_ids).serve(requests, FixedK(4), 3)

    assert_texts(results, texts)
    assert any(result.finish_reason == "eos" for result in results)


@pytest.mark.parametrize("graph", ["round", "step"])
def test_a_drafter_catches_up_before_its_round_is_replayed(
    llama: Subject, graph: GraphKind
) -> None:
    drafter = make_drafter("draft_model", llama.target, llama.own_draft)
    policy, requests = Cycle(0, 3, 0, 0, 0, 2), some_requests()
    texts = eager_texts(llama, drafter, requests, FixedK(0), 3)

    results = Bench(llama, drafter, graph=graph).serve(requests, policy, 3)

    assert_texts(results, texts)
    assert acceptance_rate(results) == 1  # its drafts are the target's own words


def test_a_conversation_continues_from_the_keys_that_idle_rows_kept(llama: Subject) -> None:
    drafter = make_drafter("draft_model", llama.target, llama.own_draft)
    (short,) = one_request(num_tokens=4)
    (text,) = eager_texts(llama, drafter, [short], FixedK(3), 1)
    turns = [
        Request(prompt_ids=prompt, max_new_tokens=n, conversation="a")
        for prompt, n in [(short.prompt_ids, 4), ((*short.prompt_ids, *text, 9, 8), 12)]
    ]
    requests = [*some_requests(3), *turns]
    texts = eager_texts(llama, drafter, requests, FixedK(3), 1)

    results = Bench(llama, drafter).serve(requests, FixedK(3), 4)

    assert_texts(results, texts)
    assert acceptance_rate(results) == 1


def test_idle_rows_of_an_earlier_longer_pass_stay_within_their_capacity(llama: Subject) -> None:
    # 59 committed tokens of 64 are left in row 3; 8 drafts after them would not fit.
    drafter = llama.drafter("draft_model")
    bench = Bench(llama, drafter)
    bench.serve(one_request(40, 20) * 4, FixedK(0), num_rows=4)
    requests = one_request(30, 20) * 3
    texts = eager_texts(llama, drafter, requests, FixedK(8), 3)

    assert_texts(bench.serve(requests, FixedK(8), num_rows=4), texts)
    assert bench.launcher.rows_for(3) == 4


@pytest.mark.parametrize(
    ("graph", "error"),
    [
        ("round", FailingGraphs.error),
        ("step", FailingGraphs.error),
        ("round", AssertionError("no kernel image is available")),  # as Triton raises
    ],
)
def test_a_graph_that_cannot_be_captured_runs_eagerly_with_the_reason(
    llama: Subject, graph: GraphKind, error: Exception
) -> None:
    requests, drafter = some_requests(), llama.drafter("draft_model")
    texts = eager_texts(llama, drafter, requests, FixedK(4), 3)
    bench = Bench(llama, drafter, graph=graph, graphs=FailingGraphs(error=error))

    assert_texts(bench.serve(requests, FixedK(4), 3), texts)
    num_buckets = bench.launcher.num_captures
    assert bench.graphs.num_captures == num_buckets > 1  # each is tried
    assert_texts(bench.serve(requests, FixedK(4), 3), texts)
    assert bench.graphs.num_captures == num_buckets  # and none twice
    assert bench.launcher.graph == "off"
    said = str(error).splitlines()[0]
    assert bench.launcher.reason.endswith(f": {said}")


class OnTheHost(Ngram):
    """Looks drafts up where no graph can hold it."""

    capabilities = Capabilities(needs_host=True)


def test_a_drafter_on_the_host_drafts_outside_and_the_rest_is_one_graph(llama: Subject) -> None:
    drafter = OnTheHost(parts_of(llama.target, llama.own_draft), max_ngram=3, min_ngram=1)
    texts = eager_texts(llama, drafter, some_requests(), FixedK(3), 1)
    bench = Bench(llama, drafter)

    assert_texts(bench.serve(some_requests(), FixedK(3)), texts)
    assert bench.launcher.graph == "step"
    assert bench.launcher.reason.endswith("the host")
    assert bench.graphs.num_captures == 1


def open_rows(subject: Subject, drafter: Drafter) -> Rows:
    """Two rows in the midst of their texts and a third that is idle."""
    requests = [
        Request(prompt_ids=random_prompt(n, seed=n), max_new_tokens=30, seed=i)
        for i, n in enumerate((14, 9))
    ]
    with torch.inference_mode():
        return filled_rows(
            subject.target, drafter, requests, Sampler(WARM), num_rows=3, eos_ids=[1]
        )


def what_counts(rows: Rows, *runners: StockRunner) -> list[Tensor]:
    """A copy of all that later rounds may read."""
    state = rows.state
    lengths = state.length_B.tolist()[:2]
    kept = [state.tokens_BC[row, : n + 1] for row, n in enumerate(lengths)]
    kept += [state.length_B, state.budget_B, state.seed_B]
    for runner in runners:
        for layer in runner.cache.layers:
            for row, n in enumerate(lengths):
                kept += [layer.keys[row, :n], layer.values[row, :n]]
    return [tensor.clone() for tensor in kept]


@pytest.mark.parametrize("graph", ["round", "step"])
def test_a_capture_leaves_texts_and_keys_unchanged(llama: Subject, graph: GraphKind) -> None:
    drafter = llama.drafter("draft_model")
    rows, clock = open_rows(llama, drafter), LateClock()
    before = what_counts(rows, llama.target, llama.stranger)
    launcher = graphed(InertGraphs(), clock, graph)(rows, Sampler(WARM), verify, clock)

    with torch.inference_mode():
        launcher.launch(3, 4, 64)

    after = what_counts(rows, llama.target, llama.stranger)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize(("graph", "half_s"), [("round", None), ("step", 1.0)])
def test_two_graphs_separate_drafting_and_verification_and_one_does_not(
    llama: Subject, graph: GraphKind, half_s: float | None
) -> None:
    # The clock's marks are a second apart.
    bench = Bench(llama, llama.drafter("draft_model"), graph=graph)

    (result,) = bench.serve(one_request(), FixedK(4))

    expected = None if half_s is None else (half_s,) * len(result.rounds)
    assert result.rounds.draft_s == result.rounds.verify_s == expected


@pytest.mark.parametrize("graph", ["round", "step"])
def test_the_baseline_is_one_graph_that_spends_no_time_drafting(
    llama: Subject, graph: GraphKind
) -> None:
    bench = Bench(llama, llama.drafter("draft_model"), graph=graph)

    (result,) = bench.serve(one_request(4), FixedK(0))

    assert result.rounds.draft_s == (0.0,) * 3
    assert bench.graphs.num_captures == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "sampling"), [("ngram", GREEDY), ("draft_model", WARM)], ids=["ngram", "draft_model"]
)
def test_buckets_catch_up_and_row_moves_need_no_host(method: str, sampling: Sampling) -> None:
    with fake_cuda():
        with DEVICE:
            target, draft = (StockRunner(tiny_llama(num_hidden_layers=1)) for _ in range(2))
        drafter = make_drafter(method, target, draft)
        rows = Rows(target, drafter, num_rows=6, capacity=512, eos_ids=[5, 6])
        rows.begin(6)
        # Caches are made by the first forward: a prompt's, in the decoder.
        with HostWatch():
            for num_rows in (1, 6):
                state = rows.state.rows(0, num_rows)
                catch_up(rows, state, 7, 256)
                for k in (0, 4):
                    run_round(target, drafter, state, Sampler(sampling), k=k, span=256)
            rows.move_row(3, 1, 100)
