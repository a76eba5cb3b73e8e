"""Measures the memory of the target, then the memory that each drafter adds."""

from collections.abc import Callable
from typing import NamedTuple

from specbench.engines.engine import Engine, InProcess
from specbench.probes.device import allocator_peaks, reset_allocator_peaks
from specbench.probes.gpu import Probe
from specbench.probes.host import HostProbe, host_used_bytes, process_used_bytes
from specbench.records import NO_DRAFTER, MemoryRecord


class _Peaks(NamedTuple):
    allocated: int | None
    reserved: int | None
    process: int | None
    device: int | None

    def with_drafter(self, idle: "_Peaks", before: "_Peaks", after: "_Peaks") -> "_Peaks":
        """Peaks of target and drafter: `after` minus the growth from `idle` to `before`, and at
        least these peaks. None stays None.
        """
        return _Peaks(*map(_with_drafter, self, idle, before, after))


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

    def target_alone(self, engine: Engine, run_pass: Callable[[], None]) -> MemoryRecord | None:
        """Run one K = 0 pass with only the target loaded."""
        self._alone = self._peaks_of(run_pass)
        self._idle = self._now()
        return self._record(engine, NO_DRAFTER, self._alone)

    def with_drafter(
        self, engine: Engine, drafter: str, load_and_run: Callable[[], None]
    ) -> MemoryRecord | None:
        """Load one drafter and run one pass with it."""
        before = self._now()
        after = self._peaks_of(load_and_run)
        peaks = self._alone.with_drafter(self._idle, before, after)
        return self._record(engine, drafter, peaks)

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

    def _now(self) -> _Peaks:
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
            peak_allocated_bytes=peaks.allocated,
            peak_reserved_bytes=peaks.reserved,
            process_peak_bytes=peaks.process,
            device_peak_bytes=peaks.device,
        )


def _with_drafter(
    alone: int | None, idle: int | None, before: int | None, after: int | None
) -> int | None:
    if alone is None or idle is None or before is None or after is None:
        return None
    return max(alone, after - max(before - idle, 0))
