"""Recurrent state by position: rolled back at no cost, as keys and values are.

The state that a row's first p tokens left is in slot p mod S of the row. A token at position p
reads slot p and writes slot p + 1. So a round that begins after rejected drafts finds the state
before them and overwrites theirs: the accepted count sets the position of the next round, and
thereby its state. Shape suffixes: B rows, T tokens, S slots.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

_NOTHING = -1


class Piece(NamedTuple):
    """Tokens `begin` .. `end` - 1 of a forward, which a layer is fed at once."""

    begin: int
    end: int
    reads_B: Tensor | None  # the slot of the state before them; None: a text begins
    writes_B: Tensor


class StateSlots:
    """S slots for each of `num_rows` rows, in every layer that keeps state.

    A token whose state before it is not held is not fed: it writes to a slot that is never read.
    That happens to unused rows, and to a draft model that is shown more of a row than it has not
    seen. All rows share the slot of the empty state before position 0.
    """

    def __init__(self, num_rows: int, num_slots: int, device: torch.device) -> None:
        self.num_rows = num_rows
        self.num_slots = num_slots
        self.pieces: tuple[Piece, ...] = ()  # of the forward in progress
        self._kept: dict[int, list[Tensor]] = {}  # by layer, [rows * S + 2, ...]
        self._unread = num_rows * num_slots
        self._nothing = self._unread + 1
        # The position whose state each slot holds; the last column is never read.
        self._held_RS = torch.full((num_rows, num_slots + 1), _NOTHING, device=device)
        self._is_dry = False

    def point(self, positions_BT: Tensor, first_row: int) -> Tensor:
        """Feed the next forward token by token; which of them are fed [B, T].

        Positions follow one another, but may repeat position 0.
        """
        B, S = len(positions_BT), self.num_slots
        held_BS = self._held_RS[first_row : first_row + B]
        begins_BT, reads_BT = positions_BT == 0, positions_BT % S
        is_held_BT = begins_BT | (held_BS.gather(1, reads_BT) == positions_BT)
        # What a token of this forward has written counts as held, whatever was there.
        is_fed_BT = is_held_BT.cumsum(1) > 0
        if self._is_dry:
            is_fed_BT = torch.zeros_like(is_fed_BT)
        writes_BT = torch.where(is_fed_BT, (positions_BT + 1) % S, S)
        held_BS.scatter_(1, writes_BT[:, -S:], positions_BT[:, -S:] + 1)
        first_B1 = self._first(first_row, B)[:, None]
        reads_BT = torch.where(begins_BT, self._nothing, first_B1 + reads_BT)
        writes_BT = torch.where(is_fed_BT, first_B1 + writes_BT, self._unread)
        steps = zip(reads_BT.unbind(1), writes_BT.unbind(1), strict=True)
        self.pieces = tuple(Piece(t, t + 1, *step) for t, step in enumerate(steps))
        return is_fed_BT

    def point_at(self, start: int, num_tokens: int, num_rows: int, first_row: int) -> None:
        """Feed the next forward at once: its tokens stand at start .. start + T - 1 in every row.

        The state after the last of them is all that the rows then hold.
        """
        first_B = self._first(first_row, num_rows)
        end = start + num_tokens
        held_BS = self._held_RS[first_row : first_row + num_rows]
        held_BS.fill_(_NOTHING)
        held_BS[:, end % self.num_slots] = end
        reads_B = first_B + start % self.num_slots if start else None
        self.pieces = (Piece(0, num_tokens, reads_B, first_B + end % self.num_slots),)

    def _first(self, first_row: int, num_rows: int) -> Tensor:
        """The first slot of each row among those of all."""
        rows_B = torch.arange(num_rows, device=self._held_RS.device) + first_row
        return rows_B * self.num_slots

    def read(self, layer: int, piece: Piece) -> list[Tensor] | None:
        """Copies of a layer's states before a piece; None if nothing was fed yet."""
        kept = self._kept.get(layer)
        if piece.reads_B is None or kept is None:
            return None
        return [buffer.index_select(0, piece.reads_B.to(buffer.device)) for buffer in kept]

    def write(self, layer: int, piece: Piece, states: Sequence[Tensor]) -> None:
        """Keep a layer's states after a piece, [B, ...] each."""
        if layer not in self._kept:
            self._kept[layer] = [new.new_zeros(self._nothing + 1, *new.shape[1:]) for new in states]
        for buffer, new in zip(self._kept[layer], states, strict=True):
            buffer.index_copy_(0, piece.writes_B.to(buffer.device), new)

    @contextmanager
    def nothing_kept(self) -> Iterator[None]:
        """Forwards that are timed between rounds compute as they do in them, and leave no state."""
        self._is_dry = True
        try:
            yield
        finally:
            self._is_dry = False

    def holds(self, row: int, position: int) -> bool:
        """Whether a row has the state before that position; waits for the device."""
        return position == 0 or bool(self._held_RS[row, position % self.num_slots] == position)

    def copy_row(self, source: int, destination: int) -> None:
        """Make a row's states equal to another's."""
        self._held_RS[destination].copy_(self._held_RS[source])
        S = self.num_slots
        for buffers in self._kept.values():
            for buffer in buffers:
                buffer[destination * S :][:S].copy_(buffer[source * S :][:S])

    @property
    def bytes_per_row(self) -> int:
        """Bytes of one row's states in all layers and slots; 0 before the first forward."""
        kept = (buffer for buffers in self._kept.values() for buffer in buffers)
        return self.num_slots * sum(buffer[0].nbytes for buffer in kept)
