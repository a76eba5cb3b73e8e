"""Captures GPU work in CUDA graphs, and starts whole rounds as graphs: one replay instead of
thousands of launches.

The graph of a round is bound to shapes and addresses, so every combination of rows, K and span has
its own. It is captured when it is first needed, and dropped when a cache that it writes to is
replaced, or when too many other graphs were used since.
"""

import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from specbench.decode.clock import Clock
from specbench.decode.drafter import Proposal
from specbench.decode.launcher import (
    GraphKind,
    Launcher,
    Readback,
    RoundLaunch,
    catch_up,
    make_readback,
)
from specbench.decode.round import Verifier, finish_round, propose, run_round
from specbench.decode.rows import Rows
from specbench.decode.sampling import Sampler
from specbench.decode.state import State
from specbench.errors import UsageError, first_line
from specbench.footprint import span_bucket
from specbench.forward.slot_cache import SlotCache
from specbench.models.library_errors import is_temporary, raise_if_device_lost

NUM_WARM_UPS = 3  # libraries choose kernels and allocate workspaces in the first calls
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
    starts.
    """

    def __init__(self) -> None:
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
                try:
                    return self._capture_graph(run)
                except Exception as error:
                    if not is_temporary(error):
                        raise
                torch.cuda.empty_cache()  # memory cannot be freed during a capture
                return self._capture_graph(run)
        finally:
            self.capture_s += time.perf_counter() - began_s

    def _capture_graph(self, run: Callable[[], T]) -> Capture[T]:
        torch.cuda.synchronize()
        if torch.cuda.mem_get_info()[0] < LOW_MEMORY_BYTES:
            torch.cuda.empty_cache()
        free, reserved = torch.cuda.mem_get_info()[0], torch.cuda.memory_reserved()
        graph, pool = torch.cuda.CUDAGraph(), self._take_pool()
        try:
            # Other threads may query memory during the capture, which must not end it.
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


# Rounds that a launcher keeps; a pass with rows and spans in powers of two and K to 8 needs fewer.
MOST_ROUNDS = 128
_MOST_NAMED = 4  # buckets that a reason names


class _Bucket(NamedTuple):
    """The key of a graph: rounds with equal buckets are replays of one graph."""

    num_rows: int
    k: int
    span: int

    def __str__(self) -> str:
        rows = f"{self.num_rows} row{'s' if self.num_rows > 1 else ''}"
        return f"{rows}, K={self.k}, {self.span} slots"


class _Halves(NamedTuple):
    """A captured round; if `draft` is None, `finish` is the whole round."""

    state: State
    draft: Callable[[], None] | None
    finish: Callable[[], object]
    report_BN: Tensor


class GraphLauncher(Launcher):
    """Replays rounds: `round` as one graph, `step` as one for drafting and one for verification.

    A bucket that cannot be captured runs eagerly from then on; the others are still replayed, and
    `reason` says which ones are not and why. If the target is on several devices, only drafting is
    captured, and only if the draft model is on one device. Unused rows are also computed, to fill a
    bucket; these rows are finished, and their lengths may exceed the span. The `most_rounds` most
    recently used rounds are kept.
    """

    def __init__(
        self,
        rows: Rows,
        sampler: Sampler,
        verifier: Verifier,
        clock: Clock,
        *,
        graph: GraphKind,
        graphs: CudaGraphs,
        readback: Readback,
        most_rounds: int = MOST_ROUNDS,
    ) -> None:
        super().__init__(rows, sampler, verifier, clock, readback=readback)
        self._graphs = graphs
        self._most_rounds = most_rounds
        self._captured: OrderedDict[_Bucket, _Halves] = OrderedDict()  # least recently used first
        self._refused: dict[_Bucket, str] = {}
        self._has_captured = False
        self._is_spread = False  # over several devices; a graph covers only one
        self._warm: set[Hashable] = set()  # kinds of functions that were captured
        self._bound_to: tuple[weakref.ref[object], ...] = ()
        self.num_captures = 0
        self._kind: GraphKind = graph
        if graph == "round" and rows.drafter.capabilities.needs_host:
            self._kind, self._why = "step", "the method proposes on the host"

    @property
    def graph(self) -> GraphKind:
        return "off" if self._refused and not self._has_captured else self._kind

    @property
    def reason(self) -> str | None:
        buckets: dict[str, list[str]] = {}
        for bucket, why in self._refused.items():
            buckets.setdefault(why, []).append(str(bucket))
        if not self._has_captured:  # no round is replayed: the first reason is enough
            return next((_capture_failure(why) for why in buckets), self._why)
        failures = (_capture_failure(why, bucket_names) for why, bucket_names in buckets.items())
        return "; ".join(filter(None, (self._why, *failures))) or None

    @property
    def reserved_bytes(self) -> int:
        return self._graphs.reserved_bytes

    def rows_for(self, num_running: int) -> int:
        if self._kind == "off":
            return super().rows_for(num_running)
        return min(1 << (num_running - 1).bit_length(), self.rows.state.num_rows)

    def span_for(self, num_tokens: int) -> int:
        if self._kind == "off":
            return super().span_for(num_tokens)
        return min(span_bucket(num_tokens), self.rows.capacity)

    def launch(self, num_rows: int, k: int, span: int, num_behind: int = 0) -> RoundLaunch:
        halves = self._find(_Bucket(num_rows, k, span))
        if halves is None:
            return super().launch(num_rows, k, span, num_behind)
        mark = self.clock.mark
        began = mark()
        catch_up(self.rows, halves.state, num_behind, span)
        drafted = None if k else began
        if halves.draft is not None:
            halves.draft()
            drafted = mark()
        halves.finish()
        report_BN = self._readback.fetch(halves.report_BN)
        return RoundLaunch(
            began=began, drafted=drafted, ended=mark(), report_BN=report_BN, graph=self._kind
        )

    def _find(self, bucket: _Bucket) -> _Halves | None:
        """The captured round, captured now if needed; None if it has to run eagerly."""
        buffers = self.rows.buffers
        if len(buffers) != len(self._bound_to) or any(
            bound() is not buffer for bound, buffer in zip(self._bound_to, buffers, strict=True)
        ):
            self._captured.clear()
            # Weak references: the memory of a replaced cache must be freed.
            self._bound_to = tuple(weakref.ref(buffer) for buffer in buffers)
        if bucket not in self._captured and bucket not in self._refused and self._kind != "off":
            self._try_capture(bucket)
        if bucket in self._captured:
            self._captured.move_to_end(bucket)
        return self._captured.get(bucket)

    def _try_capture(self, bucket: _Bucket) -> None:
        if not self._is_spread and len(devices := _devices(self.rows.buffers)) > 1:
            self._is_spread = True
            self._captured.clear()
            self._why = f"the keys and values are spread over {len(devices)} devices"
            drafter = self.rows.drafter
            draft, needs_host = drafter.resources.runner, drafter.capabilities.needs_host
            on_one_device = {self.rows.state.length_B1.device}
            if draft and not needs_host and _devices((draft.cache,)) == on_one_device:
                self._kind = "step"
                self._why += "; only drafting is captured, the target's rounds run eagerly"
            else:
                self._kind = "off"
        if self._kind == "off" or (self._is_spread and bucket.k == 0):
            return
        while len(self._captured) >= self._most_rounds:
            self._captured.popitem(last=False)
        state = self.rows.state.rows(0, bucket.num_rows)
        # Rows without budget change only past their length, so a trial run while no row has a
        # budget is harmless.
        budget_B = state.budget_B.clone()
        state.budget_B.zero_()
        self.num_captures += 1
        try:
            self._captured[bucket] = self._capture(state, bucket.k, bucket.span)
            self._has_captured = True
        except Exception as error:
            raise_if_device_lost(error)
            self._refused[bucket] = first_line(error)
        finally:
            state.budget_B.copy_(budget_B)

    def _capture(self, state: State, k: int, span: int) -> _Halves:
        target, drafter, sampler = self.rows.target, self.rows.drafter, self.sampler
        if k == 0 or self.graph == "round":
            whole = self._graph_of(
                lambda: run_round(
                    target, drafter, state, sampler, k=k, span=span, verifier=self.verifier
                ),
                kind=("round", k > 0),
            )
            return _Halves(state, None, whole.replay, whole.output)
        draft, proposal = self._drafting(partial(propose, drafter, state, sampler, k, span))
        draft()  # a capture computes nothing, and warming up the other half needs real drafts

        def finish() -> Tensor:
            return finish_round(target, drafter, state, sampler, proposal, span, self.verifier)

        if self._is_spread:
            report_BN = finish()
            return _Halves(state, draft, lambda: report_BN.copy_(finish()), report_BN)
        half = self._graph_of(finish, kind="finish")
        return _Halves(state, draft, half.replay, half.output)

    def _graph_of(self, run: Callable[[], T], kind: Hashable) -> Capture[T]:
        """Capture `run` as a graph.

        If another function of its kind was captured, libraries are already set up, and one warm-up
        is enough for the plans of this shape.
        """
        captured = self._graphs.capture(run, num_warm_ups=1 if kind in self._warm else NUM_WARM_UPS)
        self._warm.add(kind)
        return captured

    def _drafting(self, run: Callable[[], Proposal]) -> tuple[Callable[[], None], Proposal]:
        """A function that drafts again, and the proposal that it overwrites."""
        if not self.rows.drafter.capabilities.needs_host:
            captured = self._graph_of(run, kind="draft")
            return captured.replay, captured.output
        proposal = _cloned(run())

        def draft() -> None:
            for old, new in zip(_tensors(proposal), _tensors(run()), strict=True):
                old.copy_(new)

        return draft, proposal


class Launchers:
    """Makes launchers for a device, which share one memory pool and one set of host buffers.

    `auto` means `round` on CUDA and `off` elsewhere. `graphs` is None if rounds run eagerly. If
    this torch cannot clean up after a failed capture, `auto` is `off` with the reason, and a
    requested graph is a UsageError.
    """

    def __init__(
        self, graph: Literal["auto", "off", "step", "round"], device: torch.device
    ) -> None:
        self.graphs: CudaGraphs | None = None
        self._graph: GraphKind = "step" if graph == "step" else "round"
        self._readback = make_readback(device)
        self._reason: str | None = None
        if graph == "off":
            return
        if device.type != "cuda":
            if graph != "auto":
                self._reason = f"a {device.type} device has no graphs"
        elif missing := [name for name in _CLEANUP_FUNCTIONS if not hasattr(torch._C, name)]:
            self._reason = (
                f"torch {torch.__version__} has no {missing[0]}, without which a failed capture "
                "would break its allocator"
            )
            if graph != "auto":
                raise UsageError(
                    f"--cuda-graph {graph}: {self._reason}; use torch 2.11, or --cuda-graph auto"
                )
        else:
            self.graphs = CudaGraphs()

    @property
    def lag(self) -> int:
        """The lag of its launchers."""
        return self._readback.lag

    def __call__(self, rows: Rows, sampler: Sampler, verifier: Verifier, clock: Clock) -> Launcher:
        if self.graphs is None:
            return Launcher(
                rows, sampler, verifier, clock, readback=self._readback, reason=self._reason
            )
        return GraphLauncher(
            rows,
            sampler,
            verifier,
            clock,
            graph=self._graph,
            graphs=self.graphs,
            readback=self._readback,
        )


def _capture_failure(why: str, bucket_names: list[str] | None = None) -> str:
    """A message about why rounds run eagerly; it names a few of `bucket_names`."""
    if not bucket_names:
        return f"a round could not be captured: {why}"
    more = len(bucket_names) - _MOST_NAMED
    named = [*bucket_names[:_MOST_NAMED], *([f"{more} more"] if more > 0 else [])]
    return f"rounds of {'; '.join(named)} could not be captured: {why}"


def _cloned(proposal: Proposal) -> Proposal:
    copy: Proposal = tree_map_only(Tensor, Tensor.clone, proposal)
    return copy


def _tensors(proposal: Proposal) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(proposal) if isinstance(leaf, Tensor)]


def _devices(buffers: tuple[object, ...]) -> set[torch.device]:
    """The devices of the layers' keys and values."""
    caches = [buffer for buffer in buffers if isinstance(buffer, SlotCache)]
    return {layer.device for cache in caches for layer in cache.layers if layer.is_initialized}
