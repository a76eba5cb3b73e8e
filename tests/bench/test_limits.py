"""Bytes worked by hand, launches from a known counter, and peaks of memory."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specbench.bench import limits
from specbench.bench.blocks import Cell
from specbench.bench.limits import MemoryMeter, count_launches, measure_limits
from specbench.engines.engine import RoundForward, Work
from specbench.errors import UsageError
from specbench.probes.device import HostCalls
from specbench.records import BlockRecord, Request, Result, Sampling
from tests.cell_keys import cell_key
from tests.made_records import made_block, made_request, steps

CPU, GPU = torch.device("cpu"), torch.device("cuda:0")
WARM = Sampling(temperature=0.7)
REQUEST = Request(prompt_ids=(1, 2), max_new_tokens=5, sampling=Sampling(), seed=3)


def cell(k: int, concurrency: int = 1) -> Cell:
    drafter = "small" if k else "none"
    key = cell_key(
        pairing="big/small" if k else "big",
        target="big",
        drafter=drafter,
        workload="code",
        engine="builtin",
        method="draft_model" if k else "none",
        num_speculative_tokens=k,
        concurrency=concurrency,
        temperature=0.7,
        dtype="bfloat16",
    )
    return Cell(key=key, sampling=WARM)


@dataclass
class SizedEngine:
    """Weights of 1,000 bytes and 8 per cached token; the draft adds 100 and 2.

    A prefill starts 50 kernels and waits twice; a round starts 3 kernels and a graph and waits
    once. It keeps half the drafts of a round, K / 2 + 1 tokens.
    """

    shows_rounds: bool = True
    calls: HostCalls | None = None
    works: list[tuple[Request, Work]] = field(default_factory=list)

    def bytes_read(self, drafter: str, forward: RoundForward, rows: int, context: int) -> int:
        assert drafter == "small" or forward.role == "target"
        weights, kv = (1_000, 8) if forward.role == "target" else (100, 2)
        return weights + rows * context * kv

    def forwards(self, drafter: str, k: int) -> tuple[RoundForward, ...]:
        target = RoundForward(role="target", num_tokens=k + 1, times=1)
        first = RoundForward(role="drafter", num_tokens=2, times=1)
        rest = RoundForward(role="drafter", num_tokens=1, times=k - 1)
        return (target,) if drafter == "none" else (target, first, rest)

    def generate(self, request: Request, work: Work) -> Result:
        self.works.append((request, work))
        n = -(-(request.max_new_tokens - 1) // (work.k // 2 + 1))
        self.calls = HostCalls(launches=50 + 3 * n, graph_launches=n, syncs=2 + n)
        return Result(
            output_ids=(0,) * request.max_new_tokens,
            finish_reason="length",
            prefill_s=None,
            ttft_s=None,
            decode_s=None,
            total_s=1.0,
            cpu_s=None,
            rounds=steps(n) if self.shows_rounds else None,
        )

    def counted(self, work: Callable[[], object]) -> HostCalls | None:
        """The kernels that a profiler would see, including its own wait."""
        work()
        assert self.calls is not None
        return self.calls._replace(syncs=self.calls.syncs + 1)


def block(*lengths: tuple[int, int]) -> BlockRecord:
    """Requests with these numbers of prompt and output tokens."""
    made = (
        made_request(
            "", "p", None, num_prompt_tokens=prompt, output_ids=(0,) * output, prefill_s=None
        )
        for prompt, output in lengths
    )
    return made_block("p", *made)


def limits_of(*cells: Cell, engine: Any = None) -> list[Any]:
    return list(
        measure_limits(
            engine or SizedEngine(), cells, block((90, 20)), device=CPU, copy_bytes_per_s=5e9
        )
    )


def test_bytes_per_round_count_weights_and_the_mid_run_cache():
    (limit,) = limits_of(cell(0))

    assert limit.cell_id == cell(0).key.id
    assert limit.bytes_per_round == 1_000 + 100 * 8
    assert (limit.device, limit.copy_bytes_per_s) == ("cpu", 5e9)
    assert limit.launches_per_round is None


def test_a_round_reads_the_draft_model_as_often_as_it_runs():
    (limit,) = limits_of(cell(3))

    # Three forwards of only the draft: 100 bytes of weights, 2 per cached token.
    assert limit.bytes_per_round == (1_000 + 100 * 8) + 3 * (100 + 100 * 2)


def test_every_row_has_a_cache_to_read():
    (limit,) = limits_of(cell(0, concurrency=4))

    assert limit.bytes_per_round == 1_000 + 4 * 100 * 8


@pytest.mark.parametrize("k", [0, 4])
def test_prefill_and_the_profilers_own_sync_do_not_count_in_a_round(k):
    engine: Any = SizedEngine()

    (limit,) = count_launches(engine, (cell(k),), REQUEST, GPU, engine.counted)

    assert (limit.launches_per_round, limit.syncs_per_round) == (4.0, 1.0)
    assert (limit.cell_id, limit.device) == (cell(k).key.id, "cuda:0")


def test_profiling_runs_the_work_of_the_cell_at_a_fixed_length():
    engine: Any = SizedEngine()

    list(count_launches(engine, (cell(4),), REQUEST, GPU, engine.counted))

    assert {(w.drafter, w.k) for _, w in engine.works} == {("small", 4)}
    assert [r.max_new_tokens for r, _ in engine.works] == [40, 8, 40]
    assert all(r.sampling == WARM and not r.stop_at_eos for r, _ in engine.works)


def test_cells_that_differ_in_workload_or_load_share_one_count():
    engine: Any = SizedEngine()
    condition = replace(cell(4).key.condition, workload="chat", concurrency=4)
    alike = replace(cell(4), key=replace(cell(4).key, condition=condition))

    limits = list(count_launches(engine, (cell(4), cell(2), alike), REQUEST, GPU, engine.counted))

    assert [work.k for _, work in engine.works] == [4, 4, 4, 2, 2, 2]
    assert [limit.cell_id for limit in limits] == [c.key.id for c in (cell(4), alike, cell(2))]
    assert {limit.launches_per_round for limit in limits} == {4.0}


def test_unknown_facts_are_not_recorded():
    silent: Any = SizedEngine(shows_rounds=False)
    assert list(count_launches(silent, (cell(0),), REQUEST, GPU, silent.counted)) == []

    def blind(work: Callable[[], object]) -> None:
        work()

    engine: Any = SizedEngine()
    assert list(count_launches(engine, (cell(0),), REQUEST, GPU, blind)) == []


@pytest.mark.parametrize("error", [UsageError("no room"), AssertionError("CUPTI"), OSError("no")])
def test_a_cell_that_cannot_be_profiled_is_skipped(error):
    class Refusing(SizedEngine):
        def generate(self, request: Request, work: Work) -> Result:
            if work.k == 2:
                raise error
            return super().generate(request, work)

    engine: Any = Refusing()
    cells = (cell(0), cell(2), cell(4))
    limits = list(count_launches(engine, cells, REQUEST, GPU, engine.counted))
    assert [limit.cell_id for limit in limits] == [cell(0).key.id, cell(4).key.id]


NOTHING = ("weights_bytes", "kv_bytes_per_token", "state_bytes_per_row")
ENGINE: Any = SimpleNamespace(**{name: lambda _: 0 for name in NOTHING})
PROBE: Any = SimpleNamespace(
    start=lambda: None,
    stop=lambda: None,
    process_used_bytes=lambda: None,
    device_used_bytes=lambda: None,
)
TARGET, PASS, DRAFT = 1000, 300, 50


class Allocator:
    """torch's allocator, in bytes."""

    def __init__(self) -> None:
        self.now = self.peak = TARGET

    def take(self, num_bytes: int) -> None:
        self.now += num_bytes
        self.peak = max(self.peak, self.now)

    def run(self, num_bytes: int) -> None:
        """A pass that needs this much memory while it runs."""
        self.take(num_bytes)
        self.now -= num_bytes


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> Allocator:
    fake = Allocator()
    monkeypatch.setattr(limits, "allocator_peaks", lambda _: (fake.peak, fake.peak))
    monkeypatch.setattr(limits, "reset_allocator_peaks", lambda _: setattr(fake, "peak", fake.now))
    return fake


