"""Clocks for decoding whose seconds do not hang on what else the machine does.

A run that is held against another one, or against known costs, else fails where a neighbour
takes the processor from one of them.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from specbench.decode.clock import HostClock
from specbench.engines import kernel_choices
from specbench.forward.fused_runner import FusedRunner

# (layers, tokens in a row) -> seconds that a forward takes
Cost = Callable[[int, int], float]


class WorkClock:
    """Its seconds are those of the forwards, and of nothing else or of this thread's work, too."""

    def __init__(self, cost: Cost, *, counts_cpu: bool) -> None:
        self.cost = cost
        self._counts_cpu = counts_cpu
        self._spent_s = 0.0

    def spend(self, seconds: float) -> None:
        self._spent_s += seconds

    def now(self) -> float:
        return self._spent_s + (time.thread_time() if self._counts_cpu else 0.0)


@contextmanager
def work_clock(cost: Cost, *, counts_cpu: bool) -> Iterator[WorkClock]:
    """The fused forwards of this process are timed by it.

    With `counts_cpu` a second of this thread's processor is a second, and the cost comes on top:
    a thread that waits for the processor spends none.
    """
    clock = WorkClock(cost, counts_cpu=counts_cpu)
    sound = FusedRunner.forward

    def forward(self: FusedRunner, tokens_BT: Any, *arguments: Any, **named: Any) -> Any:
        clock.spend(clock.cost(self.num_layers, tokens_BT.shape[1]))
        return sound(self, tokens_BT, *arguments, **named)

    def start(self: HostClock) -> None:
        self._origin_s = clock.now()

    def now(self: HostClock) -> float:
        return clock.now() - self._origin_s

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FusedRunner, "forward", forward)
        # By this clock transformers' own forward takes no time, and would be chosen.
        patch.setattr(kernel_choices, "autotune_forward", lambda *_: ("fused", []))
        patch.setattr(HostClock, "start", start)
        patch.setattr(HostClock, "now", now)
        yield clock
