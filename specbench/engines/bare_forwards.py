"""Forwards measured alone: the floor that a round is held against.

Shape suffixes: T tokens of one row.
"""

import weakref
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from specbench.decoding.backends import pinned_attention
from specbench.decoding.clock import Clock
from specbench.decoding.cuda_graphs import Captured, Graphs
from specbench.decoding.rows import rounded_up, span_bucket
from specbench.decoding.runner import KvCache, Runner


class _Shape(NamedTuple):
    cache: int  # its id, while it lives
    num_tokens: int
    span: int


class _Known(NamedTuple):
    cache: weakref.ref[KvCache]
    positions_1T: Tensor
    captured: Captured[Tensor]


class BareForwards:
    """Times one row's forwards as rounds run them: over the same cache, captured where they are."""

    def __init__(self, graphs: Graphs | None, clock: Clock) -> None:
        self._graphs = graphs
        self._clock = clock
        self._captured: dict[_Shape, _Known] = {}

    @torch.inference_mode()
    def seconds(self, runner: Runner, num_tokens: int, context: int) -> float:
        """Seconds of a forward over `num_tokens` tokens of row 0 after `context` others.

        What the row holds behind them is overwritten. Its memory grows only where nobody has
        made room: the last slots there are stand for a context that is longer.
        """
        run = self._prepared(runner, num_tokens, context)
        began = self._clock.mark()
        run()
        ended = self._clock.mark()
        return self._clock.seconds(ended) - self._clock.seconds(began)

    def _prepared(self, runner: Runner, T: int, context: int) -> Callable[[], object]:
        if not runner.cache.max_len:
            runner.allocate(1, rounded_up(context + T))
        longest = runner.cache.max_len
        context = max(min(context, longest - T), 0)
        span_for = rounded_up if self._graphs is None else span_bucket
        span = min(span_for(context + T), longest)
        shape = _Shape(id(runner.cache), T, span)
        known = self._captured.get(shape)
        if known is not None and known.cache() is runner.cache:
            known.positions_1T.copy_(self._positions(runner, T, context))
            return known.captured.replay
        tokens_1T = torch.zeros(1, T, dtype=torch.long, device=runner.device)
        positions_1T = self._positions(runner, T, context)

        def run() -> Tensor:
            return runner.forward(tokens_1T, positions_1T, span).logits

        if self._graphs is None:
            return run
        with pinned_attention(runner.device):
            captured = self._graphs.capture(run)
        self._captured[shape] = _Known(weakref.ref(runner.cache), positions_1T, captured)
        return captured.replay

    def _positions(self, runner: Runner, T: int, context: int) -> Tensor:
        return torch.arange(context, context + T, device=runner.device)[None]
