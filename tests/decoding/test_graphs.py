"""Rounds as graphs, on fakes of what CUDA does: the same texts, and graphs made when they must.

That the captured functions can be captured at all is traced on fake CUDA tensors.
"""

import gc
import itertools
import weakref
from collections.abc import Sequence
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from specbench.decoding.backends import attention_backend
from specbench.decoding.decoder import Decoder, MakeLauncher
from specbench.decoding.drafter import Drafter, NoDrafter
from specbench.decoding.graphs import GraphLauncher, launchers
from specbench.decoding.launcher import EagerLauncher, GraphKind, catch_up
from specbench.decoding.policy import FixedK, Policy
from specbench.decoding.request import Request, Result
from specbench.decoding.round import run_round
from specbench.decoding.rows import Fill, Rows, span_bucket
from specbench.decoding.runner import StockRunner
from specbench.decoding.sampling import Sampler
from specbench.decoding.scheduler import Arrival
from specbench.decoding.verifier import verify
from specbench.drafters.ngram import Ngram
from specbench.drafters.registry import Parts
from specbench.records import Sampling
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
from tests.decoding.lossless import acceptance_rate, assert_texts, make_drafter
from tests.decoding.models import random_prompt, tiny_llama

GREEDY, WARM = Sampling(), Sampling(temperature=0.8, top_p=0.95)
CPU = torch.device("cpu")


class Subject(NamedTuple):
    target: StockRunner
    own_draft: StockRunner
    stranger: StockRunner

    def drafter(self, method: str) -> Drafter:
        return make_drafter(method, self.target, self.stranger)


@pytest.fixture(scope="module")
def llama() -> Subject:
    model, other = (tiny_llama(seed=seed, num_hidden_layers=1) for seed in (0, 1))
    return Subject(StockRunner(model), StockRunner(model), StockRunner(other))


class Cycle(FixedK):
    """One K after the other, again and again."""

    def __init__(self, *ks: int) -> None:
        super().__init__(max(ks))
        self._ks = itertools.cycle(ks)

    def choose(self, num_rows: int, num_live: int) -> int:  # noqa: ARG002
        return next(self._ks)


def some_requests(num: int = 6) -> list[Request]:
    """Prompts of 3 to 18 tokens and texts of 4, 11, 7, 3, 10 and 6."""
    return [
        Request(
            prompt_ids=random_prompt(3 + 5 * (i % 4), seed=i),
            max_new_tokens=3 + (1 + 7 * i) % 11,
            seed=i,
        )
        for i in range(num)
    ]


def one_request(num_tokens: int = 20, prompt_length: int = 10) -> list[Request]:
    prompt = random_prompt(prompt_length, seed=prompt_length)
    return [Request(prompt_ids=prompt, max_new_tokens=num_tokens)]


class Bench:
    """A decoder over fake graphs."""

    def __init__(
        self,
        subject: Subject,
        drafter: Drafter,
        *,
        graph: GraphKind = "round",
        graphs: FakeGraphs | None = None,
        copies: type[LateCopies] = LateCopies,
        eos_ids: Sequence[int] = (),
    ) -> None:
        self.graphs = FakeGraphs() if graphs is None else graphs
        clock = LateClock()
        self.decoder = Decoder(
            subject.target,
            drafter,
            eos_ids=eos_ids,
            clock=clock,
            make_launcher=graphed(self.graphs, clock, graph, copies),
        )

    @property
    def launcher(self) -> GraphLauncher:
        assert isinstance(self.decoder.launcher, GraphLauncher)
        return self.decoder.launcher

    def serve(
        self,
        requests: Sequence[Request],
        policy: Policy,
        num_rows: int = 1,
        sampling: Sampling = GREEDY,
    ) -> list[Result]:
        served = self.decoder.serve(requests, Sampler(sampling), policy, num_rows=num_rows)
        return served.results


def eager_texts(
    subject: Subject,
    drafter: Drafter,
    requests: Sequence[Request],
    policy: Policy,
    rows: int,
    sampling: Sampling = GREEDY,
    eos_ids: Sequence[int] = (),
) -> list[tuple[int, ...]]:
    decoder = Decoder(subject.target, drafter, eos_ids=eos_ids, clock=LateClock())
    served = decoder.serve(requests, Sampler(sampling), policy, num_rows=rows)
    return [result.output_ids for result in served.results]


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize("num_rows", [1, 5])
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
def test_end_of_text_is_found_a_round_late_without_harm(llama: Subject, graph: GraphKind) -> None:
    requests, drafter = some_requests(), llama.drafter("draft_model")
    text = eager_texts(llama, drafter, requests, FixedK(4), 3)[4]
    eos_ids = (text[3], text[5])
    texts = eager_texts(llama, drafter, requests, FixedK(4), 3, eos_ids=eos_ids)

    results = Bench(llama, drafter, graph=graph, eos_ids=eos_ids).serve(requests, FixedK(4), 3)

    assert_texts(results, texts)
    assert any(result.hit_eos for result in results)


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


