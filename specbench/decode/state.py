"""The device state of a set of rows: static tensors that a round reads and writes in place.

Shape suffixes: B rows, C capacity of a row in tokens, E end-of-text ids, O offsets.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

# How far `offsets_O` reaches to either side of the current token: enough for a round, and for the
# part of a predicted output that one forward verifies.
FURTHEST = 512


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """Rows being decoded. The current token of a row is at `length`: emitted, not yet in its cache.

    `tokens_BC` has the prompt and output by position; entries past `length` are garbage. A row
    without remaining budget is done, and rounds do not change it.
    """

    tokens_BC: Tensor
    length_B1: Tensor  # tokens whose keys and values are committed, at least 1
    budget_B: Tensor  # tokens that may still be emitted; an end-of-text token sets it to 0
    seed_B: Tensor
    eos_E: Tensor
    offsets_O: Tensor  # made once, so that a round needs no `arange`
    first_row: int = 0  # the index of the first of these rows among all rows

    @classmethod
    def allocate(
        cls, num_rows: int, capacity: int, eos_ids: list[int], device: torch.device
    ) -> Self:
        """Finished rows of up to `capacity` tokens, including drafts past the budget."""

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
        """A range of the rows, as views of the same tensors."""
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
        """The entries of these rows in a tensor with an entry for every row."""
        return buffer[self.first_row : self.first_row + self.num_rows]

    def move_row(self, source: int, destination: int) -> None:
        """Move a request to another row; the source row is then done."""
        for tensor in (self.tokens_BC, self.length_B1, self.budget_B, self.seed_B):
            tensor[destination].copy_(tensor[source])
        self.budget_B[source].zero_()

    def positions(self, first: int, count: int) -> Tensor:
        """The `count` positions [B, count] that start at length + `first`.

        They are not clipped. ValueError if they are more than FURTHEST away from the length.
        """
        begin = first + FURTHEST
        if not 0 <= begin <= begin + count <= len(self.offsets_O):
            raise ValueError(f"offsets {first} .. {first + count - 1} go beyond {FURTHEST}")
        return self.length_B1 + self.offsets_O[begin : begin + count]

    def places(self, count: int) -> Tensor:
        """0 .. count - 1."""
        return self.offsets_O[FURTHEST : FURTHEST + count]

    def tokens_at(self, positions_BT: Tensor) -> Tensor:
        """The tokens [B, T] at these positions."""
        return self.tokens_BC.gather(1, positions_BT)

    def last(self, num_tokens: int) -> tuple[Tensor, Tensor]:
        """Positions [B, num_tokens] up to length - 1, clipped at 0, and the tokens there."""
        offsets_T = torch.arange(-num_tokens, 0, device=self.budget_B.device)
        positions_BT = (self.length_B1 + offsets_T).clamp(min=0)
        return positions_BT, self.tokens_at(positions_BT)
