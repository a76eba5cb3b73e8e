"""Times single forwards, which give a lower bound on the time of the rounds that contain them.

Shape suffixes: T tokens of one row.
"""

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from specbench.decode.clock import Clock
from specbench.decode.drafter import SlotCapacity
from specbench.decode.graphs import Capture, CudaGraphs
from specbench.footprint import rounded_up, span_bucket
from specbench.forward.attention.stock import pinned_attention
from specbench.forward.slot_cache import SlotCache
from specbench.models.library_errors import raise_if_device_lost


class Forwards(Protocol):
    """A runner of forwards: a model's Runner, or a part of a head."""

    @property
    def device(self) -> torch.device: ...

    @property
    def cache(self) -> SlotCapacity:
        """The cache that forwards write to; `allocate` replaces it if it has to grow."""
        ...

    def allocate(self, num_rows: int, max_len: int) -> None: ...

    def forward(self, tokens_BT: Tensor, positions_BT: Tensor, span: int, /) -> object: ...


class _ForwardGraph(NamedTuple):
    """A forward and its graph; `captured` is None if the capture failed."""

    runner: weakref.ref[Forwards]
    cache: weakref.ref[SlotCapacity]
    captured: Capture[object] | None
    inputs: tuple[Tensor, Tensor]  # replays read these tensors


class ModelForwards:
    """Times one row's forwards as in rounds: with the same cache, and captured if rounds are."""

    def __init__(self, graphs: CudaGraphs | None, clock: Clock) -> None:
        self._graphs = graphs
        self._clock = clock
        self._known: dict[tuple[int, int, int], _ForwardGraph] = {}  # by runner, tokens and span

    def forget(self) -> None:
        """Free the graphs of runners that no longer exist."""
        self._known = {s: graph for s, graph in self._known.items() if graph.runner() is not None}

    @torch.inference_mode()
    def seconds(self, runner: Forwards, num_tokens: int, context: int) -> float:
        """Seconds of a forward over `num_tokens` tokens of row 0 after `context` other tokens.

        Overwrites the row's cache after the context. Allocates only if the cache is empty; if the
        cache is too small for the context, the forward runs at the end of the cache.
        """
        with pinned_attention(runner.device):
            run = self._prepared(runner, num_tokens, context)
            if runner.device.type == "cuda":
                run()  # as in rounds, the GPU is busy when the timed forward is launched
            began = self._clock.mark()
            run()
            ended = self._clock.mark()
            return self._clock.seconds(ended) - self._clock.seconds(began)

    def _prepared(self, runner: Forwards, T: int, context: int) -> Callable[[], object]:
        span_for = rounded_up if self._graphs is None else span_bucket
        if not runner.cache.max_len:
            runner.allocate(1, span_for(context + T))
        longest = runner.cache.max_len
        context = max(min(context, longest - T), 0)
        span = min(span_for(context + T), longest)
        shape = id(runner), T, span
        known = self._known.get(shape)
        is_known = known is not None and known.runner() is runner and known.cache() is runner.cache
        positions_1T = torch.arange(context, context + T, device=runner.device)[None]
        if known is not None and is_known and known.captured is not None:
            known.inputs[1].copy_(positions_1T)
            return known.captured.replay
        tokens_1T = torch.zeros(1, T, dtype=torch.long, device=runner.device)

        def run() -> object:
            with _leaving_states(runner.cache):
                return runner.forward(tokens_1T, positions_1T, span)

        if self._graphs is None or is_known:
            return run
        run()  # buffers that the first call creates would otherwise cause a recompilation
        captured: Capture[object] | None
        try:
            captured = self._graphs.capture(run, num_warm_ups=1)
        except Exception as error:  # then the rounds also run eagerly
            raise_if_device_lost(error)
            captured = None
        self.forget()
        self._known[shape] = _ForwardGraph(
            weakref.ref(runner), weakref.ref(runner.cache), captured, (tokens_1T, positions_1T)
        )
        return run if captured is None else captured.replay


def _leaving_states(cache: SlotCapacity) -> AbstractContextManager[None]:
    """Leave the recurrent states unchanged, since a round in progress may need any of them."""
    states = cache.states if isinstance(cache, SlotCache) else None
    return nullcontext() if states is None else states.dry_run()
