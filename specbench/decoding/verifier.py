"""Which drafts to keep, so that the output has exactly the target's distribution.

Shape suffixes: B rows, K drafts, T = K + 1 checked positions, V vocabulary.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from specbench.decoding.drafter import Proposal
from specbench.decoding.sampling import Purpose, Sampler, draw, uniform


class Verdict(NamedTuple):
    """The first num_accepted_B + 1 tokens of each row are its own; the rest is garbage."""

    num_accepted_B: Tensor
    tokens_BT: Tensor


def verify(
    proposal: Proposal, logits_BTV: Tensor, sampler: Sampler, seed_B: Tensor, positions_BT: Tensor
) -> Verdict:
    """Keep the longest draft prefix that leaves the target's distribution unchanged.

    logits[:, i] are the target's for the token at positions[:, i], the place of draft i; the
    last column is the bonus token's. At temperature 0 laws are one-hot, so greedy decoding
    needs no branch here.
    """
    if proposal.probs_BKV is None:
        return _match(proposal, sampler.pick(logits_BTV, seed_B, positions_BT))
    return _reject(proposal, proposal.probs_BKV, sampler.probs(logits_BTV), seed_B, positions_BT)


def _match(proposal: Proposal, target_BT: Tensor) -> Verdict:
    """The target draws its own token everywhere; drafts count while they equal it.

    Lossless for any drafts that do not depend on the target's noise: every emitted token is
    the target's own draw, given a prefix that equals what was emitted.
    """
    equal_BK = proposal.tokens_BK == target_BT[:, :-1]
    return Verdict(_leading(equal_BK).minimum(proposal.num_drafted_B), target_BT)


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

    # Where nothing was drafted q is 0, and the residual is the target's own law: the bonus
    # token and a round cut short need no case of their own.
    at_B11 = num_accepted_B[:, None, None]
    q_BTV = torch.cat([draft_BKV, torch.zeros_like(target_BTV[:, :1])], 1)
    was_drafted_B1 = (num_accepted_B < proposal.num_drafted_B)[:, None]
    p_BV, q_BV = _at(target_BTV, at_B11), _at(q_BTV, at_B11) * was_drafted_B1
    residual_BV = (p_BV - q_BV).clamp(min=0)
    # p == q up to rounding leaves no residual; such a rejection has probability 0 but for it.
    residual_BV = torch.where(residual_BV.sum(-1, keepdim=True) > 0, residual_BV, p_BV)
    next_position_B1 = positions_BT.gather(1, num_accepted_B[:, None])
    next_B1 = draw(residual_BV[:, None], seed_B, next_position_B1, Purpose.TARGET)
    tokens_BT = torch.cat([drafts_BK, next_B1], 1).scatter(1, num_accepted_B[:, None], next_B1)
    return Verdict(num_accepted_B, tokens_BT)


def _leading(accepted_BK: Tensor) -> Tensor:
    """Number of True before the first False [B]."""
    return accepted_BK.cumprod(1).sum(1)


def _at(x_BTV: Tensor, index_B11: Tensor) -> Tensor:
    return x_BTV.gather(1, index_B11.expand(-1, 1, x_BTV.shape[-1]))[:, 0]
