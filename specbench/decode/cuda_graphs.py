"""Captures the GPU work of a function in a CUDA graph, to replay it; needs a CUDA device."""

import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from specbench.errors import UsageError

NUM_WARM_UPS = 3  # libraries choose kernels and take workspaces in the first calls
LOW_MEMORY_BYTES = 2 << 30  # below it, the allocator's cache is emptied before a capture
_CLEANUP_FUNCTIONS = ("_cuda_endAllocateToPool", "_cuda_releasePool")

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Capture(Generic[T]):
    """A captured function. `output` is what it returned, in tensors that each replay overwrites."""

    output: T
    replay: Callable[[], None]


@dataclass(eq=False, slots=True)
class _Pool:
    """A memory pool that graphs share, with the bytes that the allocator reserved for it."""

    handle: Any
    reserved_bytes: int = 0


@dataclass(frozen=True, slots=True)
class _GraphMemory:
    """The pool of a live graph, and its bytes outside the allocator."""

    pool: _Pool
    other_bytes: int


class CudaGraphs:
    """Graphs of the current device in one memory pool.

    They can share memory: only one runs at a time, and its output is read before the next one
    starts. UsageError if this torch cannot clean up after a failed capture.
    """

    def __init__(self) -> None:
        if missing := [name for name in _CLEANUP_FUNCTIONS if not hasattr(torch._C, name)]:
            raise UsageError(
                f"torch {torch.__version__} has no {missing[0]}: a failed CUDA graph "
                "capture would break its allocator; use torch 2.11 or newer, or --cuda-graph off"
            )
        self.num_captures = 0  # that succeeded
        self.capture_s = 0.0  # seconds, warm-ups and failures included
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._pool: _Pool | None = None
        self._alive: weakref.WeakKeyDictionary[torch.cuda.CUDAGraph, _GraphMemory] = (
            weakref.WeakKeyDictionary()
        )
        self._failed: list[torch.cuda.CUDAGraph] = []

    @property
    def reserved_bytes(self) -> int:
        """Device memory that the graphs occupy."""
        memories = list(self._alive.values())
        pools = {id(memory.pool): memory.pool.reserved_bytes for memory in memories}
        return sum(pools.values()) + sum(memory.other_bytes for memory in memories)

    def capture(self, run: Callable[[], T], *, num_warm_ups: int = NUM_WARM_UPS) -> Capture[T]:
        """Run a function `num_warm_ups` times, then capture it.

        Raises RuntimeError if the function cannot be captured; later captures still work.
        """
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
                return self._capture_graph(run)
        finally:
            self.capture_s += time.perf_counter() - began_s

    def _capture_graph(self, run: Callable[[], T]) -> Capture[T]:
        torch.cuda.synchronize()
        if torch.cuda.mem_get_info()[0] < LOW_MEMORY_BYTES:
            torch.cuda.empty_cache()  # memory cannot be freed during a capture
        free, reserved = torch.cuda.mem_get_info()[0], torch.cuda.memory_reserved()
        graph, pool = torch.cuda.CUDAGraph(), self._take_pool()
        try:
            # Other threads query memory meanwhile, which must not end the capture.
            graph.capture_begin(pool.handle, capture_error_mode="thread_local")
            try:
                output = run()
            except BaseException:
                with suppress(RuntimeError):  # the first error is the one to report
                    graph.capture_end()
                raise
            graph.capture_end()
        except BaseException:
            self._clean_up(graph, pool)
            raise
        in_pool = max(torch.cuda.memory_reserved() - reserved, 0)
        taken = free - torch.cuda.mem_get_info()[0]
        pool.reserved_bytes += in_pool
        self._pool = pool
        self._alive[graph] = _GraphMemory(pool, other_bytes=max(taken - in_pool, 0))
        self.num_captures += 1
        return Capture(output=output, replay=graph.replay)

    def _take_pool(self) -> _Pool:
        """The shared pool, or a new one if its last graph is gone or a capture in it failed."""
        pool, self._pool = self._pool, None
        if pool is None or all(memory.pool is not pool for memory in self._alive.values()):
            pool = _Pool(torch.cuda.graph_pool_handle())
        return pool

    def _clean_up(self, graph: torch.cuda.CUDAGraph, pool: _Pool) -> None:
        """Clean up after a failed capture.

        Torch ends a pool only if the stream ended the capture without an error (CUDAGraph.cpp,
        capture_end); otherwise the allocator's next `empty_cache` fails an assertion.
        """
        try:
            graph.pool()
        except RuntimeError:
            for name in _CLEANUP_FUNCTIONS:
                with suppress(RuntimeError):  # torch has already done this step
                    getattr(torch._C, name)(torch.cuda.current_device(), pool.handle)
            self._failed.append(graph)  # the pinned-memory allocator still refers to it
        else:
            graph.reset()  # the capture ended properly: this releases the pool
