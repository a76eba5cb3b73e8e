"""Captures what a function does on the GPU and runs it again; all that needs CUDA is here."""

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import torch

NUM_WARM_UPS = 3  # libraries choose kernels and take workspaces in the first calls

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Captured(Generic[T]):
    """What a function returned: static tensors that every replay writes anew."""

    output: T
    replay: Callable[[], None]


class Graphs(Protocol):
    """Captures functions as graphs that run one after another, in the order of the work."""

    compile_s: float | None  # spent on compiling what is captured; None: it is not compiled

    @property
    def reserved_bytes(self) -> int:
        """Device memory held for the graphs."""
        ...

    def capture(self, run: Callable[[], T]) -> Captured[T]:
        """Run a function a few times, then capture it.

        Raises RuntimeError where it does what a graph cannot hold.
        """
        ...


class CudaGraphs:
    """Graphs of the current device in one memory pool.

    They share memory because no two run at once, and what a graph returns is read before the
    next one starts.
    """

    compile_s: float | None = None

    def __init__(self) -> None:
        self.reserved_bytes = 0
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._pool: Any = None
        self._alive: weakref.WeakSet[torch.cuda.CUDAGraph] = weakref.WeakSet()

    def capture(self, run: Callable[[], T]) -> Captured[T]:
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        # A capture that fails leaves its own stream current; this gives the old one back.
        with torch.cuda.stream(self._stream):
            try:
                for _ in range(NUM_WARM_UPS):
                    run()
            finally:
                current.wait_stream(self._stream)
            return self._captured(run)

    def _captured(self, run: Callable[[], T]) -> Captured[T]:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        reserved = torch.cuda.memory_reserved()
        graph = torch.cuda.CUDAGraph()
        pool = self._take_pool()
        # Other threads ask for memory figures meanwhile; that must not end the capture.
        with torch.cuda.graph(graph, pool, self._stream, capture_error_mode="thread_local"):
            output = run()
        self._pool = pool
        self._alive.add(graph)
        self.reserved_bytes += torch.cuda.memory_reserved() - reserved
        return Captured(output=output, replay=graph.replay)

    def _take_pool(self) -> Any:
        """The pool, or a new one: it ends with its last graph or with a capture that failed."""
        pool, self._pool = self._pool, None
        if pool is None or not self._alive:
            self.reserved_bytes = 0
            pool = torch.cuda.graph_pool_handle()
        return pool
