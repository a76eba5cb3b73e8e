"""Several heads over the target's last hidden state, each guessing one token further ahead.

Shape suffixes: B rows, R rows that there is room for, F hidden size, H heads, V the heads'
vocabulary, K drafts, W the likeliest tokens of a head.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from specbench.decode.drafter import (
    Footprint,
    Outcome,
    OwnForward,
    PlainDrafter,
    Proposal,
    Traits,
)
from specbench.decode.head_part import HeadPart
from specbench.decode.sampling import Sampler
from specbench.decode.state import State
from specbench.decode.topology import StaticTrees
from specbench.drafters.heads.medusa import MedusaHeads
from specbench.drafters.registry import Parts, drafter
from specbench.drafting.medusa import NEW_HEADS, MedusaTree
from specbench.files.medusa import medusa_fields
from specbench.models.checkpoint import Checkpoint


@drafter("medusa")
class Medusa(PlainDrafter):
    """Drafts with Medusa's heads, all from one state.

    They see the target's state, after its final norm, at the last token of its cache; the
    current token follows that one, and head i guesses the i-th after it, counted from 0. Heads
    do not know of each other's guesses, so a tree's level offers every parent the same tokens.
    Guesses are matched with the target's own tokens; the paper's typical acceptance is
    `lossy: typical`.
    """

    def __init__(self, parts: Parts, *, tree: str, max_drafts: int) -> None:
        target, checkpoint = parts.target, parts.checkpoint()
        self.heads = MedusaHeads(checkpoint, target)
        self._last_RF = torch.empty(0, target.hidden_size)
        own = MedusaTree.of(
            checkpoint, kind=tree, max_drafts=max_drafts, vocab_size=target.vocab_size
        )
        self.trees = None if tree == "chain" else StaticTrees(own.topology, target.device)
        self.traits = Traits(features=(target.num_layers,), max_k=own.depth, chains_nest=True)

    @property
    def buffers(self) -> tuple[Tensor, ...]:
        return (self._last_RF,)

    @cached_property
    def footprint(self) -> Footprint:
        return Footprint(
            weights=self.heads.weights, head_parts=self._head_parts(), forwards=self._forwards
        )

    def _head_parts(self) -> Mapping[str, HeadPart]:
        """The first heads over one state; later ones are neither run nor read."""
        heads = self.heads
        state_1F = heads.weights[0].new_zeros(1, self._last_RF.shape[1])

        def part(num_heads: int) -> HeadPart:
            def run(tokens_1T: Tensor, positions_1T: Tensor, span: int) -> Tensor:  # noqa: ARG001
                return heads.logits(state_1F, num_heads)

            return HeadPart(run=run, weights=heads.reads(num_heads))

        return {self._first(n): part(n) for n in range(1, heads.num_heads + 1)}

    def _forwards(self, k: int) -> tuple[OwnForward, ...]:
        num_heads = k if self.trees is None else len(self.trees[k].levels)
        return (OwnForward(1, 1, self._first(num_heads)),)

    def _first(self, num_heads: int) -> str:
        return f"{num_heads} of {self.heads.num_heads} heads"

    def allocate(self, num_rows: int, max_len: int) -> None:  # noqa: ARG002
        have, F = self._last_RF.shape
        if num_rows > have:
            heads = self.heads
            self._last_RF = torch.zeros(num_rows, F, dtype=heads.dtype, device=heads.device)

    def num_drafts(self, k: int) -> int:
        return k if self.trees is None else self.trees[k].topology.num_drafts

    def observe(self, state: State, outcome: Outcome) -> None:
        """Keep the state at the last token of the accepted path: the current one comes after it."""
        outcome.keep_last(outcome.features[0], state.rows_of(self._last_RF))

    def propose(self, state: State, k: int, span: int, sampler: Sampler) -> Proposal:  # noqa: ARG002
        """The heads' likeliest tokens at any temperature: guesses without a distribution."""
        tree = None if self.trees is None else self.trees[k]
        num_heads = len(tree.levels) if tree else k
        logits_HBV = self.heads.logits(state.rows_of(self._last_RF), num_heads)
        if tree is None:
            tokens_BK = self.heads.target_ids(logits_HBV.argmax(-1).T)
            return Proposal(tokens_BK, torch.full_like(state.budget_B, k))
        num_ranks = max(level.num_ranks for level in tree.levels)
        best_HBW = logits_HBV.topk(num_ranks, dim=-1).indices
        levels = zip(best_HBW, tree.levels, strict=True)
        tokens_BK = torch.cat([best_BW[:, level.ranks_W] for best_BW, level in levels], 1)
        num_drafted_B = torch.full_like(state.budget_B, tokens_BK.shape[1])
        tokens_BK = self.heads.target_ids(tokens_BK)
        return Proposal(tokens_BK, num_drafted_B, None, tree.of_rows(state.num_rows))

    @staticmethod
    def new_checkpoint(
        config: Any, seed: int, *, num_heads: int = NEW_HEADS, num_layers: int = 1
    ) -> Checkpoint:
        """Heads of random weights for a target of that config, named as Medusa's authors do."""
        text, generator = config.get_text_config(), torch.Generator().manual_seed(seed)
        F, V = text.hidden_size, text.vocab_size

        def draw(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, device="cpu") / math.sqrt(F)

        tensors = {}
        for i in range(num_heads):
            for j in range(num_layers):
                tensors[f"{i}.{j}.linear.weight"] = draw(F, F)
                tensors[f"{i}.{j}.linear.bias"] = draw(F)
            tensors[f"{i}.{num_layers}.weight"] = draw(V, F)
        bare = Checkpoint(source="new medusa heads", config={}, tensors=tensors)
        fields = {"architectures": ["MedusaModel"], **medusa_fields(bare)}
        return replace(bare, config=fields)
