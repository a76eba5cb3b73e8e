"""Measures memory, and the bounds of a round: bytes read, forwards, host launches and waits."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from statistics import median
from typing import NamedTuple

import torch

from specbench.bench.blocks import Cell, work_of
from specbench.engines.engine import Engine, InProcess, InstrumentedEngine, Work
from specbench.models.library_errors import raise_if_device_lost
from specbench.probes.device import (
    HostCalls,
    allocator_peaks,
    count_host_calls,
    reset_allocator_peaks,
)
from specbench.probes.gpu import Probe
from specbench.probes.host import HostProbe, host_used_bytes, process_used_bytes
from specbench.records import (
    NO_DRAFTER,
    BlockRecord,
    ForwardCost,
    LimitRecord,
    MemoryRecord,
    Request,
    Sampling,
)

ROUNDS = 12  # per block
WARM_UPS = 4  # the rounds after a prefill are slower
BLOCKS = 8  # per cell; more would not be more precise


def measure_forwards(
    engine: InstrumentedEngine, cells: tuple[Cell, ...], request_of: Callable[[Cell], Request]
) -> Iterator[ForwardCost]:
    """The model forwards of every cell, timed alternately with rounds of the cell.

    A machine's speed changes within a second, and another model's forward evicts weights from the
    cache. Alternating makes forwards and rounds comparable. Cells have a fixed K.
    """
    for cell in cells:
        request = request_of(cell)
        num_tokens = ROUNDS * (cell.key.draft.k + 1) + 1
        short_request = replace(
            request,
            max_new_tokens=min(num_tokens, request.max_new_tokens),
            stop_at_eos=False,
            conversation=None,
        )
        timed = engine.time_forwards(short_request, work_of(cell))
        if timed is None or not timed.round_s:
            continue
        num_skipped = min(WARM_UPS, len(timed.round_s) // 2)  # a short answer has few rounds
        for forward, seconds in timed.forward_s.items():
            counted = seconds[num_skipped * forward.times :]
            yield ForwardCost(
                cell_id=cell.key.id,
                role=forward.role,
                num_tokens=forward.num_tokens,
                num_per_round=forward.times,
                seconds=median(counted),
                num_samples=len(counted),
                part=forward.part,
                round_s=median(timed.round_s[num_skipped:]),
            )


def middle_context(block: BlockRecord) -> int:
    """Tokens in the cache halfway through a block's typical request, of those with an output."""
    done = [r for r in block.requests if r.output_ids]
    return round(median(r.num_prompt_tokens + r.num_output_tokens / 2 for r in done))


Count = Callable[[Callable[[], object]], HostCalls | None]
FEW_TOKENS, MANY_TOKENS = 8, 40  # a prefill and a few rounds; a prefill and more rounds


def measure_limits(
    engine: InstrumentedEngine,
    cells: tuple[Cell, ...],
    block: BlockRecord,
    *,
    device: torch.device,
    copy_bytes_per_s: float,
) -> Iterator[LimitRecord]:
    """The bytes that a round of every cell of a block must read, at its middle context.

    Cells have a fixed K. All experts of a mixture are counted, which overestimates its bytes.
    """
    context = middle_context(block)
    for cell in cells:
        yield LimitRecord(
            cell_id=cell.key.id,
            device=str(device),
            copy_bytes_per_s=copy_bytes_per_s,
            bytes_per_round=_bytes_per_round(engine, cell, context) or None,
        )


