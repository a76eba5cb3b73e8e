"""A clock for decoding whose seconds do not depend on what else the machine does.

Otherwise a comparison with another run, or with known costs, fails if another process takes the
processor from one of them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from specbench.decode.clock import Clock
from specbench.engines import builtin, kernel_choices
from specbench.forward.fused_runner import FusedRunner

# (layers, tokens in a row) -> seconds that a forward takes
Cost = Callable[[int, int], float]


class WorkClock:
    """A clock that advances only by the seconds of forwards."""

    def __init__(self, cost: Cost) -> None:
        self.cost = cost
        self.spent_s = 0.0


@contextmanager
def work_clock(cost: Cost) -> Iterator[WorkClock]:
    """Time the fused forwards of this process by it."""
    clock = WorkClock(cost)
    sound = FusedRunner.forward

    def forward(self: FusedRunner, tokens_BT: Any, *arguments: Any, **named: Any) -> Any:
        clock.spent_s += clock.cost(self.num_layers, tokens_BT.shape[1])
        return sound(self, tokens_BT, *arguments, **named)

    def start(self: Clock) -> None:
        self._origin_s = clock.spent_s

    def now(self: Clock) -> float:
        return clock.spent_s - self._origin_s

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FusedRunner, "forward", forward)
        # On this clock transformers' own forward takes no time and would be chosen.
        patch.setattr(kernel_choices, "autotune_forward", lambda *_: ("fused", []))
        patch.setattr(Clock, "start", start)
        patch.setattr(Clock, "now", now)
        patch.setattr(builtin, "time", SimpleNamespace(thread_time=lambda: clock.spent_s))
        yield clock