def test_a_conversation_goes_on_from_keys_that_idle_rows_kept(llama: Subject) -> None:
    drafter = make_drafter("draft_model", llama.target, llama.own_draft)
    (short,) = one_request(num_tokens=4)
    (text,) = eager_texts(llama, drafter, [short], FixedK(3), 1)
    turns = [
        Request(prompt_ids=prompt, max_new_tokens=n, arrival=Arrival(conversation="a"))
        for prompt, n in [(short.prompt_ids, 4), ((*short.prompt_ids, *text, 9, 8), 12)]
    ]
    requests = [*some_requests(3), *turns]
    texts = eager_texts(llama, drafter, requests, FixedK(3), 1)

    results = Bench(llama, drafter).serve(requests, FixedK(3), 4)

    assert_texts(results, texts)
    assert acceptance_rate(results) == 1


def test_one_graph_serves_all_rounds_of_a_bucket_in_every_pass(llama: Subject) -> None:
    bench = Bench(llama, llama.drafter("draft_model"))

    for requests in (one_request(), one_request(12, 20), one_request(30, 5)):
        bench.serve(requests, FixedK(4))

    assert bench.graphs.num_captures == bench.launcher.num_captures == 1


def test_each_number_of_rows_and_each_k_has_a_graph_of_its_own(llama: Subject) -> None:
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
    model = tiny_llama(seed=0, max_position_embeddings=1024)
    subject = Subject(*[StockRunner(model)] * 3)
    requests = one_request(num_tokens=40, prompt_length=230)
    texts = eager_texts(subject, NoDrafter(), requests, FixedK(0), 1)
    bench = Bench(subject, NoDrafter())

    assert_texts(bench.serve(requests, FixedK(0)), texts)
    assert bench.graphs.num_captures == 2  # 256 slots, then the row's 320


def test_graphs_end_when_another_decoder_lets_the_cache_grow() -> None:
    subject = Subject(*(StockRunner(tiny_llama(seed=seed)) for seed in (0, 0, 1)))
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


def test_graphs_end_when_the_drafters_cache_alone_grows(llama: Subject) -> None:
    draft = StockRunner(tiny_llama(seed=1))
    bench = Bench(llama, make_drafter("draft_model", llama.target, draft))
    bench.serve(one_request(), FixedK(4))
    draft.allocate(2, 512)

    bench.serve(one_request(), FixedK(4))

    assert bench.graphs.num_captures == 2


@pytest.mark.parametrize("graph", ["round", "step"])
def test_what_cannot_be_captured_runs_eagerly_and_says_why(
    llama: Subject, graph: GraphKind
) -> None:
    requests, drafter = some_requests(), llama.drafter("draft_model")
    texts = eager_texts(llama, drafter, requests, FixedK(4), 3)
    bench = Bench(llama, drafter, graph=graph, graphs=FailingGraphs())

    assert_texts(bench.serve(requests, FixedK(4), 3), texts)
    assert bench.graphs.num_captures == 1  # tried once, not in every bucket
    assert bench.launcher.graph == "off"
    assert bench.launcher.reason == (
        "a round could not be captured: operation not permitted when stream is capturing"
    )


def open_rows(subject: Subject, drafter: Drafter) -> Rows:
    """Two rows in the midst of their texts and a third that is idle."""
    rows = Rows(subject.target, drafter, num_rows=3, capacity=64, eos_ids=[1])
    rows.begin(3)
    prompts = [random_prompt(n, seed=n) for n in (14, 9)]
    fills = [
        Fill(row=i, prompt_ids=prompt, max_new_tokens=30, seed=i)
        for i, prompt in enumerate(prompts)
    ]
    with torch.inference_mode():
        rows.fill(fills, Sampler(WARM))
    return rows


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
def test_a_capture_leaves_texts_and_keys_as_they_are(llama: Subject, graph: GraphKind) -> None:
    drafter = llama.drafter("draft_model")
    rows, clock = open_rows(llama, drafter), LateClock()
    before = what_counts(rows, llama.target, llama.stranger)
    launcher = graphed(InertGraphs(), clock, graph)(rows, Sampler(WARM), verify, clock)

    with torch.inference_mode():
        launcher.launch(3, 4, 64)

    after = what_counts(rows, llama.target, llama.stranger)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(before, after, strict=True))


def test_idle_rows_of_an_earlier_longer_pass_stay_within_their_capacity(llama: Subject) -> None:
    # 59 committed tokens of 64 are left in row 3; 8 drafts after them would not fit.
    drafter = llama.drafter("draft_model")
    bench = Bench(llama, drafter)
    bench.serve(one_request(40, 20) * 4, FixedK(0), num_rows=4)
    requests = one_request(30, 20) * 3
    texts = eager_texts(llama, drafter, requests, FixedK(8), 3)

    assert_texts(bench.serve(requests, FixedK(8), num_rows=4), texts)
    assert bench.launcher.rows_for(3) == 4


