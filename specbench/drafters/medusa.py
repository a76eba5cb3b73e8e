"""Medusa: heads over the target's last hidden state, each drafting one token further ahead.

The residual layers and output matrices of all heads run as batched matrix products.
Shape suffixes: B rows, R allocated rows, F hidden size, H heads, V the heads' vocabulary, K draft
tokens, W the likeliest tokens of a head.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu

from specbench.decode.drafter import (
    Capabilities,
    Drafter,
    DrafterForward,
    HeadPart,
    Outcome,
    Proposal,
    Resources,
)
from specbench.decode.sampling import Sampler
from specbench.decode.state import State
from specbench.drafters.registry import Parts, drafter
from specbench.drafters.shared.layers import fitting
from specbench.files.medusa import (
    NEW_HEADS,
    MedusaLayout,
    MedusaTree,
    medusa_fields,
    medusa_tensors,
    token_map,
)
from specbench.forward.runner import Runner
from specbench.forward.tree import StaticTrees
from specbench.models.checkpoint import Checkpoint


class MedusaHeads:
    """The weights of all heads, on the target's device and in its dtype.

    A head computes x + silu(W x + b), once or several times, then applies its output matrix.
    Source: Cai et al. 2024 (arXiv:2401.10774), section 2.1.1.
    """

    def __init__(self, checkpoint: Checkpoint, target: Runner) -> None:
        """The tensors determine the numbers of heads and layers; configs may state others.

        ModelError names tensors that are missing, unknown or of a shape that does not fit.
        """
        checkpoint = medusa_tensors(fitting(checkpoint, target, "medusa"))
        tensors = checkpoint.tensors
        ids = token_map(checkpoint, target.vocab_size)
        layout = MedusaLayout.of(checkpoint, target)
        self.num_heads = layout.num_heads
        shapes = layout.shapes

        def stacked(names: list[str]) -> Tensor:
            shape = (len(names), *shapes[names[0]])
            stack = torch.zeros(shape, dtype=target.dtype, device=target.device)
            for i, name in enumerate(names):
                if name in tensors:
                    stack[i].copy_(tensors[name])
            return stack

        self._layers = [
            (stacked(of_weights).transpose(1, 2), stacked(of_biases)[:, None])
            for of_weights, of_biases in zip(layout.weights, layout.biases, strict=True)
        ]
        self._out_HFV = stacked(layout.outs).transpose(1, 2)
        self._token_map_V = None if ids is None else torch.tensor(ids, device=target.device)
        self.vocab_size = layout.num_tokens
        self.device, self.dtype = target.device, target.dtype

    @property
    def weights(self) -> tuple[Tensor, ...]:
        return (self._out_HFV, *(tensor for layer in self._layers for tensor in layer))

    def reads(self, num_heads: int) -> tuple[Tensor, ...]:
        """Tensors that `logits` reads for `num_heads` heads."""
        return tuple(tensor[:num_heads] for tensor in self.weights)

    def logits(self, states_BF: Tensor, num_heads: int) -> Tensor:
        """Logits of the first `num_heads` heads over the heads' vocabulary [H, B, V]."""
        x_HBF = states_BF.expand(num_heads, -1, -1)
        for weight_HFF, bias_H1F in self._layers:
            inner_HBF = torch.baddbmm(bias_H1F[:num_heads], x_HBF, weight_HFF[:num_heads])
            x_HBF = x_HBF + silu(inner_HBF)
        if len(self._out_HFV) == 1:
            return x_HBF @ self._out_HFV[0]
        return torch.bmm(x_HBF, self._out_HFV[:num_heads])

    def target_ids(self, tokens: Tensor) -> Tensor:
        """The target's ids of tokens of the heads' vocabulary."""
        return tokens if self._token_map_V is None else self._token_map_V[tokens]


@drafter("medusa")
class Medusa(Drafter):
    """Drafts with Medusa's heads, which all read the same state of the target.

    It is the state after the final norm, at the last token before the current one. Head i, counted
    from 0, guesses the token that is i + 1 positions after the current one. The heads are
    independent, so all parents in a level of a tree get the same tokens. Draft tokens are compared
    with the target's own; the paper's typical acceptance is `lossy: typical`.
    """

    def __init__(self, parts: Parts, *, tree: str, max_drafts: int) -> None:
        target, checkpoint = parts.target, parts.checkpoint()
        self.heads = MedusaHeads(checkpoint, target)
        self._last_RF = torch.empty(0, target.hidden_size)
        medusa_tree = MedusaTree.of(
            checkpoint, kind=tree, max_drafts=max_drafts, vocab_size=target.vocab_size
        )
        self.trees = None if tree == "chain" else StaticTrees(medusa_tree.topology, target.device)
        self.capabilities = Capabilities(
            features=(target.num_layers,), max_k=medusa_tree.depth, chains_nest=True
        )

    @property
    def buffers(self) -> tuple[Tensor, ...]:
        return (self._last_RF,)

    @cached_property
    def resources(self) -> Resources:
        return Resources(
            weights=self.heads.weights, head_parts=self._head_parts(), forwards=self._forwards
        )

    def _head_parts(self) -> Mapping[str, HeadPart]:
        """One part for every n: the first n heads over one state. Other heads are not read."""
        heads = self.heads
        state_1F = heads.weights[0].new_zeros(1, self._last_RF.shape[1])

        def part(num_heads: int) -> HeadPart:
            def run(tokens_1T: Tensor, positions_1T: Tensor, span: int) -> Tensor:  # noqa: ARG001
                return heads.logits(state_1F, num_heads)

            return HeadPart(run=run, weights=heads.reads(num_heads))

        return {self._first(n): part(n) for n in range(1, heads.num_heads + 1)}

    def _forwards(self, k: int) -> tuple[DrafterForward, ...]:
        num_heads = k if self.trees is None else len(self.trees[k].levels)
        return (DrafterForward(1, self._first(num_heads)),)

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
        """Store the state at the last token of the accepted path, before the current token."""
        outcome.keep_last(outcome.features[0], state.rows_of(self._last_RF))

    def propose(self, state: State, k: int, span: int, sampler: Sampler) -> Proposal:  # noqa: ARG002
        """Draft the heads' likeliest tokens at any temperature, without probabilities."""
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
        """Heads with random weights for a target with this config, named as in Medusa's files."""
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