@pytest.fixture
def meter(allocator: Allocator) -> MemoryMeter:
    made = MemoryMeter("demo", "cuda", PROBE)
    alone = made.record_target(ENGINE, lambda: allocator.run(PASS))
    assert alone.peak_allocated_bytes == TARGET + PASS
    return made


def test_a_drafter_without_memory_adds_nothing_to_the_peak(meter, allocator):
    """The memory that a pass needs is in both peaks, and counts once."""
    pair = meter.with_drafter(ENGINE, "ngram", lambda: allocator.run(PASS))
    assert pair.peak_allocated_bytes == TARGET + PASS


def test_a_drafters_peak_includes_its_weights_and_the_extra_of_its_pass(meter, allocator):
    def load_and_run() -> None:
        allocator.take(DRAFT)
        allocator.run(PASS + 7)

    pair = meter.with_drafter(ENGINE, "draft", load_and_run)
    assert pair.peak_allocated_bytes == TARGET + PASS + DRAFT + 7


def test_memory_that_an_earlier_drafter_left_is_not_charged_to_the_next(meter, allocator):
    allocator.take(11)
    pair = meter.with_drafter(ENGINE, "ngram", lambda: allocator.run(PASS))
    assert pair.peak_allocated_bytes == TARGET + PASS


def test_memory_freed_in_between_is_not_attributed(meter, allocator):
    """Memory that torch caches for later and frees when a drafter is removed."""
    allocator.now -= 11
    pair = meter.with_drafter(ENGINE, "ngram", lambda: allocator.run(PASS + 11))
    assert pair.peak_allocated_bytes == TARGET + PASS


def test_a_smaller_pass_does_not_lower_the_peak(meter, allocator):
    pair = meter.with_drafter(ENGINE, "ngram", lambda: allocator.run(PASS // 2))
    assert pair.peak_allocated_bytes == TARGET + PASS
