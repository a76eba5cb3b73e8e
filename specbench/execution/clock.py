"""When things happened, without making the host wait for the device.

A mark is taken in the order of the work; its seconds are read once that work is done.
"""

import time
from typing import Protocol

import torch

Mark = float | torch.cuda.Event


class Clock(Protocol):
    """Seconds since `start`."""

    def start(self) -> None:
        """Count from now on; marks taken before are void."""

    def mark(self) -> Mark:
        """The moment at which all work given so far is done."""
        ...

    def seconds(self, mark: Mark) -> float:
        """When that was; waits for it if it has not come yet."""
        ...

    def now(self) -> float:
        """The host's own time."""
        ...


class HostClock:
    """Work is done when the call that does it returns."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        self._origin_s = time.perf_counter()

    def mark(self) -> Mark:
        return self.now()

    def seconds(self, mark: Mark) -> float:
        assert isinstance(mark, float)
        return mark

    def now(self) -> float:
        return time.perf_counter() - self._origin_s


class DeviceClock:
    """Marks are CUDA events in the stream of the work: taking one costs no synchronisation."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        # Anew for every pass: what lies between events is told in float32 milliseconds.
        torch.cuda.synchronize()
        self._origin = self._event()
        self._origin.synchronize()
        self._origin_s = time.perf_counter()

    def mark(self) -> Mark:
        return self._event()

    def seconds(self, mark: Mark) -> float:
        assert isinstance(mark, torch.cuda.Event)
        # A wait that is none would be counted as one.
        if not mark.query():  # type: ignore[no-untyped-call]
            mark.synchronize()
        return float(self._origin.elapsed_time(mark)) / 1000

    def now(self) -> float:
        return time.perf_counter() - self._origin_s

    def _event(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event


def make_clock(device: torch.device) -> Clock:
    """The clock of a device's work."""
    return DeviceClock() if device.type == "cuda" else HostClock()
