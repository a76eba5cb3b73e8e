"""The common part of EAGLE and similar methods, whose heads read the target's hidden states.

The head's input at position t is the token at t + 1 and the state at t: the target's state if it is
known, else the head's own estimate. Shape suffixes: B rows, T tokens, W nodes of a level, F the
head's state size, V the target's vocabulary.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from specbench.decode.drafter import (
    Capabilities,
    Chunk,
    Drafter,
    DrafterForward,
    HeadPart,
    Outcome,
    Proposal,
    Resources,
    RowBuffer,
)
from specbench.decode.growth import (
    Frontier,
    grow_chain,
    grow_dynamic,
    grow_static,
)
from specbench.decode.sampling import Sampler
from specbench.decode.state import State
from specbench.footprint import DEEPEST_BEAM, num_dynamic_drafts, num_dynamic_slots
from specbench.forward.layer_stack import LayerStack
from specbench.forward.tree import Branches, StaticTrees
from specbench.methods import feature_depth
from specbench.topology import Topology


class Reads(NamedTuple):
    """The weights that each function of a head reads, including the target's but no embeddings."""

    fuse: tuple[Tensor, ...]
    step: tuple[Tensor, ...]
    logits: tuple[Tensor, ...]


class FeatureHead(Protocol):
    """The model code of a head."""

    features: tuple[int, ...]  # layers of the target whose states it fuses
    feature_size: int
    state_size: int
    num_tokens: int  # tokens that it can draft
    device: torch.device
    dtype: torch.dtype
    layers: LayerStack

    @property
    def weights(self) -> tuple[Tensor, ...]:
        """The head's own weights, without those that it shares with the target."""
        ...

    def reads(self, depth: int = 0) -> Reads:
        """The weights that `fuse`, a step at this depth and `logits` read."""
        ...

    def fuse(self, features: tuple[Tensor, ...]) -> Tensor:
        """The head's input states [B, T, F], made from the target's hidden states."""
        ...

    def step(
        self,
        tokens_BT: Tensor,
        states_BTF: Tensor,
        positions_BT: Tensor,
        span: int,
        *,
        first_row: int = 0,
        branches: Branches | None = None,
        depth: int = 0,
    ) -> Tensor:
        """The head's estimate of the next position's state [B, T, F].

        `tokens_BT` are the tokens after each state; `depth` is 0 if the states are the target's.
        """
        ...

    def logits(self, states_BTF: Tensor, depth: int = 0) -> Tensor:
        """Logits over the target's vocabulary [B, T, V]; -inf for tokens that it cannot draft."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class TreePlan:
    """How drafts branch: not at all, by a fixed topology, or by the head's scores."""

    kind: str = "chain"  # or static, dynamic
    topology: Topology | None = None  # of a static tree at its full depth
    top_k: int = 10  # of a dynamic tree: the width of the beam
    max_drafts: int = 59  # of a dynamic tree

    def num_drafts(self, k: int) -> int:
        """The number of draft tokens in a dynamic tree of depth k."""
        return num_dynamic_drafts(k, self.top_k, self.max_drafts)

    def spare_slots(self, k: int) -> int:
        """Slots that a beam needs in addition to those of the drafts chosen from it."""
        if self.kind != "dynamic":
            return 0
        return max(num_dynamic_slots(k, self.top_k) - self.num_drafts(k), 0)


