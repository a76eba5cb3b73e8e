"""A small model with the same vocabulary drafts the next tokens as a chain or a tree.

Shape suffixes: B rows, T tokens.
"""

from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from specbench.decode.drafter import Chunk, Outcome, Resources, RowBuffer
from specbench.decode.state import State
from specbench.drafters.registry import Parts, drafter
from specbench.drafters.shared.model_drafter import ModelDrafter


@drafter("draft_model")
class DraftModel(ModelDrafter):
    """Drafts with the draft model's own KV cache, which follows the committed text."""

    def __init__(self, parts: Parts, *, tree: tuple[int, ...]) -> None:
        # The token before the current one is fed again: if every draft was accepted, the draft
        # model has not read it yet; else it costs nothing.
        super().__init__(parts.draft_runner(), parts.target, tree, num_fed=2)

    @cached_property
    def resources(self) -> Resources:
        return replace(super().resources, cached_layers=self.runner)

    @property
    def buffers(self) -> tuple[RowBuffer, ...]:
        return (self.runner.cache,)

    def allocate(self, num_rows: int, max_len: int) -> None:
        self.runner.allocate(num_rows, max_len)

    def prefill(self, state: State, chunk: Chunk) -> None:
        self._see(chunk.tokens_BT, chunk.positions_BT, chunk.span, state.first_row, chunk.start)

    def catch_up(self, state: State, num_tokens: int, span: int) -> None:
        positions_BT, tokens_BT = state.last(num_tokens)
        self._see(tokens_BT, positions_BT, span, state.first_row)

    def observe(self, state: State, outcome: Outcome) -> None:
        """Move a tree's accepted path to its positions, as in the target's cache.

        Slots of rejected drafts are overwritten before they are read.
        """
        if outcome.path_BT is not None:
            positions_BT = outcome.positions_BT
            sources_BT = positions_BT[:, :1] + outcome.path_BT[:, 1:]
            self.runner.move_slots(sources_BT, positions_BT[:, 1:], state.first_row)

    def _see(
        self,
        tokens_BT: Tensor,
        positions_BT: Tensor,
        span: int,
        first_row: int,
        start: int | None = None,
    ) -> None:
        last_1 = torch.full_like(tokens_BT[0, :1], tokens_BT.shape[1] - 1)
        self.runner.forward(
            self._known(tokens_BT),
            positions_BT,
            span,
            first_row=first_row,
            last_B=last_1,
            start=start,
        )
