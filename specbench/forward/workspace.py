"""Tensors that a fused forward writes and reads, laid out once for each shape.

Making a view costs as much as a small product, so the views are made once, at the first forward of
a shape. Shape suffixes: B rows, T new tokens, N = B * T, S slots, D head size, G query heads per
key/value head.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from specbench.footprint import Sizes
from specbench.forward.attention.masks import hidden


class Workspace:
    """The tensors that a forward of B rows and T tokens writes, with their views.

    `mirrored` also stores the negated hidden state (TorchSteps.norm). Sizes without query heads
    are for a layer that makes only keys and values.
    """

    def __init__(self, sizes: Sizes, scratch: Tensor, B: int, T: int, *, mirrored: bool) -> None:
        self.sizes = sizes
        N, D, G = B * T, sizes.head, sizes.group
        query, kv = sizes.query_heads * D, sizes.kv_heads * D
        widths = sizes.widths(mirrored=mirrored)
        parts = torch.split(scratch[: N * sum(widths)], [N * width for width in widths])
        self.pair, self.qkv, self.gate_up, self.joined, packed = (
            part.view(N, width) for part, width in zip(parts, widths, strict=True)
        )
        self.hidden = self.pair[:, : sizes.hidden]
        self.mirror = self.pair[:, sizes.hidden :]
        self.layout = self.hidden.shape, self.hidden.stride()
        self.gate, self.up = torch.chunk(self.gate_up, 2, 1)

        self.new_kv = self.qkv[:, query:]
        turned = self.qkv[:, : query + kv]
        self.heads = turned.view(N, -1, D)
        self.halves = turned.view(N, -1, 2, D // 2)

        # Query heads that share keys and values are packed along the query axis, as if they were
        # more tokens. With one head per group or one token per row, a view is enough.
        by_token = (B, T, sizes.kv_heads, G, D)
        self.unpacked = self.qkv[:, :query].view(by_token).permute(0, 2, 3, 1, 4)
        self.spread = self.joined.view(by_token).permute(0, 2, 3, 1, 4)
        self.packs = G > 1 and T > 1
        if self.packs:
            self.packed = packed.view(self.unpacked.shape)
            self.query = self.packed.flatten(2, 3)
        else:
            self.query = self.unpacked.flatten(2, 3)
            self.spread = self.spread.flatten(2, 3)


class LayerKV(NamedTuple):
    """One layer's buffer, and the keys and values that a forward reads, [B, kv heads, S, D]."""

    buffer: Tensor
    keys: Tensor
    values: Tensor


class CacheView(NamedTuple):
    """The part of the cache that a forward of B rows over `span` slots reads and writes."""

    layers: tuple[LayerKV, ...]
    first_slot_B1: Tensor  # of each row, in the slots of all rows
    slots_S: Tensor
    shown: Tensor  # what a mask adds to the score of a visible slot; scalar in the cache's dtype
    hidden: Tensor  # the same for a hidden slot


class JoinedCache:
    """Keys and values side by side: one tensor [rows * max_len, 2 * kv heads * D] per layer.

    Tensors that a graph may have captured live as long as the cache.
    """

    state_bytes_per_row = 0

    def __init__(self, num_rows: int, max_len: int, layers: Sequence[Tensor]) -> None:
        self.num_rows = num_rows
        self.max_len = max_len
        self.layers = layers
        if layers:
            device = layers[0].device
            self._slots_S = torch.arange(max_len, device=device)
            self._first_slots_B1 = torch.arange(num_rows, device=device)[:, None] * max_len
            self._added = [
                layers[0].new_full((), value) for value in (0.0, hidden(layers[0].dtype))
            ]

    @property
    def nbytes(self) -> int:
        """Bytes allocated for all rows."""
        return sum(layer.nbytes for layer in self.layers)

    @property
    def bytes_per_token(self) -> int:
        return self.nbytes // max(self.num_rows * self.max_len, 1)

    def copy_row(self, source: int, destination: int, num_tokens: int) -> None:
        for layer in self.layers:
            rows = layer.view(self.num_rows, self.max_len, -1)
            rows[destination, :num_tokens].copy_(rows[source, :num_tokens])

    def move_slots(self, sources_BT: Tensor, destinations_BT: Tensor, first_row: int = 0) -> None:
        first_B1 = self._first_slots_B1[first_row : first_row + len(sources_BT)]
        from_N, to_N = (first_B1 + sources_BT).flatten(), (first_B1 + destinations_BT).flatten()
        for layer in self.layers:
            layer.index_copy_(0, to_N, layer.index_select(0, from_N))

    def view(self, B: int, span: int, first_row: int, sizes: Sizes) -> CacheView:
        """The first `span` slots of rows first_row .. first_row + B - 1."""
        shape = (self.num_rows, self.max_len, 2, sizes.kv_heads, sizes.head)
        chosen = slice(first_row, first_row + B)
        layers = (
            LayerKV(layer, *layer.view(shape)[chosen, :span].permute(2, 0, 3, 1, 4).unbind(0))
            for layer in self.layers
        )
        return CacheView(
            tuple(layers), self._first_slots_B1[chosen], self._slots_S[:span], *self._added
        )


@dataclass(slots=True)
class LayerSlots:
    """Buffers that `allocate` replaces, shared by all layers and a runner of only the first."""

    cache: JoinedCache
    rope: Tensor
