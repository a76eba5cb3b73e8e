"""The device state of a set of rows: static tensors that a round reads and writes in place.

Shape suffixes: B rows, C capacity of a row in tokens, E end-of-text ids, O offsets.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

# Positions to either side of the current token that have a ready offset: those of a round, and
# of a piece of an expected answer that is checked at once.
FURTHEST = 512


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """Rows being decoded. Token `length` of a row is its current one: emitted, not yet in KV.

    tokens_BC holds prompt and output by position; entries past `length` are garbage. A row
    with no budget left is done: rounds leave it as it is.
    """

    tokens_BC: Tensor
    length_B1: Tensor  # tokens whose keys and values are committed, at least 1
    budget_B: Tensor  # tokens that may still be emitted; an end of text takes what is left
    seed_B: Tensor
    eos_E: Tensor
    offsets_O: Tensor  # made once: a round does not spend an operation on counting
    first_row: int = 0  # the index of the first of these rows among all rows

    @classmethod
    def allocate(
        cls, num_rows: int, capacity: int, eos_ids: list[int], device: torch.device
    ) -> Self:
        """Finished rows of up to `capacity` tokens, drafts past the budget included."""

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=torch.long, device=device)

        return cls(
            tokens_BC=zeros(num_rows, capacity),
            length_B1=zeros(num_rows, 1) + 1,
            budget_B=zeros(num_rows),
            seed_B=zeros(num_rows),
            eos_E=torch.tensor(eos_ids, dtype=torch.long, device=device),
            offsets_O=torch.arange(-FURTHEST, FURTHEST + 1, device=device),
        )

    @property
    def num_rows(self) -> int:
        return len(self.budget_B)

    @property
    def capacity(self) -> int:
        return self.tokens_BC.shape[1]

    @property
    def length_B(self) -> Tensor:
        return self.length_B1[:, 0]

    def rows(self, first: int, count: int) -> Self:
        """A range of the rows, sharing these tensors."""
        chosen = slice(first, first + count)
        return type(self)(
            tokens_BC=self.tokens_BC[chosen],
            length_B1=self.length_B1[chosen],
            budget_B=self.budget_B[chosen],
            seed_B=self.seed_B[chosen],
            eos_E=self.eos_E,
            offsets_O=self.offsets_O,
            first_row=self.first_row + first,
        )

    def rows_of(self, buffer: Tensor) -> Tensor:
        """These rows of a tensor that has an entry for every row."""
        return buffer[self.first_row : self.first_row + self.num_rows]

    def move_row(self, source: int, destination: int) -> None:
        """Give one row's work to another; the source is done."""
        for tensor in (self.tokens_BC, self.length_B1, self.budget_B, self.seed_B):
            tensor[destination].copy_(tensor[source])
        self.budget_B[source].zero_()

    def positions(self, first: int, count: int) -> Tensor:
        """Positions [B, count] from length + first on; first >= -1 for they are not clipped."""
        begin = first + FURTHEST
        if not 0 <= begin <= begin + count <= len(self.offsets_O):
            raise ValueError(f"offsets {first} .. {first + count - 1} go beyond {FURTHEST}")
        return self.length_B1 + self.offsets_O[begin : begin + count]

    def places(self, count: int) -> Tensor:
        """0 .. count - 1."""
        return self.offsets_O[FURTHEST : FURTHEST + count]

    def tokens_at(self, positions_BT: Tensor) -> Tensor:
        """The tokens at those positions [B, T]."""
        return self.tokens_BC.gather(1, positions_BT)

    def last(self, num_tokens: int) -> tuple[Tensor, Tensor]:
        """Positions [B, num_tokens] up to length - 1, clipped at 0, and the tokens there."""
        offsets_T = torch.arange(-num_tokens, 0, device=self.budget_B.device)
        positions_BT = (self.length_B1 + offsets_T).clamp(min=0)
        return positions_BT, self.tokens_at(positions_BT)
