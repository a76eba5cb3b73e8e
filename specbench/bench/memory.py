"""Memory of the target alone, then what each drafter adds to it."""

from collections.abc import Callable
from typing import NamedTuple

from specbench.engines.engine import Engine, InProcess
from specbench.probes.device import allocator_peaks, reset_allocator_peaks
from specbench.probes.host import HostProbe, host_used_bytes, process_used_bytes
from specbench.probes.probe import Probe
from specbench.records import NO_DRAFTER, MemoryRecord


class _Peaks(NamedTuple):
    allocated: int | None
    reserved: int | None
    process: int | None
    device: int | None

    def beside(self, idle: "_Peaks", before: "_Peaks", after: "_Peaks") -> "_Peaks":
        """Peaks of target and drafter: `after`, without what came between `idle`, just after
        these, and `before`. None stays None.
        """
        return _Peaks(*map(_beside, self, idle, before, after))


class MemoryMeter:
    """Peaks around a pass: NVML and torch on a GPU, the process and its host on a CPU.

    Drafters are loaded one after the other beside the target; each one's record is the peak
    of its own pass without what stayed of those before it, and at least the target's. Of an
    engine in another process nothing is told.
    """

    def __init__(self, target: str, device: str, probe: Probe) -> None:
        self._target = target
        self._device = device
        self._probe = probe

    def target_alone(self, engine: Engine, run_pass: Callable[[], None]) -> MemoryRecord | None:
        """Run one K = 0 pass with the target loaded and nothing else."""
        self._alone = self._peaks_of(run_pass)
        self._idle = self._now()
        return self._record(engine, NO_DRAFTER, self._alone)

    def with_drafter(
        self, engine: Engine, drafter: str, load_and_run: Callable[[], None]
    ) -> MemoryRecord | None:
        """Load one drafter and run one pass with it."""
        before = self._now()
        after = self._peaks_of(load_and_run)
        return self._record(engine, drafter, self._alone.beside(self._idle, before, after))

    def _peaks_of(self, run: Callable[[], None]) -> _Peaks:
        reset_allocator_peaks(self._device)
        host = HostProbe()
        host.start()
        self._probe.start()
        try:
            run()
        finally:
            seen, sample = self._probe.stop(), host.stop()
        allocated, reserved = allocator_peaks(self._device)
        if self._device == "cpu":
            return _Peaks(None, None, sample.process_peak_bytes, sample.host_peak_bytes)
        process = seen.process_used_bytes if seen else None
        return _Peaks(allocated, reserved, process, seen.device_used_bytes if seen else None)

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


def _beside(
    alone: int | None, idle: int | None, before: int | None, after: int | None
) -> int | None:
    if alone is None or idle is None or before is None or after is None:
        return None
    return max(alone, after - max(before - idle, 0))
