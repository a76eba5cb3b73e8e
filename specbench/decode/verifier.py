"""Accepts drafts so that the output has exactly the target's distribution.

Shape suffixes: B rows, K drafts, N = K + 1 nodes, T = depth + 1 tokens of a path (N in a
chain), I nodes with children, V vocabulary.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from specbench.decode.drafter import Proposal
from specbench.decode.sampling import Purpose, Sampler, draw, uniform
from specbench.forward.tree import Tree


class Verdict(NamedTuple):
    """The tokens of a round; the first num_accepted_B + 1 of each row are valid, the rest garbage.

    `path_BT` has the nodes of the tree that these tokens follow; None for a chain.
    """

    num_accepted_B: Tensor
    tokens_BT: Tensor
    path_BT: Tensor | None = None


def chain_verdict(
    num_accepted_B: Tensor, drafts_BK: Tensor, own_BT: Tensor, path_BT: Tensor | None = None
) -> Verdict:
    """The first `num_accepted_B` drafts of a path, followed by the target's own tokens."""
    places_T = torch.arange(own_BT.shape[1], device=own_BT.device)
    drafts_BT = torch.cat([drafts_BK, own_BT[:, -1:]], 1)
    tokens_BT = torch.where(places_T < num_accepted_B[:, None], drafts_BT, own_BT)
    return Verdict(num_accepted_B, tokens_BT, path_BT)


def path_verdict(proposal: Proposal, tree: Tree, leaf_B: Tensor, next_B1: Tensor) -> Verdict:
    """The drafts on the path of a tree to a node, followed by the target's own token."""
    num_accepted_B, path_BT = tree.depth_of(leaf_B), tree.path_to(leaf_B)
    # Node i + 1 is draft i.
    accepted_BT = proposal.tokens_BK.gather(1, (path_BT[:, 1:] - 1).clamp(min=0))
    tokens_BT = torch.cat([accepted_BT, next_B1], 1).scatter(1, num_accepted_B[:, None], next_B1)
    return Verdict(num_accepted_B, tokens_BT, path_BT)


def verify(
    proposal: Proposal, logits_BNV: Tensor, sampler: Sampler, seed_B: Tensor, positions_BN: Tensor
) -> Verdict:
    """Accept the longest path of drafts that leaves the target's distribution unchanged.

    `logits_BNV[:, i]` are the target's logits for the token after node i, and `positions_BN[:, i]`
    is that token's position. At temperature 0 distributions are one-hot, so greedy decoding needs
    no branch here.
    """
    tree, probs = proposal.tree, proposal.probs
    if probs is None:
        return accept_matching(proposal, sampler.pick(logits_BNV, seed_B, positions_BN))
    if tree is None:
        return _reject(proposal, probs, sampler.probs(logits_BNV), seed_B, positions_BN)
    return _reject_tree(proposal, tree, probs, logits_BNV, sampler, seed_B, positions_BN)


def accept_matching(proposal: Proposal, target_BN: Tensor) -> Verdict:
    """Accept the longest path of drafts that equals the target's token after each node.

    This is lossless for any drafts that do not depend on the target's noise: every emitted token
    is sampled from the target, given exactly the tokens emitted before it. Nodes of a tree at the
    same position share their noise, but only one of them can be on the path.
    """
    tree = proposal.tree
    if tree is None:
        equal_BK = proposal.tokens_BK == target_BN[:, :-1]
        return Verdict(_count_leading(equal_BK).minimum(proposal.num_drafted_B), target_BN)
    equal_BK = proposal.tokens_BK == target_BN.gather(1, tree.parents_BK)
    accepted_BK = equal_BK & tree.is_active_BK
    leaf_B = _deepest(torch.cat([torch.ones_like(accepted_BK[:, :1]), accepted_BK], 1), tree)
    path_BT = tree.path_to(leaf_B)
    return Verdict(tree.depth_of(leaf_B), target_BN.gather(1, path_BT), path_BT)


def _deepest(accepted_BN: Tensor, tree: Tree) -> Tensor:
    """The deepest node [B] that is accepted with all of its ancestors; the first of several."""
    return (tree.depths_BN * tree.reached(accepted_BN)).argmax(1)


def _reject(
    proposal: Proposal, draft_BKV: Tensor, target_BTV: Tensor, seed_B: Tensor, positions_BT: Tensor
) -> Verdict:
    """Accept a draft with probability min(1, p / q); replace the first rejected one by a sample of
    norm(max(p - q, 0)).

    Source: Leviathan et al. 2023 (arXiv:2211.17192), Algorithm 1; Chen et al. 2023
    (arXiv:2302.01318), Theorem 1.
    """
    drafts_BK = proposal.tokens_BK
    p_BK = target_BTV[:, :-1].gather(-1, drafts_BK[..., None])[..., 0]
    q_BK = draft_BKV.gather(-1, drafts_BK[..., None])[..., 0]
    chance_BK = uniform(seed_B, positions_BT[:, :-1], Purpose.ACCEPT)
    accepted_BK = (chance_BK * q_BK <= p_BK) & (p_BK > 0)
    num_accepted_B = _count_leading(accepted_BK).minimum(proposal.num_drafted_B)

    # If all drafts that the budget allows were accepted, the next token is sampled from p itself.
    at_B11 = num_accepted_B[:, None, None]
    q_BV = _gather_at(draft_BKV, at_B11.clamp(max=draft_BKV.shape[1] - 1))
    is_refused_B1 = (num_accepted_B < proposal.num_drafted_B)[:, None]
    left_BV = _residual(_gather_at(target_BTV, at_B11), q_BV, is_refused_B1)
    next_position_B1 = positions_BT.gather(1, num_accepted_B[:, None])
    next_B1 = draw(left_BV[:, None], seed_B, next_position_B1, Purpose.TARGET)
    tokens_BT = torch.cat([drafts_BK, next_B1], 1).scatter(1, num_accepted_B[:, None], next_B1)
    return Verdict(num_accepted_B, tokens_BT)


