"""Builds the drafts of a round from a drafter's logits: a chain, or a tree level by level.

Shape suffixes: B rows, K drafts, N = K + 1 nodes, W nodes of one level, R children of a node,
V vocabulary.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from specbench.decode.drafter import Proposal
from specbench.decode.sampling import Purpose, Sampler, exponential
from specbench.decode.state import State
from specbench.forward.tree import Branches, StaticTree, Tree, ancestors_of

_STEP_DOWN = 1e-4  # of log probability per level: parents rank before children that are certain
_LOWEST = -500.0  # scores are clamped here: at lower ones, float32 would round the step away


class Frontier(NamedTuple):
    """Nodes of one level, for which the draft predicts the next tokens."""

    tokens_BW: Tensor
    parents_BW: Tensor  # the index of each node's parent in the previous frontier
    positions_BW: Tensor
    branches: Branches


Feed = Callable[[Frontier], Tensor]  # the draft's logits [B, W, V] for the token after each node
Follow = Callable[[Tensor, Tensor], Tensor]  # tokens and positions [B, 1] -> logits [B, 1, V]


def grow_chain(
    state: State,
    logits_BV: Tensor,
    follow: Follow,
    k: int,
    sampler: Sampler,
    p_min: float,
) -> Proposal:
    """K drafts, one after the other; above temperature 0 sampled from the draft's distribution.

    A row ends before the first draft whose likeliest token has less than `p_min`. On a CPU the
    drafter stops when all rows have ended; a GPU runs all K forwards, and only verifies fewer.
    """
    next_BK = state.positions(1, k)
    logits_B1V = logits_BV[:, None]
    drafts: list[Tensor] = []
    probs: list[Tensor] = []
    sure: list[Tensor] = []
    for i in range(k):
        positions_B1 = next_BK[:, i : i + 1]
        probs_B1V = None if sampler.is_greedy else sampler.probs(logits_B1V)
        if p_min:
            sure.append(_are_sure(logits_B1V, probs_B1V, p_min))
            if drafts and sure[0].device.type == "cpu" and not torch.cat(sure, 1).all(1).any():
                break
        if probs_B1V is None:
            tokens_B1 = logits_B1V.argmax(-1)
        else:
            probs.append(probs_B1V)
            tokens_B1 = sampler.guess(probs_B1V, state.seed_B, positions_B1)
        drafts.append(tokens_B1)
        if i + 1 < k:
            logits_B1V = follow(tokens_B1, positions_B1)
    tokens_BK = torch.cat(drafts, 1)
    num_drafted_B = _num_sure(state, tokens_BK, torch.cat(sure, 1) if sure else None)
    return Proposal(tokens_BK, num_drafted_B, torch.cat(probs, 1) if probs else None)


def grow_block(state: State, logits_BKV: Tensor, sampler: Sampler, p_min: float) -> Proposal:
    """K drafts from the logits of one forward, independent of each other, up to the first one
    whose likeliest token has less than `p_min`.

    Above temperature 0, each is sampled from the distribution at its position.
    """
    probs_BKV = None if sampler.is_greedy else sampler.probs(logits_BKV)
    sure_BK = _are_sure(logits_BKV, probs_BKV, p_min) if p_min else None
    if probs_BKV is None:
        tokens_BK = logits_BKV.argmax(-1)
    else:
        places_BK = state.positions(1, logits_BKV.shape[1])
        tokens_BK = sampler.guess(probs_BKV, state.seed_B, places_BK)
    return Proposal(tokens_BK, _num_sure(state, tokens_BK, sure_BK), probs_BKV)


def _are_sure(logits_BTV: Tensor, probs_BTV: Tensor | None, p_min: float) -> Tensor:
    """Whether the likeliest token of each distribution [B, T] has at least `p_min`.

    The token that is drawn must not decide: the output would lack the unlikely ones that are
    dropped, since the verifier assumes drafts from the whole distribution.
    """
    probs_BTV = logits_BTV.float().softmax(-1) if probs_BTV is None else probs_BTV
    return probs_BTV.amax(-1) >= p_min


def _num_sure(state: State, tokens_BK: Tensor, sure_BT: Tensor | None) -> Tensor:
    """The number [B] of drafts before the first unsure one; None: all are drafted."""
    if sure_BT is None:
        return torch.full_like(state.budget_B, tokens_BK.shape[1])
    return sure_BT.cumprod(1).sum(1)


def grow_static(
    tree: StaticTree, state: State, logits_BV: Tensor, feed: Feed, sampler: Sampler
) -> Proposal:
    """A tree of known shape; `logits_BV` are the draft's for the token after the current one.

    At temperature 0 a node's children are the likeliest tokens. Above it they are sampled from the
    draft's distribution without replacement, and the proposal contains the distribution. Children
    of a topology with gaps cannot be sampled, so they are always the likeliest tokens.
    """
    B = state.num_rows
    whole = tree.of_rows(B)
    positions_BN = state.length_B1 + whole.depths_BN
    is_drawn = not sampler.is_greedy and tree.topology.is_gapless
    logits_BWV, tokens = logits_BV[:, None], []
    drawn: list[Tensor] = []
    for depth, level in enumerate(tree.levels, 1):
        places_B1 = state.positions(depth, 1)
        if is_drawn:
            probs_BWV = sampler.probs(logits_BWV)
            drawn.append(probs_BWV)
            noise_B1V = exponential(state.seed_B, places_B1, Purpose.DRAFT, probs_BWV.shape[2])
            logits_BWV = probs_BWV / noise_B1V
        best_BWR = logits_BWV.topk(level.num_ranks, dim=-1).indices
        tokens_BW = best_BWR[:, level.parents_W, level.ranks_W]
        tokens.append(tokens_BW)
        if depth == len(tree.levels):
            break
        nodes_I = level.inner_nodes_I
        frontier = Frontier(
            tokens_BW=tokens_BW[:, level.inner_I],
            parents_BW=level.parents_W[level.inner_I].expand(B, -1),
            positions_BW=places_B1.expand(-1, len(nodes_I)),
            branches=Branches(
                base_B1=state.length_B1,
                slots_BT=state.length_B1 + nodes_I,
                seen_BTM=whole.seen_BNN[:, nodes_I],
                positions_BM=positions_BN,
            ),
        )
        logits_BWV = feed(frontier)
    tokens_BK = torch.cat(tokens, 1)
    num_drafted_B = torch.full_like(state.budget_B, tokens_BK.shape[1])
    probs_BIV = torch.cat(drawn, 1).index_select(1, tree.order_I) if is_drawn else None
    return Proposal(tokens_BK, num_drafted_B, probs_BIV, whole)


def grow_dynamic(
    state: State, logits_BV: Tensor, feed: Feed, *, depth: int, top_k: int, num_drafts: int
) -> Proposal:
    """A tree of the `num_drafts` likeliest nodes that a beam of `top_k` tokens per level finds.

    Source: Li et al. 2024, EAGLE-2 (arXiv:2406.16858), sections 4.1 and 4.2.
    """
    B, device = state.num_rows, logits_BV.device
    logprobs_BV = logits_BV.float().log_softmax(-1)
    best = logprobs_BV.topk(top_k, dim=-1)
    scores, tokens = [_ranked(best.values, 1)], [best.indices]
    # The index of each candidate's parent among all candidates; -1 is the current token.
    above = [torch.full_like(best.indices, -1)]
    places_W = torch.arange(top_k, device=device)
    scores_BW, tokens_BW, chosen_BW = best.values, best.indices, places_W.expand(B, -1)
    parents_BW = torch.zeros_like(tokens_BW)
    num_seen = 1 + top_k * (depth - 1)
    seen_BWM = torch.zeros(B, top_k, num_seen, dtype=torch.bool, device=device)
    seen_BWM[..., 0].fill_(True)
    depths_M = (torch.arange(num_seen, device=device) + top_k - 1) // top_k
    for level in range(1, depth):
        slots_W = 1 + (level - 1) * top_k + places_W
        seen_BWM = seen_BWM.gather(1, parents_BW[..., None].expand(-1, -1, num_seen))
        seen_BWM = seen_BWM | (torch.arange(num_seen, device=device) == slots_W[:, None])
        frontier = Frontier(
            tokens_BW=tokens_BW,
            parents_BW=parents_BW,
            positions_BW=state.positions(level, 1).expand(-1, top_k),
            branches=Branches(
                base_B1=state.length_B1,
                slots_BT=state.length_B1 + slots_W,
                seen_BTM=seen_BWM,
                positions_BM=state.length_B1 + depths_M,
            ),
        )
        children = feed(frontier).float().log_softmax(-1).topk(top_k, dim=-1)
        sums_BC = (scores_BW[..., None] + children.values).flatten(1)
        begin = sum(part.shape[1] for part in tokens)
        scores.append(_ranked(sums_BC, level + 1))
        tokens.append(children.indices.flatten(1))
        above.append(chosen_BW.repeat_interleave(top_k, 1))
        kept = sums_BC.topk(top_k, dim=-1)
        scores_BW, tokens_BW = kept.values, tokens[-1].gather(1, kept.indices)
        parents_BW, chosen_BW = kept.indices // top_k, kept.indices + begin
    tokens_BC, above_BC = torch.cat(tokens, 1), torch.cat(above, 1)
    taken_BK = torch.cat(scores, 1).topk(num_drafts, dim=-1).indices.sort(-1).values
    above_BK = above_BC.gather(1, taken_BK)
    # A parent scores higher than its children, so it was also taken.
    parents_BK = torch.where(above_BK < 0, 0, torch.searchsorted(taken_BK, above_BK) + 1)
    seen_BNN, depths_BN = ancestors_of(parents_BK, depth)
    tree = Tree(
        parents_BK, depths_BN, seen_BNN, torch.ones_like(parents_BK, dtype=torch.bool), depth
    )
    num_drafted_B = torch.full_like(state.budget_B, num_drafts)
    return Proposal(tokens_BC.gather(1, taken_BK), num_drafted_B, None, tree)


def _ranked(logprobs: Tensor, depth: int) -> Tensor:
    return logprobs.clamp(min=_LOWEST) - _STEP_DOWN * depth
