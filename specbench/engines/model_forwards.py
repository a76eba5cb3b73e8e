"""Forwards measured alone: a lower bound on the time of the rounds that they are part of.

Shape suffixes: T tokens of one row.
"""

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from specbench.decode.clock import Clock
from specbench.decode.cuda_graphs import Captured, Graphs
from specbench.decode.head_part import SlotCapacity
from specbench.footprint import rounded_up, span_bucket
from specbench.forward.attention.backends import pinned_attention
from specbench.forward.slot_cache import SlotCache
from specbench.models.library_errors import raise_if_device_lost


class Forwards(Protocol):
    """What runs forwards: a model's Runner, or a part of a head's work."""

    @property
    def device(self) -> torch.device: ...

    @property
    def cache(self) -> SlotCapacity:
        """What it writes to; another one after an `allocate` that had to grow it."""
        ...

    def allocate(self, num_rows: int, max_len: int) -> None: ...

    def forward(self, tokens_BT: Tensor, positions_BT: Tensor, span: int, /) -> object: ...


class _ForwardShape(NamedTuple):
    whose: int  # its id, while it lives
    num_tokens: int
    span: int


class _ForwardGraph(NamedTuple):
    """A captured forward; None where it could not be captured."""

    whose: weakref.ref[Forwards]
    cache: weakref.ref[SlotCapacity]
    captured: Captured[object] | None
    inputs: tuple[Tensor, Tensor]  # replays read them where they lie


class ModelForwards:
    """Times one row's forwards as rounds run them: over the same cache, captured where they are."""

    def __init__(self, graphs: Graphs | None, clock: Clock) -> None:
        self._graphs = graphs
        self._clock = clock
        self._known: dict[_ForwardShape, _ForwardGraph] = {}

    def forget(self) -> None:
        """Give back the graphs of what is gone."""
        self._known = {s: graph for s, graph in self._known.items() if graph.whose() is not None}

    @torch.inference_mode()
    def seconds(self, whose: Forwards, num_tokens: int, context: int) -> float:
        """Seconds of a forward over `num_tokens` tokens of row 0 after `context` others.

        What the row holds behind them is overwritten. Its memory grows only where nobody has
        made room: the last slots there are stand for a context that is longer.
        """
        with pinned_attention(whose.device):
            run = self._prepared(whose, num_tokens, context)
            began = self._clock.mark()
            run()
            ended = self._clock.mark()
            return self._clock.seconds(ended) - self._clock.seconds(began)

    def _prepared(self, whose: Forwards, T: int, context: int) -> Callable[[], object]:
        span_for = rounded_up if self._graphs is None else span_bucket
        if not whose.cache.max_len:
            whose.allocate(1, span_for(context + T))
        longest = whose.cache.max_len
        context = max(min(context, longest - T), 0)
        span = min(span_for(context + T), longest)
        shape = _ForwardShape(id(whose), T, span)
        known = self._known.get(shape)
        is_known = known is not None and known.whose() is whose and known.cache() is whose.cache
        positions_1T = torch.arange(context, context + T, device=whose.device)[None]
        if known is not None and is_known and known.captured is not None:
            known.inputs[1].copy_(positions_1T)
            return known.captured.replay
        tokens_1T = torch.zeros(1, T, dtype=torch.long, device=whose.device)

        def run() -> object:
            with _leaving_states(whose.cache):
                return whose.forward(tokens_1T, positions_1T, span)

        if self._graphs is None or is_known:
            return run
        run()  # what is made on first use would make a compiled one start anew
        captured: Captured[object] | None
        try:
            captured = self._graphs.capture(run, num_warm_ups=1)
        except Exception as error:  # its rounds run eagerly, too
            raise_if_device_lost(error)
            captured = None
        self.forget()
        self._known[shape] = _ForwardGraph(
            weakref.ref(whose), weakref.ref(whose.cache), captured, (tokens_1T, positions_1T)
        )
        return run if captured is None else captured.replay


def _leaving_states(cache: SlotCapacity) -> AbstractContextManager[None]:
    """Recurrent states lie close together: a round under way may need any of them."""
    states = cache.states if isinstance(cache, SlotCache) else None
    return nullcontext() if states is None else states.nothing_kept()
