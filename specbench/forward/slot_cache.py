"""A KV cache that writes every token to an explicit row and slot.

Rollback is free: the slot of a rejected draft token is beyond the committed length, is masked, and
is overwritten by the next round.
Shape suffixes: B rows, T new tokens, S slots, H heads, D head size.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from specbench.forward.state_slots import StateSlots


class KvCache(Protocol):
    """Keys and values of a model for all rows: a `SlotCache`, or the buffers of fused layers."""

    @property
    def max_len(self) -> int:
        """Slots per row; 0 before `allocate`."""
        ...

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token of one row takes in all layers; 0 before the first forward."""
        ...

    @property
    def state_bytes_per_row(self) -> int:
        """Bytes of recurrent state per row, whatever its length; 0 before the first forward."""
        ...

    def copy_row(self, source: int, destination: int, num_tokens: int) -> None:
        """Copy the first `num_tokens` slots of a row to another, in all layers."""


class SlotIndex:
    """Slots that the current forward writes and reads; shared by all layers of a cache."""

    def __init__(self, num_rows: int, max_len: int) -> None:
        self.num_rows = num_rows
        self.max_len = max_len
        self.first_row = 0
        self.flat_N = torch.empty(0, dtype=torch.long)  # to write, in the rows laid end to end
        self.span = 0  # slots of each row that attention reads

    def select(self, slots_BT: Tensor, span: int, first_row: int) -> None:
        """Write row i of the next forward at `slots_BT[i]` of row `first_row + i`."""
        rows_B = torch.arange(len(slots_BT), device=slots_BT.device) + first_row
        self.flat_N = (rows_B[:, None] * self.max_len + slots_BT).reshape(-1)
        self.span = span
        self.first_row = first_row


class SlotLayer(CacheLayerMixin):  # type: ignore[misc]
    """Keys and values of one layer: two buffers [rows, max_len, H, D], allocated on first use."""

    is_compileable = True
    is_sliding = False

    def __init__(self, index: SlotIndex) -> None:
        super().__init__()
        self.index = index

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        def buffer(like_BHTD: Tensor) -> Tensor:
            _, H, _, D = like_BHTD.shape
            return like_BHTD.new_zeros(self.index.num_rows, self.index.max_len, H, D)

        self.keys, self.values = buffer(key_states), buffer(value_states)
        self.dtype, self.device = key_states.dtype, key_states.device
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Write [B, H, T, D] at the indexed slots; return the first `span` slots [B, H, S, D]."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        return self._write_and_read(self.keys, key_states), self._write_and_read(
            self.values, value_states
        )

    def _write_and_read(self, buffer: Tensor, new_BHTD: Tensor) -> Tensor:
        B, H, T, D = new_BHTD.shape
        flat_N = self.index.flat_N.to(buffer.device)
        buffer.view(-1, H, D).index_copy_(0, flat_N, new_BHTD.transpose(1, 2).reshape(B * T, H, D))
        first = self.index.first_row
        return buffer[first : first + B, : self.index.span].transpose(1, 2)

    # The base class requires these. Models do not call them: positions and masks are passed in.
    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return self.index.max_len

    def get_max_cache_shape(self) -> int:
        return self.index.max_len

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:  # noqa: ARG002
        return self.index.span, 0


class SlotCache(Cache):  # type: ignore[misc]
    """`num_rows` rows of `max_len` slots for a model of `num_layers` layers.

    `states` stores the states of recurrent layers.
    """

    def __init__(
        self, num_layers: int, num_rows: int, max_len: int, states: StateSlots | None = None
    ) -> None:
        self.index = SlotIndex(num_rows, max_len)
        self.states = states
        # Not super(): the next base may be a model's own cache class, which takes no layers.
        Cache.__init__(self, layers=[SlotLayer(self.index) for _ in range(num_layers)])
        # For LongCat Flash, whose layers have two pairs of keys and values: it adds cache layers.
        self.layer_class_to_replicate = partial(SlotLayer, self.index)

    def copy_row(self, source: int, destination: int, num_tokens: int) -> None:
        """Copy the first `num_tokens` slots of a row to another, in all layers."""
        if self.states is not None:
            self.states.copy_row(source, destination)
        for buffer in self._buffers():
            buffer[destination, :num_tokens].copy_(buffer[source, :num_tokens])

    def move_slots(self, sources_BT: Tensor, destinations_BT: Tensor, first_row: int = 0) -> None:
        """Copy slots within each of B rows, the first being `first_row`, in all layers.

        Sources and destinations may overlap.
        """
        rows_B = torch.arange(len(sources_BT), device=sources_BT.device) + first_row
        first_B1 = rows_B[:, None] * self.index.max_len
        from_N, to_N = (first_B1 + sources_BT).flatten(), (first_B1 + destinations_BT).flatten()
        for buffer in self._buffers():
            flat = buffer.view(-1, *buffer.shape[2:])
            moved = flat.index_select(0, from_N.to(buffer.device))
            flat.index_copy_(0, to_N.to(buffer.device), moved)

    def _buffers(self) -> Iterator[Tensor]:
        """Keys and values of every layer that stores any (some of Gemma 3n's share another's)."""
        for layer in self.layers:
            if layer.is_initialized:
                yield from (layer.keys, layer.values)

    @property
    def max_len(self) -> int:
        """Slots per row."""
        return self.index.max_len

    @property
    def nbytes(self) -> int:
        """Bytes allocated for all rows; 0 before the first forward."""
        return self.bytes_per_token * self.index.num_rows * self.index.max_len

    @property
    def state_bytes_per_row(self) -> int:
        """Bytes of recurrent state per row, whatever its length; 0 before the first forward."""
        return 0 if self.states is None else self.states.bytes_per_row

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token of one row takes in all layers; 0 before the first forward."""
        slots = self.index.num_rows * self.index.max_len
        return sum(buffer.nbytes // slots for buffer in self._buffers())
