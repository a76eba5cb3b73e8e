"""The device state of a set of rows: static tensors that a round reads and writes in place.

Shape suffixes: B rows, C capacity of a row in tokens, R rounds logged, E end-of-text ids.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """Rows in flight. Token `length` of a row is its current one: emitted, not yet in the KV.

    tokens_BC holds prompt and output by position; entries past `length` are garbage.
    log_RB3 holds (num_drafted, num_accepted, num_emitted) a round; a finished row logs 0s.
    """

    tokens_BC: Tensor
    length_B: Tensor  # tokens whose keys and values are committed
    budget_B: Tensor  # tokens that may still be emitted
    done_B: Tensor
    seed_B: Tensor
    eos_E: Tensor
    log_RB3: Tensor
    round_1: Tensor  # rounds logged so far

    @classmethod
    def allocate(
        cls, num_rows: int, capacity: int, num_rounds: int, eos_ids: list[int], device: torch.device
    ) -> Self:
        """State for rows of up to `capacity` tokens, drafts past the budget included."""

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=torch.long, device=device)

        return cls(
            tokens_BC=zeros(num_rows, capacity),
            length_B=zeros(num_rows),
            budget_B=zeros(num_rows),
            done_B=torch.ones(num_rows, dtype=torch.bool, device=device),
            seed_B=zeros(num_rows),
            eos_E=torch.tensor(eos_ids, dtype=torch.long, device=device),
            log_RB3=zeros(num_rounds, num_rows, 3),
            round_1=zeros(1),
        )

    @property
    def current_B(self) -> Tensor:
        """The newest token of every row."""
        return self.tokens_BC.gather(1, self.length_B[:, None])[:, 0]

    def window(self, first: int, num_tokens: int) -> tuple[Tensor, Tensor]:
        """Positions [B, num_tokens] from length + first on, and the tokens there."""
        offsets = torch.arange(first, first + num_tokens, device=self.length_B.device)
        positions = (self.length_B[:, None] + offsets).clamp(min=0)
        return positions, self.tokens_BC.gather(1, positions)
