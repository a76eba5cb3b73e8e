"""Caches that write every token to an explicit row and slot, so that rollback is free.

Keys and values: the slot of a rejected draft token is past the committed length, so it is masked,
and the next round overwrites it.
Recurrent state: the state after a row's first p tokens is in slot p mod S of the row. A token at
position p reads slot p and writes slot p + 1. So a round that follows rejected draft tokens reads
the state before them and overwrites theirs: the number of accepted tokens determines the position
of the next round, and therefore its state.
Shape suffixes: B rows, T new tokens, S slots, H heads, D head size.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

_EMPTY = -1


class Piece(NamedTuple):
    """Tokens `begin` .. `end` - 1 of a forward, which a layer computes in one call."""

    begin: int
    end: int
    reads_B: Tensor | None  # the slot of the state before them; None: a text begins
    writes_B: Tensor  # the slot of the state after them


class StateSlots:
    """S slots for each of `num_rows` rows, in every layer with recurrent state.

    A token is skipped if no slot has the state before it: its result goes to a slot that is never
    read. This happens in unused rows, and if a draft model gets tokens that it has already
    processed. All rows share the slot of the empty state before position 0.
    """

    def __init__(self, num_rows: int, num_slots: int, device: torch.device) -> None:
        self.num_rows = num_rows
        self.num_slots = num_slots
        self.pieces: tuple[Piece, ...] = ()  # of the forward in progress
        self._states: dict[int, list[Tensor]] = {}  # by layer, [rows * S + 2, ...]
        self._unread_slot = num_rows * num_slots
        self._empty_slot = self._unread_slot + 1
        # The position whose state each slot holds; the last column is never read.
        self._positions_RS = torch.full((num_rows, num_slots + 1), _EMPTY, device=device)
        self._is_dry = False

    def select_steps(self, positions_BT: Tensor, first_row: int) -> Tensor:
        """Make the next forward run token by token; returns which tokens are not skipped [B, T].

        Positions are consecutive, except that position 0 may be repeated.
        """
        B, S = len(positions_BT), self.num_slots
        held_BS = self._positions_RS[first_row : first_row + B]
        begins_BT, reads_BT = positions_BT == 0, positions_BT % S
        is_held_BT = begins_BT | (held_BS.gather(1, reads_BT) == positions_BT)
        # After one token of this forward, the state before the next one is available.
        is_fed_BT = is_held_BT.cumsum(1) > 0
        if self._is_dry:
            is_fed_BT = torch.zeros_like(is_fed_BT)
        writes_BT = torch.where(is_fed_BT, (positions_BT + 1) % S, S)
        held_BS.scatter_(1, writes_BT[:, -S:], positions_BT[:, -S:] + 1)
        first_B1 = self._first(first_row, B)[:, None]
        reads_BT = torch.where(begins_BT, self._empty_slot, first_B1 + reads_BT)
        writes_BT = torch.where(is_fed_BT, first_B1 + writes_BT, self._unread_slot)
        steps = zip(reads_BT.unbind(1), writes_BT.unbind(1), strict=True)
        self.pieces = tuple(Piece(t, t + 1, *step) for t, step in enumerate(steps))
        return is_fed_BT

    def select_whole(self, start: int, num_tokens: int, num_rows: int, first_row: int) -> None:
        """Make the next forward run in one call, on tokens start .. start + T - 1 of every row.

        Afterwards the rows have only the state after the last of these tokens.
        """
        first_B = self._first(first_row, num_rows)
        end = start + num_tokens
        held_BS = self._positions_RS[first_row : first_row + num_rows]
        held_BS.fill_(_EMPTY)
        held_BS[:, end % self.num_slots] = end
        reads_B = first_B + start % self.num_slots if start else None
        self.pieces = (Piece(0, num_tokens, reads_B, first_B + end % self.num_slots),)

    def _first(self, first_row: int, num_rows: int) -> Tensor:
        """The first slot of each row, in the slots of all rows."""
        rows_B = torch.arange(num_rows, device=self._positions_RS.device) + first_row
        return rows_B * self.num_slots

    def read(self, layer: int, piece: Piece) -> list[Tensor] | None:
        """Copies of a layer's states before a piece; None if there are none yet."""
        buffers = self._states.get(layer)
        if piece.reads_B is None or buffers is None:
            return None
        return [buffer.index_select(0, piece.reads_B.to(buffer.device)) for buffer in buffers]

    def write(self, layer: int, piece: Piece, states: Sequence[Tensor]) -> None:
        """Store a layer's states after a piece, [B, ...] each."""
        if layer not in self._states:
            self._states[layer] = [
                new.new_zeros(self._empty_slot + 1, *new.shape[1:]) for new in states
            ]
        for buffer, new in zip(self._states[layer], states, strict=True):
            buffer.index_copy_(0, piece.writes_B.to(buffer.device), new)

    @contextmanager
    def dry_run(self) -> Iterator[None]:
        """Within this context, forwards compute as usual but store no state, so that they can be
        timed between rounds."""
        self._is_dry = True
        try:
            yield
        finally:
            self._is_dry = False

    def has_state(self, row: int, position: int) -> bool:
        """Whether the state before that position of a row is stored; waits for the device."""
        return position == 0 or bool(self._positions_RS[row, position % self.num_slots] == position)

    def copy_row(self, source: int, destination: int) -> None:
        """Copy a row's states to another row."""
        self._positions_RS[destination].copy_(self._positions_RS[source])
        S = self.num_slots
        for buffers in self._states.values():
            for buffer in buffers:
                buffer[destination * S :][:S].copy_(buffer[source * S :][:S])

    @property
    def bytes_per_row(self) -> int:
        """Bytes of one row's states in all layers and slots; 0 before the first forward."""
        all_buffers = (buffer for buffers in self._states.values() for buffer in buffers)
        return self.num_slots * sum(buffer[0].nbytes for buffer in all_buffers)


