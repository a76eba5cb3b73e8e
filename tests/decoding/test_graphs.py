"""Rounds as graphs, on fakes of CUDA: the texts always equal those of eager rounds.

Traces on fake CUDA tensors show that the captured functions can be captured.
"""

import gc
import re
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor

from specbench.decode.decoder import Decoder, MakeLauncher
from specbench.decode.drafter import Capabilities, Drafter, NoDrafter
from specbench.decode.graphs import Capture, GraphLauncher, Launchers
from specbench.decode.launcher import GraphKind, Launcher, catch_up
from specbench.decode.round import run_round
from specbench.decode.rows import Rows
from specbench.decode.sampling import Sampler
from specbench.decode.scheduler import FixedK
from specbench.decode.verifier import verify
from specbench.drafters.ngram import Ngram
from specbench.footprint import span_bucket
from specbench.forward.runner import Output, StockRunner
from specbench.records import Request, Sampling
from tests.decoding.fake_cuda import DEVICE, HostWatch, fake_cuda
from tests.decoding.fake_graphs import (
    EarlyCopies,
    FailingGraphs,
    FakeGraphs,
    InertGraphs,
    LateClock,
    LateCopies,
    graphed,
)
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
from tests.decoding.models import exact_llama, random_prompt, tiny_llama


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
    assert acceptance_rate(results) == 1  # its drafts are the target's own tokens


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
    message = str(error).splitlines()[0]
    assert bench.launcher.reason.endswith(f": {message}")


class OnTheHost(Ngram):
    """An n-gram lookup on the host, which no graph can hold."""

    capabilities = Capabilities(needs_host=True)


def test_a_host_drafter_runs_outside_the_graph_of_its_round(llama: Subject) -> None:
    drafter = OnTheHost(parts_of(llama.target, llama.own_draft), max_ngram=3, min_ngram=1)
    texts = eager_texts(llama, drafter, some_requests(), FixedK(3), 1)
    bench = Bench(llama, drafter)

    assert_texts(bench.serve(some_requests(), FixedK(3)), texts)
    assert bench.launcher.graph == "step"
    assert bench.launcher.reason.endswith("the host")
    assert bench.graphs.num_captures == 1


def open_rows(subject: Subject, drafter: Drafter) -> Rows:
    """Two rows in the middle of their texts and a third that is idle."""
    requests = [
        Request(prompt_ids=random_prompt(n, seed=n), max_new_tokens=30, seed=i)
        for i, n in enumerate((14, 9))
    ]
    with torch.inference_mode():
        return filled_rows(
            subject.target, drafter, requests, Sampler(WARM), num_rows=3, eos_ids=[1]
        )


def row_states(rows: Rows, *runners: StockRunner) -> list[Tensor]:
    """A copy of all state that later rounds may read."""
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
    before = row_states(rows, llama.target, llama.stranger)
    launcher = graphed(InertGraphs(), clock, graph)(rows, Sampler(WARM), verify, clock)

    with torch.inference_mode():
        launcher.launch(3, 4, 64)

    after = row_states(rows, llama.target, llama.stranger)
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
def test_rounds_catch_up_and_row_moves_never_wait_for_the_host(
    method: str, sampling: Sampling
) -> None:
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


@pytest.mark.parametrize("copies", [LateCopies, EarlyCopies])
def test_round_reports_are_complete_whenever_they_arrive(
    llama: Subject, copies: type[LateCopies]
) -> None:
    requests, drafter = some_requests(), llama.drafter("ngram")
    texts = eager_texts(llama, drafter, requests, FixedK(3), 5)

    results = Bench(llama, drafter, copies=copies).serve(requests, FixedK(3), 5)

    assert_texts(results, texts)


def report(number: int, num_rows: int = 2) -> Tensor:
    return torch.full((num_rows, 5), number)


@pytest.mark.parametrize("copies", [LateCopies, EarlyCopies])
def test_a_round_report_stays_readable_for_two_rounds(
    copies: type[LateCopies],
) -> None:
    clock = LateClock()
    readback = copies(clock)
    first, first_ended = readback.fetch(report(1)), clock.mark()
    second, second_ended = readback.fetch(report(2)), clock.mark()
    clock.seconds(first_ended)
    assert torch.equal(first, report(1))

    other, _ = readback.fetch(report(3, num_rows=4)), clock.mark()
    third, third_ended = readback.fetch(report(4)), clock.mark()
    clock.seconds(second_ended)
    assert torch.equal(second, report(2))
    clock.seconds(third_ended)
    assert torch.equal(third, report(4))
    assert torch.equal(other, report(3, num_rows=4))
    assert third is first  # two buffers per shape, for any number of rounds


LAGGING = [14, 18, 19, 20, 21, 22, 23, 24, 25, 25, 25, 25]  # K + 1 more than is known


@pytest.mark.parametrize(
    ("launcher", "k", "num_tokens", "spans"),
    [
        (Launcher, 0, 6, [11, 12, 13, 14, 15]),
        (GraphLauncher, 0, 6, [11, 12, 13, 14, 15, 16]),
        (Launcher, 3, 12, [14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24]),
        (GraphLauncher, 3, 12, LAGGING),
    ],
)
def test_the_span_of_a_round_covers_exactly_what_it_may_fill(
    llama: Subject,
    launcher: type[Launcher],
    k: int,
    num_tokens: int,
    spans: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If reports lag, the last round is over before the round that ended the text is known."""
    lengths: list[int] = []
    span_for = launcher.span_for

    def span(self: Launcher, num_tokens: int) -> int:
        lengths.append(num_tokens)
        return span_for(self, num_tokens)

    monkeypatch.setattr(launcher, "span_for", span)
    drafter = llama.drafter("ngram")
    if launcher is GraphLauncher:
        Bench(llama, drafter).serve(one_request(num_tokens), FixedK(k))
    else:
        eager_texts(llama, drafter, one_request(num_tokens), FixedK(k), 1)

    assert lengths == spans


NO_MEMORY = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nGPU 0 has ...")


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

    assert bench.graphs.num_captures == 4  # none was abandoned, and none retried
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


CPU = torch.device("cpu")
T = TypeVar("T")


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
    first, other = (Bench(subject, subject.drafter("draft_model")) for _ in range(2))
    texts = eager_texts(subject, NoDrafter(), one_request(), FixedK(0), 1)
    first.serve(one_request(), FixedK(4))
    before = weakref.ref(subject.target.cache)

    other.serve(some_requests(3), FixedK(4), num_rows=3)
    gc.collect()
    assert before() is None  # graphs do not keep the memory of a cache that was replaced

    assert_texts(first.serve(one_request(), FixedK(4)), texts)
    assert first.graphs.num_captures == 2
    assert_texts(first.serve(one_request(), FixedK(4)), texts)
    assert first.graphs.num_captures == 2


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
    """A graph of one GPU: the forwards of a target on two must not be in it."""

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
    """A target whose second layer is on another GPU, as a layer of its draft model may be."""
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


def test_graph_rows_are_powers_of_two_up_to_the_batch_size(llama: Subject) -> None:
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
