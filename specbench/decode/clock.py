"""Clocks that time work on a device without making the host wait for it.

A mark is taken in the order of the work; its seconds are read once that work is done.
"""

import time
from typing import NamedTuple

import torch

# CUDA reports the time between events in float32 milliseconds: to 60 ns in a second, 0.25 ms in an
# hour.
ANCHOR_S = 1.0


class _Anchor:
    """An event that later ones are counted from, itself counted from the one before."""

    def __init__(self, event: torch.cuda.Event, before: "_Anchor | None" = None) -> None:
        self.event = event
        self._before = before
        self._at_s = 0.0

    def seconds(self) -> float:
        """Since the first anchor; the event must have come."""
        chain, anchor = [], self
        while anchor._before is not None:
            chain.append((anchor, anchor._before))
            anchor = anchor._before
        for mark, before in reversed(chain):
            mark._at_s = before._at_s + before.event.elapsed_time(mark.event) / 1000
            mark._before = None  # known now, and earlier events may go
        return self._at_s


class DeviceMark(NamedTuple):
    """An event, and what it is counted from."""

    event: torch.cuda.Event
    anchor: _Anchor


Mark = float | DeviceMark


class Clock:
    """Seconds since `start`, here on a CPU, which has finished the work when a call returns."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Count from now on; marks taken before are void."""
        self._origin_s = time.perf_counter()

    def mark(self) -> Mark:
        """The moment at which all work given so far is done."""
        return self.now()

    def seconds(self, mark: Mark) -> float:
        """The time of a mark in seconds; waits until the mark is reached."""
        assert isinstance(mark, float)
        return mark

    def now(self) -> float:
        """The host's own time."""
        return time.perf_counter() - self._origin_s


class DeviceClock(Clock):
    """Marks are CUDA events in the stream of the work, which need no synchronization.

    Every second a mark becomes the one that later ones are counted from, so that a long pass
    loses no digits.
    """

    def start(self) -> None:
        torch.cuda.synchronize()
        self._anchor = _Anchor(self._event())
        self._anchor.event.synchronize()
        self._origin_s = self._anchored_s = time.perf_counter()

    def mark(self) -> Mark:
        mark = DeviceMark(self._event(), self._anchor)
        now_s = time.perf_counter()
        if now_s - self._anchored_s > ANCHOR_S:
            self._anchor, self._anchored_s = _Anchor(*mark), now_s
        return mark

    def seconds(self, mark: Mark) -> float:
        assert isinstance(mark, DeviceMark)
        event, anchor = mark
        # A wait that is none would be counted as one.
        if not event.query():  # type: ignore[no-untyped-call]
            event.synchronize()
        return anchor.seconds() + float(anchor.event.elapsed_time(event)) / 1000

    def _event(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event


def make_clock(device: torch.device) -> Clock:
    """The clock of a device's work."""
    return DeviceClock() if device.type == "cuda" else Clock()
