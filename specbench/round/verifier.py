"""Which drafts to accept, so that the output has exactly the target's distribution.

Shape suffixes: B rows, K drafts, N = K + 1 nodes, T = depth + 1 tokens of a path (N in a
chain), V vocabulary.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from specbench.forward.tree import Tree
from specbench.round.drafter import Proposal
from specbench.round.sampling import Purpose, Sampler, draw, uniform


class Verdict(NamedTuple):
    """The first num_accepted_B + 1 tokens of each row are its own; the rest is garbage.

    `path_BT` are the nodes of a tree after which those tokens come; None for a chain.
    """

    num_accepted_B: Tensor
    tokens_BT: Tensor
    path_BT: Tensor | None = None


def chain_verdict(
    num_accepted_B: Tensor, drafts_BK: Tensor, own_BT: Tensor, path_BT: Tensor | None = None
) -> Verdict:
    """So many drafts of a path, and the target's own tokens after them."""
    places_T = torch.arange(own_BT.shape[1], device=own_BT.device)
    drafts_BT = torch.cat([drafts_BK, own_BT[:, -1:]], 1)
    tokens_BT = torch.where(places_T < num_accepted_B[:, None], drafts_BT, own_BT)
    return Verdict(num_accepted_B, tokens_BT, path_BT)


def verify(
    proposal: Proposal, logits_BNV: Tensor, sampler: Sampler, seed_B: Tensor, positions_BN: Tensor
) -> Verdict:
    """Keep the longest path of drafts that leaves the target's distribution unchanged.

    logits[:, i] are the target's for the token after node i, whose place is positions[:, i].
    At temperature 0 distributions are one-hot, so greedy decoding needs no branch here.
    """
    tree, probs = proposal.tree, proposal.probs
    if probs is None:
        target_BN = sampler.pick(logits_BNV, seed_B, positions_BN)
        if tree is None:
            return _match(proposal, target_BN)
        return _match_tree(proposal, tree, target_BN)
    target_BNV = sampler.probs(logits_BNV)
    if tree is None:
        return _reject(proposal, probs, target_BNV, seed_B, positions_BN)
    return _reject_tree(proposal, tree, probs, target_BNV, seed_B, positions_BN)


def _match(proposal: Proposal, target_BT: Tensor) -> Verdict:
    """The target draws its own token everywhere; drafts count while they equal it.

    Lossless for any drafts that do not depend on the target's noise: every emitted token is
    the target's own draw, given a prefix that equals what was emitted.
    """
    equal_BK = proposal.tokens_BK == target_BT[:, :-1]
    return Verdict(_leading(equal_BK).minimum(proposal.num_drafted_B), target_BT)


def _match_tree(proposal: Proposal, tree: Tree, target_BN: Tensor) -> Verdict:
    """As `_match` along every path at once; the longest that equals the target's draws is accepted.

    Nodes at one position share their noise, but only one of them is ever on the path.
    """
    equal_BK = proposal.tokens_BK == target_BN.gather(1, tree.parents_BK)
    kept_BK = equal_BK & tree.is_meant_BK
    kept_BN = torch.cat([torch.ones_like(kept_BK[:, :1]), kept_BK], 1)
    is_reached_BN = (kept_BN[:, None] | ~tree.seen_BNN).all(-1) & kept_BN
    leaf_B = (tree.depths_BN * is_reached_BN).argmax(1)
    path_BT = tree.path_to(leaf_B)
    return Verdict(tree.depth_of(leaf_B), target_BN.gather(1, path_BT), path_BT)


def _reject(
    proposal: Proposal, draft_BKV: Tensor, target_BTV: Tensor, seed_B: Tensor, positions_BT: Tensor
) -> Verdict:
    """Accept a draft with min(1, p / q); on the first rejection draw from norm(max(p - q, 0)).

    Source: Leviathan et al. 2023 (arXiv:2211.17192), Algorithm 1; Chen et al. 2023
    (arXiv:2302.01318), Theorem 1.
    """
    drafts_BK = proposal.tokens_BK
    p_BK = target_BTV[:, :-1].gather(-1, drafts_BK[..., None])[..., 0]
    q_BK = draft_BKV.gather(-1, drafts_BK[..., None])[..., 0]
    chance_BK = uniform(seed_B, positions_BT[:, :-1], Purpose.ACCEPT)
    kept_BK = (chance_BK * q_BK <= p_BK) & (p_BK > 0)
    num_accepted_B = _leading(kept_BK).minimum(proposal.num_drafted_B)

    # Where nothing was drafted q is 0, and the residual is the target's own distribution: the bonus
    # token and a round cut short need no case of their own.
    at_B11 = num_accepted_B[:, None, None]
    q_BTV = torch.cat([draft_BKV, torch.zeros_like(target_BTV[:, :1])], 1)
    was_drafted_B1 = (num_accepted_B < proposal.num_drafted_B)[:, None]
    residual_BV = _residual(_at(target_BTV, at_B11), _at(q_BTV, at_B11) * was_drafted_B1)
    next_position_B1 = positions_BT.gather(1, num_accepted_B[:, None])
    next_B1 = draw(residual_BV[:, None], seed_B, next_position_B1, Purpose.TARGET)
    tokens_BT = torch.cat([drafts_BK, next_B1], 1).scatter(1, num_accepted_B[:, None], next_B1)
    return Verdict(num_accepted_B, tokens_BT)


