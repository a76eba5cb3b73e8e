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
from specbench.decoding.runner import KvCache, Runner
from specbench.footprint import rounded_up, span_bucket


class _Shape(NamedTuple):
    cache: int  # its id, while it lives
    num_tokens: int
    span: int


class BareForwards:
    """Times one row's forwards as rounds run them: over the same cache, captured where they are."""

    def __init__(self, graphs: Graphs | None, clock: Clock) -> None:
        self._graphs = graphs
        self._clock = clock
        self._captured: dict[_Shape, tuple[weakref.ref[KvCache], Captured[Tensor]]] = {}

    @torch.inference_mode()
    def seconds(
        self, runner: Runner, num_tokens: int, context: int, num_samples: int
    ) -> tuple[float, ...]:
        """Seconds of each of the samples, over `num_tokens` tokens after `context` others."""
        run = self._prepared(runner, num_tokens, context)
        seconds = []
        for _ in range(num_samples):
            began = self._clock.mark()
            run()
            ended = self._clock.mark()
            seconds.append(self._clock.seconds(ended) - self._clock.seconds(began))
        return tuple(seconds)

    def _prepared(self, runner: Runner, T: int, context: int) -> Callable[[], object]:
        span_for = rounded_up if self._graphs is None else span_bucket
        span = span_for(context + T)
        runner.allocate(1, span)
        shape = _Shape(id(runner.cache), T, span)
        known = self._captured.get(shape)
        if known is not None and known[0]() is runner.cache:
            return known[1].replay
        tokens_1T = torch.zeros(1, T, dtype=torch.long, device=runner.device)
        positions_1T = torch.arange(context, context + T, device=runner.device)[None]

        def run() -> Tensor:
            return runner.forward(tokens_1T, positions_1T, span).logits

        if self._graphs is None:
            return run
        with pinned_attention(runner.device):
            captured = self._graphs.capture(run)
        self._captured[shape] = (weakref.ref(runner.cache), captured)
        return captured.replay
