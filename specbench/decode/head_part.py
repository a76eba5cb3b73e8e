"""A part of a head's work in a round that can be run and measured on its own."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from specbench.forward.layer_stack import LayerStack


class SlotCapacity(Protocol):
    """Slots that a part writes to, row by row."""

    @property
    def max_len(self) -> int: ...


RunPart = Callable[[Tensor, Tensor, int], object]  # tokens and positions [1, T], span


@dataclass(frozen=True, kw_only=True, slots=True, weakref_slot=True, eq=False)
class HeadPart:
    """Runs as a model's Runner does, over one row; states that a round would have are zeros.

    What it writes are slots of row 0, which is to hold no request meanwhile. `weights` are what
    it reads: the target's own matrices too, no embedding of which only rows are looked up.
    """

    run: RunPart
    weights: tuple[Tensor, ...]
    layers: LayerStack | None = None  # over whose slots it goes
    num_attending: int = 0  # of them, how many look at the context's keys and values

    @property
    def device(self) -> torch.device:
        return self.weights[0].device

    @property
    def cache(self) -> SlotCapacity:
        """The cache whose buffers a captured run is bound to."""
        return self if self.layers is None else self.layers.cache

    @property
    def max_len(self) -> int:
        """Unlimited, since the part keeps no state."""
        return sys.maxsize

    def allocate(self, num_rows: int, max_len: int) -> None:
        """Allocates its layers as Runner.allocate does."""
        if self.layers is not None:
            self.layers.allocate(num_rows, max_len)

    def forward(self, tokens_1T: Tensor, positions_1T: Tensor, span: int, /) -> object:
        return self.run(tokens_1T, positions_1T, span)

    @property
    def weights_bytes(self) -> int:
        """Bytes of the weights that it reads; each tensor is counted once."""
        return sum({weight.data_ptr(): weight.nbytes for weight in self.weights}.values())

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes that it reads for each token of context; 0 before the first forward."""
        if self.layers is None:
            return 0
        return self.layers.cache.bytes_per_token * self.num_attending // len(self.layers.layers)
