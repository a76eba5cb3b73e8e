"""A GPU's graphs and its late reports, simulated on the host."""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from specbench.decode.clock import Mark
from specbench.decode.decoder import MakeLauncher
from specbench.decode.graphs import Capture, GraphLauncher
from specbench.decode.launcher import GraphKind, PinnedMemory
from tests.decoding.fakes import CountingClock

T = TypeVar("T")


class FakeGraphs:
    """Runs a captured function again, as a GPU would replay its kernels.

    As on a GPU, the output of a capture holds garbage until the first replay.
    """

    reserved_bytes = 0
    unwritten = -7  # no token id: a forward over it raises

    def __init__(self) -> None:
        self.num_captures = 0
        self.num_replays = 0
        self.warm_ups: list[int] = []

    def capture(self, run: Callable[[], T], *, num_warm_ups: int = 3) -> Capture[T]:
        self.warm_ups.append(num_warm_ups)
        run()
        self.num_captures += 1
        output = tree_map_only(Tensor, partial(torch.full_like, fill_value=self.unwritten), run())
        return Capture(output=output, replay=partial(self._replay, run, output))

    def _replay(self, run: Callable[[], T], output: T) -> None:
        self.num_replays += 1
        for held, new in zip(tree_leaves(output), tree_leaves(run()), strict=True):
            if isinstance(held, Tensor):
                held.copy_(new)


class InertGraphs(FakeGraphs):
    """A graph whose replays do nothing, so that only the effects of the capture are visible."""

    unwritten = 0

    def _replay(self, run: Callable[[], T], output: T) -> None: ...


class FailingGraphs(FakeGraphs):
    """Refuses captures by their number, all if none is named, in the middle of a round."""

    error: Exception = RuntimeError(
        "operation not permitted when stream is capturing\nCompile with ..."
    )

    def __init__(self, *numbers: int, error: Exception = error) -> None:
        super().__init__()
        self._numbers = numbers
        self._error = error

    def capture(self, run: Callable[[], T], *, num_warm_ups: int = 3) -> Capture[T]:
        if self._numbers and self.num_captures + 1 not in self._numbers:
            return super().capture(run, num_warm_ups=num_warm_ups)
        self.warm_ups.append(num_warm_ups)
        run()
        self.num_captures += 1
        raise self._error


class LateClock(CountingClock):
    """Submitted work is done once the time of a later mark is requested."""

    def __init__(self) -> None:
        super().__init__()
        self._under_way: deque[tuple[int, Callable[[], object]]] = deque()

    def hand_in(self, work: Callable[[], object]) -> None:
        self._under_way.append((self.marks, work))

    def seconds(self, mark: Mark) -> float:
        assert isinstance(mark, float)
        while self._under_way and self._under_way[0][0] <= mark:
            self._under_way.popleft()[1]()
        return super().seconds(mark)


class LateCopies(PinnedMemory):
    """Reports arrive as late as possible: when a mark after their copy is awaited."""

    def __init__(self, clock: LateClock) -> None:
        super().__init__()
        self._clock = clock

    def new_buffer(self, report_BN: Tensor) -> Tensor:
        return torch.full_like(report_BN, -1)

    def start_copy(self, report_BN: Tensor, buffer_BN: Tensor) -> None:
        self._clock.hand_in(partial(buffer_BN.copy_, report_BN.clone()))


class EarlyCopies(LateCopies):
    """Reports arrive as early as possible: immediately."""

    def start_copy(self, report_BN: Tensor, buffer_BN: Tensor) -> None:
        buffer_BN.copy_(report_BN)


def graphed(
    graphs: FakeGraphs,
    clock: LateClock,
    graph: GraphKind = "round",
    copies: type[LateCopies] = LateCopies,
) -> MakeLauncher:
    """Makes launchers that replay on these fakes."""
    return partial(GraphLauncher, graph=graph, graphs=graphs, readback=copies(clock))