def count_launches(
    engine: Engine,
    cells: Iterable[Cell],
    request: Request,
    device: torch.device,
    count: Count = count_host_calls,
) -> Iterator[LimitRecord]:
    """Host launches and waits per round of every cell on a GPU, for one request at a time.

    After a warm-up, `request` is profiled with few and with many tokens. The difference contains
    only rounds, without the prefill and the overhead of the profiler. Cells that differ only in
    workload, context or load share one count. A cell that cannot be profiled, e.g. because the
    context is full, has no record. Raises DeviceLostError.
    """
    groups: dict[tuple[Work, Sampling], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((work_of(cell), cell.sampling), []).append(cell)
    for (work, sampling), group in groups.items():
        # One request with the sampling of the cells and a fixed length.
        fixed = replace(request, sampling=sampling, stop_at_eos=False, conversation=None)
        try:
            per_round = _calls_per_round(engine, work, fixed, count)
        except Exception as error:  # a profiler can raise any error, and measuring is complete
            raise_if_device_lost(error)
            continue
        if per_round is None:
            continue
        launches, syncs = per_round
        for cell in group:
            yield LimitRecord(
                cell_id=cell.key.id,
                device=str(device),
                launches_per_round=launches,
                syncs_per_round=syncs,
            )


def _bytes_per_round(engine: InstrumentedEngine, cell: Cell, context: int) -> int:
    """Bytes that a round must read; 0 if the engine does not know all forwards of a round."""
    rows = cell.key.condition.concurrency
    return sum(
        forward.times * engine.bytes_read(cell.drafter, forward, rows, context)
        for forward in engine.forwards(cell.drafter, cell.key.draft.k)
    )


def _calls_per_round(
    engine: Engine, work: Work, request: Request, count: Count
) -> tuple[float, float] | None:
    """Launches and waits per round; None if the engine reports no rounds or the profiler no
    calls."""
    num_rounds = 0

    def decode(num_tokens: int) -> None:
        nonlocal num_rounds
        rounds = engine.generate(replace(request, max_new_tokens=num_tokens), work).rounds
        num_rounds = len(rounds) if rounds else 0

    decode(MANY_TOKENS)
    few, few_rounds = count(lambda: decode(FEW_TOKENS)), num_rounds
    many, more_rounds = count(lambda: decode(MANY_TOKENS)), num_rounds - few_rounds
    if few is None or many is None or more_rounds <= 0:
        return None
    launches = many.launches + many.graph_launches - few.launches - few.graph_launches
    return launches / more_rounds, (many.syncs - few.syncs) / more_rounds


class _Peaks(NamedTuple):
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    process_peak_bytes: int | None
    device_peak_bytes: int | None


class MemoryMeter:
    """Memory peaks of a pass: by NVML and torch on a GPU, of the process and its host on a CPU.

    Drafters are loaded one after the other in addition to the target. The record of a drafter is
    the peak of its pass, without memory that earlier drafters left allocated, and at least the
    target's. An engine in another process has no record.
    """

    def __init__(self, target: str, device: str, probe: Probe) -> None:
        self._target = target
        self._device = device
        self._probe = probe

    def record_target(self, engine: Engine, run_pass: Callable[[], None]) -> MemoryRecord | None:
        """Run one K = 0 pass with only the target loaded."""
        self._baseline = self._peaks_of(run_pass)
        self._idle = self._current_peaks()
        return self._record(engine, NO_DRAFTER, self._baseline)

    def with_drafter(
        self, engine: Engine, drafter: str, load_and_run: Callable[[], None]
    ) -> MemoryRecord | None:
        """Load one drafter and run one pass with it."""
        before = self._current_peaks()
        after = self._peaks_of(load_and_run)
        peaks = map(_with_drafter, self._baseline, self._idle, before, after)
        return self._record(engine, drafter, _Peaks(*peaks))

    def _peaks_of(self, run: Callable[[], None]) -> _Peaks:
        reset_allocator_peaks(self._device)
        host = HostProbe()
        host.start()
        self._probe.start()
        try:
            run()
        finally:
            gpu, sample = self._probe.stop(), host.stop()
        allocated, reserved = allocator_peaks(self._device)
        if self._device == "cpu":
            return _Peaks(None, None, sample.process_peak_bytes, sample.host_peak_bytes)
        process = gpu.process_used_bytes if gpu else None
        return _Peaks(allocated, reserved, process, gpu.device_used_bytes if gpu else None)

    def _current_peaks(self) -> _Peaks:
        if self._device == "cpu":
            return _Peaks(None, None, process_used_bytes(), host_used_bytes())
        reset_allocator_peaks(self._device)
        allocated, reserved = allocator_peaks(self._device)
        probe = self._probe
        return _Peaks(allocated, reserved, probe.process_used_bytes(), probe.device_used_bytes())

    def _record(self, engine: Engine, drafter: str, peaks: _Peaks) -> MemoryRecord | None:
        if not isinstance(engine, InProcess):
            return None
        return MemoryRecord(
            target=self._target,
            drafter=drafter,
            weights_bytes=engine.weights_bytes(drafter),
            kv_bytes_per_token=engine.kv_bytes_per_token(drafter),
            state_bytes_per_row=engine.state_bytes_per_row(drafter),
            **peaks._asdict(),
        )


def _with_drafter(
    target_peak: int | None, idle: int | None, before: int | None, after: int | None
) -> int | None:
    """A peak of target and drafter: `after` minus the growth from `idle` to `before`, and at least
    the target's; None if one of them is unknown."""
    if target_peak is None or idle is None or before is None or after is None:
        return None
    return max(target_peak, after - max(before - idle, 0))
