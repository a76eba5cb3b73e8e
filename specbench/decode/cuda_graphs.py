"""Captures what a function does on the GPU and runs it again; all that needs CUDA is here."""

import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import torch

from specbench.errors import UsageError

NUM_WARM_UPS = 3  # libraries choose kernels and take workspaces in the first calls
SHORT_BYTES = 2 << 30  # with less free memory, the allocator's cache is emptied before a capture
_ENDS = ("_cuda_endAllocateToPool", "_cuda_releasePool")

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Captured(Generic[T]):
    """The static tensors that a captured function returned; every replay overwrites them."""

    output: T
    replay: Callable[[], None]


class Graphs(Protocol):
    """Captures functions as graphs that run one after another, in the order of the work."""

    @property
    def num_captures(self) -> int:
        """Captures that succeeded."""
        ...

    @property
    def capture_s(self) -> float:
        """Seconds spent on capturing, warm-ups and failures included."""
        ...

    @property
    def reserved_bytes(self) -> int:
        """Device memory held for the graphs."""
        ...

    def capture(self, run: Callable[[], T], *, num_warm_ups: int = NUM_WARM_UPS) -> Captured[T]:
        """Run a function `num_warm_ups` times, then capture it.

        Raises RuntimeError if it does what a graph cannot hold; later captures are unharmed.
        """
        ...


@dataclass(eq=False, slots=True)
class _Pool:
    """Memory that graphs share. `reserved_bytes` is what the allocator took for it."""

    handle: Any
    reserved_bytes: int = 0


@dataclass(frozen=True, slots=True)
class _GraphMemory:
    """Memory of a graph that exists: its pool, and its bytes outside the allocator."""

    pool: _Pool
    own_bytes: int


class CudaGraphs:
    """Graphs of the current device in one memory pool.

    They share memory because no two run at once, and what a graph returns is read before the
    next one starts. UsageError with a torch that cannot clean up after a capture that fails.
    """

    def __init__(self) -> None:
        if missing := [name for name in _ENDS if not hasattr(torch._C, name)]:
            raise UsageError(
                f"torch {torch.__version__} has no {missing[0]}: a graph that cannot be captured "
                "would break its allocator; use torch 2.11 or newer, or --cuda-graph off"
            )
        self.num_captures = 0
        self.capture_s = 0.0
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._pool: _Pool | None = None
        self._alive: weakref.WeakKeyDictionary[torch.cuda.CUDAGraph, _GraphMemory] = (
            weakref.WeakKeyDictionary()
        )
        self._failed: list[torch.cuda.CUDAGraph] = []

    @property
    def reserved_bytes(self) -> int:
        held = list(self._alive.values())
        pools = {id(memory.pool): memory.pool.reserved_bytes for memory in held}
        return sum(pools.values()) + sum(memory.own_bytes for memory in held)

    def capture(self, run: Callable[[], T], *, num_warm_ups: int = NUM_WARM_UPS) -> Captured[T]:
        began_s = time.perf_counter()
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        try:
            with torch.cuda.stream(self._stream):
                try:
                    for _ in range(num_warm_ups):
                        run()
                finally:
                    current.wait_stream(self._stream)
                return self._captured(run)
        finally:
            self.capture_s += time.perf_counter() - began_s

    def _captured(self, run: Callable[[], T]) -> Captured[T]:
        torch.cuda.synchronize()
        if torch.cuda.mem_get_info()[0] < SHORT_BYTES:
            torch.cuda.empty_cache()  # in a capture nothing can be given back
        free, reserved = torch.cuda.mem_get_info()[0], torch.cuda.memory_reserved()
        graph, pool = torch.cuda.CUDAGraph(), self._take_pool()
        try:
            # Other threads ask for memory figures meanwhile; that must not end the capture.
            graph.capture_begin(pool.handle, capture_error_mode="thread_local")
            try:
                output = run()
            except BaseException:
                with suppress(RuntimeError):  # what went wrong is known already
                    graph.capture_end()
                raise
            graph.capture_end()
        except BaseException:
            self._give_up(graph, pool)
            raise
        in_pool = max(torch.cuda.memory_reserved() - reserved, 0)
        taken = free - torch.cuda.mem_get_info()[0]
        pool.reserved_bytes += in_pool
        self._pool = pool
        self._alive[graph] = _GraphMemory(pool, own_bytes=max(taken - in_pool, 0))
        self.num_captures += 1
        return Captured(output=output, replay=graph.replay)

    def _take_pool(self) -> _Pool:
        """The pool, or a new one: it ends with its last graph or with a capture that failed."""
        pool, self._pool = self._pool, None
        if pool is None or all(held.pool is not pool for held in self._alive.values()):
            pool = _Pool(torch.cuda.graph_pool_handle())
        return pool

    def _give_up(self, graph: torch.cuda.CUDAGraph, pool: _Pool) -> None:
        """Clean up after a failed capture.

        Torch ends a pool only if the stream ended the capture without an error (CUDAGraph.cpp,
        capture_end); with one left open, the allocator's next `empty_cache` asserts.
        """
        try:
            graph.pool()
        except RuntimeError:
            for name in _ENDS:
                with suppress(RuntimeError):  # it got that far by itself
                    getattr(torch._C, name)(torch.cuda.current_device(), pool.handle)
            self._failed.append(graph)  # the allocator of pinned memory still points to it
        else:
            graph.reset()  # ended like any other: it lets go of its pool