def _reject_tree(
    proposal: Proposal,
    tree: Tree,
    draft_BIV: Tensor,
    logits_BNV: Tensor,
    sampler: Sampler,
    seed_B: Tensor,
    positions_BN: Tensor,
) -> Verdict:
    """Recursive rejection: siblings are tested in order, each against the remaining distribution.

    After a rejection p becomes norm(max(p - q, 0)), and q loses the rejected token, since the next
    sibling was drawn without replacement. All families are tested in one pass, each sibling as if
    those before it had been rejected; the first one that passes is accepted. Source: Yang et al.
    2024 (arXiv:2402.14160); Chen et al. 2024, Sequoia (arXiv:2402.12374).
    """
    families = tree.families
    assert families is not None, "only trees of known shape are drawn"
    drafts_K, N = families.drafts_K, positions_BN.shape[1]
    tokens_BK, is_active_BK, parents_BK = (
        of_drafts_BK.index_select(1, drafts_K)
        for of_drafts_BK in (proposal.tokens_BK, tree.is_active_BK, tree.parents_BK)
    )
    target_BIV = sampler.probs(logits_BNV.index_select(1, families.parents_I))
    p_BK, q_BK, left_BIV = _in_turn(families.widths, tokens_BK, is_active_BK, target_BIV, draft_BIV)
    places_BK = positions_BN.gather(1, parents_BK)
    chance_BK = uniform(seed_B, places_BK, Purpose.ACCEPT, turns_T=drafts_K)
    passes_BK = is_active_BK & (q_BK > 0) & (chance_BK * q_BK <= p_BK) & (p_BK > 0)
    none_BN = torch.full_like(positions_BN, N)
    node_BK = torch.where(passes_BK, drafts_K + 1, none_BN[:, 1:])
    first_BN = none_BN.scatter_reduce(1, parents_BK, node_BK, "amin")
    accepted_BN = passes_BK.new_zeros(len(first_BN), N + 1).scatter(1, first_BN, True)[:, :N]
    accepted_BN[:, 0].fill_(True)
    leaf_B = _deepest(accepted_BN, tree)

    leaf_B1, place_B1 = leaf_B[:, None], families.places_N[leaf_B][:, None]
    own_BV = sampler.probs(_gather_at(logits_BNV, leaf_B1[..., None]))
    refused_BV = _gather_at(left_BIV, place_B1.clamp(min=0)[..., None])
    p_BV = torch.where(place_B1 < 0, own_BV, refused_BV)
    next_B1 = draw(p_BV[:, None], seed_B, positions_BN.gather(1, leaf_B1), Purpose.TARGET)
    return path_verdict(proposal, tree, leaf_B, next_B1)


def _in_turn(
    widths: list[int], tokens_BK: Tensor, is_active_BK: Tensor, p_BIV: Tensor, q_BIV: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """p and q [B, K] of each draft after the siblings before it were rejected, and the p [B, I, V]
    that remain after all were. `widths` has the number of parents by rank of the child."""
    p_of_drafts, q_of_drafts, left = [], [], []
    by_rank = zip(
        torch.split(tokens_BK[..., None], widths, 1),
        torch.split(is_active_BK[..., None], widths, 1),
        (*widths[1:], 0),
        strict=True,
    )
    for token_BI1, is_active_BI1, num_more in by_rank:
        p_BI1, q_BI1 = p_BIV.gather(2, token_BI1), q_BIV.gather(2, token_BI1)
        p_of_drafts.append(p_BI1[..., 0])
        q_of_drafts.append(q_BI1[..., 0])
        # If a distribution has fewer tokens than children, some children were not drawn (q = 0).
        p_BIV = _residual(p_BIV, q_BIV, is_active_BI1 & (q_BI1 > 0))
        left.append(p_BIV[:, num_more:])
        if num_more:  # parents with another child are the first ones
            p_BIV, q_BIV = p_BIV[:, :num_more], q_BIV[:, :num_more]
            q_BIV = _exclude(token_BI1[:, :num_more], q_BIV)
    return torch.cat(p_of_drafts, 1), torch.cat(q_of_drafts, 1), torch.cat(left[::-1], 1)


def _exclude(token_1: Tensor, q_V: Tensor) -> Tensor:
    """q [..., V], renormalized after a token [..., 1] was drawn without replacement."""
    others_V = q_V.scatter(-1, token_1, 0.0)
    return others_V.div_(others_V.sum(-1, keepdim=True).clamp_(min=1e-30))


def _residual(p_V: Tensor, q_V: Tensor, is_refused_1: Tensor) -> Tensor:
    """norm(max(p - q, 0)) [..., V] for a rejected draft, and p otherwise.

    If p equals q up to rounding, the residual may be 0 everywhere; then p is returned. Without
    rounding, such a rejection has probability 0.
    """
    residual_V = (p_V - q_V).clamp_(min=0)
    total_1 = residual_V.sum(-1, keepdim=True)
    return torch.where(is_refused_1 & (total_1 > 0), residual_V.div_(total_1), p_V)


def _count_leading(accepted_BK: Tensor) -> Tensor:
    """The number [B] of True before the first False."""
    return accepted_BK.cumprod(1).sum(1)


def _gather_at(x_BTV: Tensor, index_B11: Tensor) -> Tensor:
    return x_BTV.gather(1, index_B11.expand(-1, 1, x_BTV.shape[-1]))[:, 0]
