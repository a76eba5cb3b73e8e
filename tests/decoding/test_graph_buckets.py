"""Graphs are made when rounds of a new kind come, kept from pass to pass, and dropped in time."""

import gc
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import torch

from specbench.decode.cuda_graphs import Capture
from specbench.decode.decoder import Decoder, MakeLauncher
from specbench.decode.drafter import NoDrafter
from specbench.decode.graphs import Launchers
from specbench.decode.launcher import Launcher
from specbench.decode.sampling import Sampler
from specbench.decode.scheduler import FixedK
from specbench.footprint import span_bucket
from specbench.forward.runner import Output, StockRunner
from specbench.records import Request, Sampling
from tests.decoding.fake_graphs import FakeGraphs, LateClock
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
from tests.decoding.lossless import assert_texts, make_drafter
from tests.decoding.models import exact_llama, random_prompt

CPU = torch.device("cpu")
T = TypeVar("T")


@pytest.fixture(scope="module")
def llama() -> Subject:
    return make_subject()


def test_one_graph_serves_all_rounds_of_a_bucket_in_every_pass(llama: Subject) -> None:
    bench = Bench(llama, llama.drafter("draft_model"))

    for requests in (one_request(), one_request(12, 20), one_request(30, 5)):
        bench.serve(requests, FixedK(4))

    assert bench.graphs.num_captures == bench.launcher.num_captures == 1


def test_each_batch_size_and_k_has_its_own_graph(llama: Subject) -> None:
    bench = Bench(llama, llama.drafter("draft_model"))
    lengths = (6, 12, 12, 24, 24, 24)  # 6 rows, then 5, 3 and none: the first report is late
    requests = [
        Request(prompt_ids=random_prompt(5, seed=i), max_new_tokens=n)
        for i, n in enumerate(lengths)
    ]

    bench.serve(requests, FixedK(0), num_rows=6)
    assert bench.graphs.num_captures == 2  # 6 rows serve 6 and 5, 4 rows serve 3

    bench.serve(one_request(), Cycle(0, 2))
    assert bench.graphs.num_captures == 4  # 1 row, at K = 0 and at K = 2


def test_other_sampling_settings_have_graphs_of_their_own(llama: Subject) -> None:
    bench = Bench(llama, NoDrafter())

    for sampling in (GREEDY, WARM, GREEDY, WARM):
        bench.serve(one_request(), FixedK(0), sampling=sampling)

    assert bench.graphs.num_captures == 2


def test_a_longer_text_moves_on_to_the_graph_of_a_longer_span() -> None:
    model = exact_llama(seed=0, max_position_embeddings=1024)
    subject = Subject(*[StockRunner(model)] * 3)
    requests = one_request(num_tokens=40, prompt_length=230)
    texts = eager_texts(subject, NoDrafter(), requests, FixedK(0), 1)
    bench = Bench(subject, NoDrafter())

    assert_texts(bench.serve(requests, FixedK(0)), texts)
    assert bench.graphs.num_captures == 2  # 256 slots, then the row's 320


@pytest.mark.slow
def test_graphs_end_when_another_decoder_lets_the_cache_grow() -> None:
    subject = Subject(*(StockRunner(exact_llama(seed=seed)) for seed in (0, 0, 1)))
    one, other = (Bench(subject, subject.drafter("draft_model")) for _ in range(2))
    texts = eager_texts(subject, NoDrafter(), one_request(), FixedK(0), 1)
    one.serve(one_request(), FixedK(4))
    before = weakref.ref(subject.target.cache)

    other.serve(some_requests(3), FixedK(4), num_rows=3)
    gc.collect()
    assert before() is None  # graphs do not keep the memory of a cache that was replaced

    assert_texts(one.serve(one_request(), FixedK(4)), texts)
    assert one.graphs.num_captures == 2
    assert_texts(one.serve(one_request(), FixedK(4)), texts)
    assert one.graphs.num_captures == 2


def test_graphs_end_when_only_the_drafters_cache_grows(llama: Subject) -> None:
    draft = StockRunner(exact_llama(seed=1))
    bench = Bench(llama, make_drafter("draft_model", llama.target, draft))
    bench.serve(one_request(), FixedK(4))
    draft.allocate(2, 512)

    bench.serve(one_request(), FixedK(4))

    assert bench.graphs.num_captures == 2


def test_a_model_on_several_devices_runs_eagerly(llama: Subject) -> None:
    target = StockRunner(exact_llama(seed=0))
    bench = Bench(llama._replace(target=target), NoDrafter())
    bench.serve(one_request(), FixedK(0))
    target.cache.layers[1].device = torch.device("cuda:1")

    bench.serve(one_request(), FixedK(0), sampling=WARM)

    assert bench.launcher.graph == "off"
    assert "over 2 devices" in bench.launcher.reason


