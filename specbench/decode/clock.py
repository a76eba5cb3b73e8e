"""Clocks that time work on a device without making the host wait for it.

A mark is queued with the work; its seconds are read once the work before it is done.
"""

import time
from typing import NamedTuple

import torch

# CUDA reports the time between events in float32 milliseconds, which resolves 60 ns after a second
# but only 0.25 ms after an hour.
ANCHOR_S = 1.0


class _Anchor:
    """An event that later events are timed from; it is timed from the anchor before it."""

    def __init__(self, event: torch.cuda.Event, before: "_Anchor | None" = None) -> None:
        self.event = event
        self._before = before
        self._at_s = 0.0

    def seconds(self) -> float:
        """Seconds since the first anchor; the event must have completed."""
        chain, anchor = [], self
        while anchor._before is not None:
            chain.append((anchor, anchor._before))
            anchor = anchor._before
        for mark, before in reversed(chain):
            mark._at_s = before._at_s + before.event.elapsed_time(mark.event) / 1000
            mark._before = None  # the time is known, so earlier events can be freed
        return self._at_s


class DeviceMark(NamedTuple):
    """An event, and the anchor that it is timed from."""

    event: torch.cuda.Event
    anchor: _Anchor


Mark = float | DeviceMark


class Clock:
    """Seconds since `start`; this class is for a CPU, whose work is done when a call returns."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Start counting from now; earlier marks become invalid."""
        self._origin_s = time.perf_counter()

    def mark(self) -> Mark:
        """Mark the time at which all work submitted so far is done."""
        return self.now()

    def seconds(self, mark: Mark) -> float:
        """The time of a mark in seconds; waits until the mark is reached."""
        assert isinstance(mark, float)
        return mark

    def now(self) -> float:
        """The time on the host, in seconds."""
        return time.perf_counter() - self._origin_s


class DeviceClock(Clock):
    """Marks are CUDA events in the stream of the work, which need no synchronization.

    About once per second, a mark becomes the anchor that later marks are timed from, so that a long
    pass loses no precision.
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
        # `synchronize` would be counted as a wait even if the event has completed.
        if not event.query():  # type: ignore[no-untyped-call]
            event.synchronize()
        return anchor.seconds() + float(anchor.event.elapsed_time(event)) / 1000

    def _event(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event


def make_clock(device: torch.device) -> Clock:
    """The clock for work on a device."""
    return DeviceClock() if device.type == "cuda" else Clock()