class OnTheHost(Ngram):
    """Looks drafts up where no graph can hold it."""

    needs_host = True


def test_a_drafter_on_the_host_drafts_outside_and_the_rest_is_one_graph(llama: Subject) -> None:
    drafter = OnTheHost(Parts(target=llama.target, draft_runner=lambda: llama.own_draft))
    texts = eager_texts(llama, drafter, some_requests(), FixedK(3), 1)
    bench = Bench(llama, drafter)

    assert_texts(bench.serve(some_requests(), FixedK(3)), texts)
    assert bench.launcher.graph == "step"
    assert bench.launcher.reason == "the method proposes on the host"
    assert bench.graphs.num_captures == 1


def test_a_model_on_several_devices_runs_eagerly(llama: Subject) -> None:
    target = StockRunner(tiny_llama(seed=0))
    bench = Bench(llama._replace(target=target), NoDrafter())
    bench.serve(one_request(), FixedK(0))
    target.cache.layers[1].device = torch.device("cuda:1")
    bench.launcher._captured.clear()

    bench.serve(one_request(), FixedK(0))

    assert bench.launcher.graph == "off"
    assert bench.launcher.reason == "the keys and values are spread over 2 devices"


@pytest.mark.parametrize(("graph", "k", "draft_s"), [("round", 4, None), ("step", 4, 1.0)])
def test_two_graphs_tell_drafting_from_checking_and_one_does_not(
    llama: Subject, graph: GraphKind, k: int, draft_s: float | None
) -> None:
    # The clock's marks are a second apart.
    bench = Bench(llama, llama.drafter("draft_model"), graph=graph)

    (result,) = bench.serve(one_request(), FixedK(k))

    rounds = len(result.rounds)
    assert result.rounds.draft_s == (None if draft_s is None else (draft_s,) * rounds)
    assert result.rounds.verify_s == (None if draft_s is None else (1.0,) * rounds)


@pytest.mark.parametrize("graph", ["round", "step"])
def test_the_baseline_is_one_graph_that_spends_no_time_drafting(
    llama: Subject, graph: GraphKind
) -> None:
    bench = Bench(llama, llama.drafter("draft_model"), graph=graph)

    (result,) = bench.serve(one_request(4), FixedK(0))

    assert result.rounds.draft_s == (0.0,) * 3
    assert bench.graphs.num_captures == 1


@pytest.mark.parametrize("copies", [LateCopies, EarlyCopies])
def test_reports_are_whole_however_early_or_late_they_arrive(
    llama: Subject, copies: type[LateCopies]
) -> None:
    requests, drafter = some_requests(), llama.drafter("ngram")
    texts = eager_texts(llama, drafter, requests, FixedK(3), 5)

    results = Bench(llama, drafter, copies=copies).serve(requests, FixedK(3), 5)

    assert_texts(results, texts)


def report(number: int, num_rows: int = 2) -> Tensor:
    return torch.full((num_rows, 5), number)


@pytest.mark.parametrize("copies", [LateCopies, EarlyCopies])
def test_a_report_can_be_read_until_the_round_after_the_next_is_launched(
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
    assert third is first  # two buffers a shape, however many rounds


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
    make: MakeLauncher = launchers(graph, CPU)
    decoder = Decoder(llama.target, NoDrafter(), eos_ids=(), clock=clock, make_launcher=make)
    decoder.decode(one_request(), Sampler(GREEDY), k=0)

    assert isinstance(decoder.launcher, EagerLauncher)
    assert (decoder.launcher.graph, decoder.launcher.reason) == ("off", reason)
    assert (decoder.launcher.lag, decoder.launcher.reserved_bytes) == (0, 0)


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize("method", ["ngram", "draft_model"])
def test_buckets_catching_up_and_moving_rows_need_no_host(method: str, sampling: Sampling) -> None:
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


class Kernels(TorchDispatchMode):
    """Names of the operations that ran."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.seen.add(str(func))
        return func(*args, **(kwargs or {}))


def test_the_recorded_backend_is_the_one_that_runs() -> None:
    runner = StockRunner(tiny_llama())
    runner.allocate(1, 64)
    tokens_1T = torch.zeros(1, 5, dtype=torch.long)
    name = attention_backend(
        CPU, torch.float32, num_heads=4, num_kv_heads=2, head_dim=8, num_tokens=5, span=64
    )

    with Kernels() as kernels, torch.inference_mode(False), torch.no_grad():
        runner.forward(tokens_1T, torch.arange(5)[None], 64)

    assert name == "flash_attention"
    assert any("scaled_dot_product_flash_attention_for_cpu" in seen for seen in kernels.seen)