def _reject_tree(
    proposal: Proposal,
    tree: Tree,
    draft_BNV: Tensor,
    target_BNV: Tensor,
    seed_B: Tensor,
    positions_BN: Tensor,
) -> Verdict:
    """Recursive rejection: siblings are judged one after the other, each against what is left.

    After a rejection p becomes norm(max(p - q, 0)), and q loses the rejected token, as the
    next sibling was drawn without putting it back. Source: Yang et al. 2024
    (arXiv:2402.14160); Chen et al. 2024, Sequoia (arXiv:2402.12374).
    """
    tokens_BK = proposal.tokens_BK
    node_B1 = torch.zeros_like(tokens_BK[:, :1])
    p_BV, q_BV = target_BNV[:, 0], draft_BNV[:, 0]
    for i in range(tokens_BK.shape[1]):  # siblings in turn, parents before their children
        token_B1, child_B1 = tokens_BK[:, i : i + 1], torch.full_like(node_B1, i + 1)
        is_child_B1 = (tree.parents_BK[:, i : i + 1] == node_B1) & tree.is_meant_BK[:, i : i + 1]
        place_B1 = positions_BN.gather(1, node_B1)
        chance_B1 = uniform(seed_B, place_B1, Purpose.ACCEPT, turn=i)
        p_B1, q_B1 = p_BV.gather(1, token_B1), q_BV.gather(1, token_B1)
        # A distribution with fewer tokens than children leaves some that were not drawn.
        is_judged_B1 = is_child_B1 & (q_B1 > 0)
        is_kept_B1 = is_judged_B1 & (chance_B1 * q_B1 <= p_B1) & (p_B1 > 0)
        is_refused_B1 = is_judged_B1 & ~is_kept_B1
        left_BV = _residual(p_BV, q_BV)
        left_BV = left_BV / left_BV.sum(-1, keepdim=True)
        others_BV = q_BV.scatter(1, token_B1, 0.0)
        others_BV = others_BV / others_BV.sum(-1, keepdim=True).clamp(min=1e-30)
        p_BV = torch.where(is_refused_B1, left_BV, p_BV)
        q_BV = torch.where(is_refused_B1, others_BV, q_BV)
        p_BV = torch.where(is_kept_B1, target_BNV[:, i + 1], p_BV)
        q_BV = torch.where(is_kept_B1, draft_BNV[:, i + 1], q_BV)
        node_B1 = torch.where(is_kept_B1, child_B1, node_B1)
    path_BT = tree.path_to(node_B1[:, 0])
    num_accepted_B = tree.depth_of(node_B1[:, 0])
    next_B1 = draw(p_BV[:, None], seed_B, positions_BN.gather(1, node_B1), Purpose.TARGET)
    # Node i + 1 is draft i, and what follows the last node accepted is the target's.
    kept_BT = tokens_BK.gather(1, (path_BT[:, 1:] - 1).clamp(min=0))
    tokens_BT = torch.cat([kept_BT, next_B1], 1).scatter(1, num_accepted_B[:, None], next_B1)
    return Verdict(num_accepted_B, tokens_BT, path_BT)


def _residual(p_BV: Tensor, q_BV: Tensor) -> Tensor:
    """max(p - q, 0), not normalised.

    p == q up to rounding leaves nothing; a rejection there has probability 0 but for that.
    """
    residual_BV = (p_BV - q_BV).clamp(min=0)
    return torch.where(residual_BV.sum(-1, keepdim=True) > 0, residual_BV, p_BV)


def _leading(accepted_BK: Tensor) -> Tensor:
    """Number of True before the first False [B]."""
    return accepted_BK.cumprod(1).sum(1)


def _at(x_BTV: Tensor, index_B11: Tensor) -> Tensor:
    return x_BTV.gather(1, index_B11.expand(-1, 1, x_BTV.shape[-1]))[:, 0]
