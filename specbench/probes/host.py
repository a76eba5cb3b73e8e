"""Memory of this process and of its host."""

from typing import NamedTuple

import psutil

from specbench.probes.sampler import Sampler

INTERVAL_S = 0.02


class HostSample(NamedTuple):
    """Peaks over the samples between start and stop."""

    num_samples: int
    process_peak_bytes: int  # resident set of this process
    host_peak_bytes: int  # memory in use on the host, by everyone


class HostProbe:
    """Watches host memory while code runs; a spike shorter than the interval can be missed.

    Its thread takes CPU time: use it around memory measurements, not around timed ones.
    """

    def __init__(self, interval_s: float = INTERVAL_S) -> None:
        self._sampler = Sampler(_read, interval_s)

    def start(self) -> None:
        """Begin anew: earlier peaks are forgotten."""
        self._sampler.start()

    def stop(self) -> HostSample:
        """Peaks since `start`, which must have been called."""
        readings = self._sampler.stop()
        process, host = zip(*readings, strict=True)
        return HostSample(len(readings), max(process), max(host))


def process_used_bytes() -> int:
    """Resident set of this process now."""
    return psutil.Process().memory_info().rss


def host_used_bytes() -> int:
    """Memory in use on the host now: what no process could have without swapping."""
    memory = psutil.virtual_memory()
    return memory.total - memory.available


def host_available_bytes() -> int:
    """Memory that processes can still have now without swapping."""
    return psutil.virtual_memory().available


def _read() -> tuple[int, int]:
    return process_used_bytes(), host_used_bytes()