class KvCache(Protocol):
    """Keys and values of a model for all rows: a `SlotCache`, or a fused model's `JoinedCache`."""

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

    def move_slots(self, sources_BT: Tensor, destinations_BT: Tensor, first_row: int = 0) -> None:
        """Copy slots within each of B rows, the first being `first_row`, in all layers.

        Sources and destinations may overlap.
        """


class SlotIndex:
    """Slots that the current forward writes and reads; shared by all layers of a cache."""

    def __init__(self, num_rows: int, max_len: int) -> None:
        self.num_rows = num_rows
        self.max_len = max_len
        self.first_row = 0
        self.flat_N = torch.empty(0, dtype=torch.long)  # slots to write, in the slots of all rows
        self.span = 0  # slots of each row that attention reads

    def select(self, slots_BT: Tensor, span: int, first_row: int) -> None:
        """Make the next forward write its row i to `slots_BT[i]` of row `first_row + i`."""
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
        return _part(buffer, B, self.index.span, self.index.first_row)

    # The base class requires these. Models do not call them: positions and masks are passed in.
    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return self.index.max_len

    def get_max_cache_shape(self) -> int:
        return self.index.max_len

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:  # noqa: ARG002
        return self.index.span, 0


def _part(buffer: Tensor, B: int, span: int, first_row: int) -> Tensor:
    """The first `span` slots of B rows [B, H, S, D], as a view."""
    return buffer[first_row : first_row + B, :span].transpose(1, 2)


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

    def keys_values(
        self, layer: int, num_rows: int, span: int, first_row: int
    ) -> tuple[Tensor, Tensor] | None:
        """As in Runner.keys_values."""
        stored = self.layers[layer]
        if not stored.is_initialized:
            return None
        keys, values = (_part(b, num_rows, span, first_row) for b in (stored.keys, stored.values))
        return keys, values

    def copy_row(self, source: int, destination: int, num_tokens: int) -> None:
        if self.states is not None:
            self.states.copy_row(source, destination)
        for buffer in self._buffers():
            buffer[destination, :num_tokens].copy_(buffer[source, :num_tokens])

    def move_slots(self, sources_BT: Tensor, destinations_BT: Tensor, first_row: int = 0) -> None:
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
        return self.index.max_len

    @property
    def nbytes(self) -> int:
        """Bytes allocated for all rows; 0 before the first forward."""
        return self.bytes_per_token * self.index.num_rows * self.index.max_len

    @property
    def state_bytes_per_row(self) -> int:
        return 0 if self.states is None else self.states.bytes_per_row

    @property
    def bytes_per_token(self) -> int:
        slots = self.index.num_rows * self.index.max_len
        return sum(buffer.nbytes // slots for buffer in self._buffers())