class FeatureDrafter(Drafter):
    """Stores the head's last state of each row, so that the first draft token needs no step."""

    def __init__(self, head: FeatureHead, plan: TreePlan) -> None:
        self.head = head
        self._plan = plan = replace(plan, top_k=min(plan.top_k, head.num_tokens))
        if plan.kind == "static" and plan.topology is not None:
            self._trees = StaticTrees(plan.topology.cut, head.device)
        max_k = feature_depth(plan.kind)
        self.capabilities = Capabilities(features=head.features, max_k=max_k, chains_nest=True)
        self._spare_slots = max(plan.spare_slots(k) for k in range(1, DEEPEST_BEAM + 1))
        self._last_RF = torch.empty(0, head.state_size)

    @cached_property
    def resources(self) -> Resources:
        return Resources(
            cached_layers=self.head.layers,
            weights=self.head.weights,
            spare_slots=self._spare_slots,
            head_parts=self._head_parts(),
            forwards=self._forwards,
        )

    @property
    def buffers(self) -> tuple[RowBuffer, ...]:
        return (self.head.layers.cache, self._last_RF)

    def _head_parts(self) -> Mapping[str, HeadPart]:
        """`observe` returns logits after the last token only, `draft` after every token."""
        head, reads = self.head, self.head.reads()
        features = blank_states(head, *[head.feature_size] * len(head.features))
        (state_11F,) = blank_states(head, head.state_size)

        def observe(tokens_1T: Tensor, positions_1T: Tensor, span: int) -> Tensor:
            fused_1TF = head.fuse(tuple(x.expand(-1, tokens_1T.shape[1], -1) for x in features))
            states_1TF = head.step(tokens_1T, fused_1TF, positions_1T, span)
            return head.logits(states_1TF[:, -1:])

        def draft(tokens_1T: Tensor, positions_1T: Tensor, span: int) -> Tensor:
            states_1TF = state_11F.expand(-1, tokens_1T.shape[1], -1)
            return head.logits(head.step(tokens_1T, states_1TF, positions_1T, span))

        layers, num_attending = head.layers, len(head.layers.layers)
        of_draft = (*reads.step, *reads.logits)
        return {
            name: HeadPart(run=run, weights=weights, layers=layers, num_attending=num_attending)
            for name, run, weights in (
                ("observe", observe, (*reads.fuse, *of_draft)),
                ("draft", draft, of_draft),
            )
        }

    def _forwards(self, k: int) -> tuple[DrafterForward, ...]:
        plan = self._plan
        widths: tuple[int, ...] = (plan.top_k if plan.kind == "dynamic" else 1,) * (k - 1)
        if plan.kind == "static":
            widths = self._trees[k].topology.inner_widths
        drafts = (DrafterForward(width, "draft") for width in widths)
        return (DrafterForward(k + 1, "observe"), *drafts)

    def allocate(self, num_rows: int, max_len: int) -> None:
        self.head.layers.allocate(num_rows, max_len + self._spare_slots)
        if num_rows > len(self._last_RF):
            self._last_RF = torch.zeros(
                num_rows, self.head.state_size, dtype=self.head.dtype, device=self.head.device
            )

    def num_drafts(self, k: int) -> int:
        if self._plan.kind == "static":
            return self._trees[k].topology.num_drafts
        if self._plan.kind == "dynamic":
            return self._plan.num_drafts(min(k, DEEPEST_BEAM))
        return k

    def prefill(self, state: State, chunk: Chunk) -> None:
        self.head.step(
            chunk.following_BT,
            self.head.fuse(chunk.features),
            chunk.positions_BT,
            chunk.span,
            first_row=state.first_row,
        )

    def observe(self, state: State, outcome: Outcome) -> None:
        """Feed the accepted tokens again, with the target's states instead of the head's."""
        states_BTF = self.head.step(
            outcome.following_BT,
            self.head.fuse(outcome.features),
            outcome.positions_BT,
            outcome.span,
            first_row=state.first_row,
        )
        outcome.keep_last(states_BTF, state.rows_of(self._last_RF))

    def propose(self, state: State, k: int, span: int, sampler: Sampler) -> Proposal:
        head, plan = self.head, self._plan
        if plan.kind == "dynamic":
            k = min(k, DEEPEST_BEAM)
            span += plan.spare_slots(k)
        states_BWF = state.rows_of(self._last_RF)[:, None]
        logits_BV = head.logits(states_BWF)[:, 0]
        depth = 0

        def step(tokens_BW: Tensor, places_BW: Tensor, branches: Branches | None) -> Tensor:
            nonlocal states_BWF, depth
            depth += 1
            states_BWF = head.step(
                tokens_BW,
                states_BWF,
                places_BW,
                span,
                first_row=state.first_row,
                branches=branches,
                depth=depth,
            )
            return head.logits(states_BWF)

        def follow(tokens_B1: Tensor, positions_B1: Tensor) -> Tensor:
            return step(tokens_B1, positions_B1 - 1, None)

        def feed(nodes: Frontier) -> Tensor:
            nonlocal states_BWF
            index_BWF = nodes.parents_BW[..., None].expand(-1, -1, head.state_size)
            states_BWF = states_BWF.gather(1, index_BWF)
            return step(nodes.tokens_BW, nodes.positions_BW - 1, _one_back(nodes.branches))

        if plan.kind == "static":
            return grow_static(self._trees[k], state, logits_BV, feed, sampler)
        if plan.kind == "dynamic":
            return grow_dynamic(
                state, logits_BV, feed, depth=k, top_k=plan.top_k, num_drafts=plan.num_drafts(k)
            )
        return grow_chain(state, logits_BV, follow, k, sampler, self.p_min)


def blank_states(head: FeatureHead, *sizes: int) -> tuple[Tensor, ...]:
    """Zero states of one token [1, 1, F], one for each size F."""
    return tuple(torch.zeros(1, 1, F, dtype=head.dtype, device=head.device) for F in sizes)


def _one_back(branches: Branches) -> Branches:
    """The branches at the head's positions, one below the target's; committed node 0 is masked."""
    seen_BTM = branches.seen_BTM.clone()
    seen_BTM[..., 0].fill_(False)
    return branches._replace(seen_BTM=seen_BTM, positions_BM=branches.positions_BM - 1)