class OneCard(FakeGraphs):
    """A graph of one card: the forwards of a target on two must not be in it."""

    def __init__(self, target: StockRunner) -> None:
        super().__init__()
        self.is_inside = False
        forward = target.forward

        def outside(*args: Any, **kwargs: Any) -> Output:
            assert not self.is_inside, "a graph of one card holds another card's kernels"
            return forward(*args, **kwargs)

        target.forward = outside  # type: ignore[method-assign]

    def capture(self, run: Callable[[], T], *, num_warm_ups: int = 3) -> Capture[T]:
        def inside() -> T:
            self.is_inside = True
            try:
                return run()
            finally:
                self.is_inside = False

        return super().capture(inside, num_warm_ups=num_warm_ups)


def on_two_cards(drafter: str, draft_layer: int | None = None) -> tuple[Subject, Bench]:
    """A target whose second layer is on another card, as may be a layer of its draft model."""
    subject = Subject(*(StockRunner(exact_llama(seed=seed)) for seed in (0, 0, 1)))
    graphs = OneCard(subject.target)
    bench = Bench(subject, subject.drafter(drafter), graphs=graphs)
    for runner, layer in ((subject.target, 1), (subject.stranger, draft_layer)):
        runner.allocate(3, 512)
        runner.forward(torch.zeros(1, 1, dtype=torch.long), torch.zeros(1, 1, dtype=torch.long), 64)
        if layer is not None:
            runner.cache.layers[layer].device = torch.device("cuda:1")
    return subject, bench


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "warm"])
def test_a_draft_model_on_one_card_is_captured_with_a_target_on_two(sampling: Sampling) -> None:
    subject, bench = on_two_cards("draft_model")
    requests = some_requests(3)
    texts = eager_texts(subject, subject.drafter("draft_model"), requests, FixedK(4), 3, sampling)

    results = bench.serve(requests, FixedK(4), num_rows=3, sampling=sampling)

    assert_texts(results, texts)
    assert bench.graphs.num_replays > 0
    assert {result.graph for result in results} == {"step"}
    assert bench.launcher.graph == "step"
    assert "spread over 2 devices" in (bench.launcher.reason or "")
    assert "only drafting" in (bench.launcher.reason or "")


def test_k_0_of_a_target_on_two_cards_is_not_captured() -> None:
    subject, bench = on_two_cards("draft_model")
    texts = eager_texts(subject, NoDrafter(), one_request(), FixedK(0), 1)

    results = bench.serve(one_request(), FixedK(0))

    assert_texts(results, texts)
    assert bench.graphs.num_captures == 0
    assert {result.graph for result in results} == {"off"}


@pytest.mark.parametrize(("drafter", "layer"), [("draft_model", 1), ("ngram", None)])
def test_a_target_on_two_devices_is_not_captured_without_a_draft_model(
    drafter: str, layer: int | None
) -> None:
    _, bench = on_two_cards(drafter, layer)
    bench.serve(one_request(), FixedK(4))
    assert bench.graphs.num_captures == 0
    assert bench.launcher.graph == "off"
    assert "over 2 devices" in bench.launcher.reason


@pytest.mark.parametrize(
    ("num_tokens", "span"),
    [(1, 256), (256, 256), (257, 512), (1500, 2048), (4096, 4096), (4097, 8192), (33000, 36864)],
)
def test_spans_are_powers_of_two_and_then_steps_of_4096(num_tokens: int, span: int) -> None:
    assert span_bucket(num_tokens) == span


def test_rows_are_powers_of_two_up_to_the_rows_of_the_pass(llama: Subject) -> None:
    bench = Bench(llama, NoDrafter())
    bench.serve(some_requests(), FixedK(0), num_rows=6)

    assert [bench.launcher.rows_for(n) for n in range(1, 7)] == [1, 2, 4, 4, 6, 6]


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        ("auto", None),
        ("off", None),
        ("step", "a cpu device has no graphs"),
        ("round", "a cpu device has no graphs"),
    ],
)
def test_on_a_cpu_rounds_run_eagerly(llama: Subject, graph: str, reason: str | None) -> None:
    clock = LateClock()
    make: MakeLauncher = Launchers(graph, CPU)
    decoder = Decoder(llama.target, NoDrafter(), eos_ids=(), clock=clock, make_launcher=make)
    decoder.decode(one_request(), Sampler(GREEDY), k=0)

    assert type(decoder.launcher) is Launcher
    assert (decoder.launcher.graph, decoder.launcher.reason) == ("off", reason)
    assert (decoder.launcher.lag, decoder.launcher.reserved_bytes) == (0, 0)
