"""Verifiers that do NOT preserve the target's distribution, used only if an option names one.

Every report marks their results. A lossy rule accepts draft tokens that are likely enough under
the target's distribution at the request's temperature, top-k and top-p; at temperature 0, under
that at temperature 1, because a one-hot distribution would turn every rule into the lossless one.
All other tokens are sampled from the target. Simulated acceptance draws the number of accepted
tokens instead: the text is meaningless, but the times are valid, since a round does the same work
as a real one.
Shape suffixes: B rows, K draft tokens, N = K + 1 nodes, T = depth + 1 tokens of a path, V
vocabulary.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from specbench.decode.drafter import Proposal
from specbench.decode.sampling import Purpose, Sampler, draw, uniform
from specbench.decode.verifier import Verdict, chain_verdict, path_verdict
from specbench.forward.tree import Tree
from specbench.records import LossyRule
from specbench.stats.rounds import Acceptance, acceptance_rates, conditional_rates

_LOG_GUARD = 1e-5  # keeps log(0) finite; the authors' value


def _typical(
    p_BK: Tensor,
    probs_BNV: Tensor,
    parents_BK: Tensor,
    is_sampled_BK: Tensor,  # noqa: ARG001
    *,
    threshold: float,
    alpha: float,
) -> Tensor:
    """Whether p(x) > min(threshold, alpha exp(-H(p))), with any drafter.

    The higher the entropy H, the lower the required probability. With alpha < 1 the most likely
    token always passes. The authors use the square root of the threshold as alpha.
    Source: Cai et al. 2024, Medusa (arXiv:2401.10774), "typical acceptance".
    """
    entropy_BN = -(probs_BNV * (probs_BNV + _LOG_GUARD).log()).sum(-1)
    threshold_BN = (alpha * (-entropy_BN).exp()).clamp(max=threshold)
    return p_BK > threshold_BN.gather(1, parents_BK)


def _threshold(
    p_BK: Tensor,
    probs_BNV: Tensor,  # noqa: ARG001
    parents_BK: Tensor,  # noqa: ARG001
    is_sampled_BK: Tensor,
    *,
    single: float,
) -> Tensor:
    """Whether the target samples the same token, or p(x) >= single.

    At 1 it equals the lossless rule for draft tokens without a distribution.
    Source: SGLang's option `--speculative-accept-threshold-single`.
    """
    return is_sampled_BK | (p_BK >= single)


# Rule -> whether each draft token may be accepted if all before it are, bool [B, K]. Arguments: the
# probability of each draft token after its parent, the target's distribution after each node, the
# parents, whether the target samples the same token, and the rule's parameters.
_RULES: Mapping[str, Callable[..., Tensor]] = {"typical": _typical, "threshold": _threshold}


class LossyVerifier:
    """A verifier (round.Verifier) that accepts the longest path of draft tokens that pass a rule.

    Among equally long paths, the most likely one wins. The drafter's distribution is not used.
    """

    def __init__(self, rule: LossyRule) -> None:
        self._passes = partial(_RULES[rule.name], **rule.parameters)

    def __call__(
        self,
        proposal: Proposal,
        logits_BNV: Tensor,
        sampler: Sampler,
        seed_B: Tensor,
        positions_BN: Tensor,
    ) -> Verdict:
        """The accepted draft tokens, followed by the token that the target samples after them."""
        drafts_BK, tree = proposal.tokens_BK, proposal.tree
        if proposal.depth == 0:
            sampled_BN = sampler.pick(logits_BNV, seed_B, positions_BN)
            return Verdict(torch.zeros_like(proposal.num_drafted_B), sampled_BN)
        if sampler.is_greedy:
            probs_BNV = Sampler(replace(sampler.sampling, temperature=1.0)).probs(logits_BNV)
            sampled_BN = logits_BNV.argmax(-1)
        else:
            probs_BNV = sampler.probs(logits_BNV)
            sampled_BN = draw(probs_BNV, seed_B, positions_BN, Purpose.TARGET)
        parents_K = torch.arange(drafts_BK.shape[1], device=drafts_BK.device)
        parents_BK = parents_K.expand_as(drafts_BK) if tree is None else tree.parents_BK
        V = probs_BNV.shape[-1]
        p_BK = probs_BNV.flatten(1).gather(1, parents_BK * V + drafts_BK)
        is_sampled_BK = drafts_BK == sampled_BN.gather(1, parents_BK)
        passes_BK = self._passes(p_BK, probs_BNV, parents_BK, is_sampled_BK)
        if tree is None:
            num_accepted_B = passes_BK.cumprod(1).sum(1).minimum(proposal.num_drafted_B)
            return chain_verdict(num_accepted_B, drafts_BK, sampled_BN)
        return _tree_verdict(proposal, tree, passes_BK, p_BK, sampled_BN)


def _tree_verdict(
    proposal: Proposal, tree: Tree, passes_BK: Tensor, p_BK: Tensor, sampled_BN: Tensor
) -> Verdict:
    root_B1 = torch.ones_like(passes_BK[:, :1])
    accepted_BN = torch.cat([root_B1, passes_BK & tree.is_active_BK], 1)
    is_reached_BN = tree.reached(accepted_BN)
    depths_BN = tree.depths_BN * is_reached_BN
    is_longest_BN = is_reached_BN & (depths_BN == depths_BN.amax(1, keepdim=True))
    log_p_BN = torch.cat([root_B1 * 0.0, p_BK.clamp(min=1e-30).log()], 1)
    path_log_p_BN = (log_p_BN[:, None] * tree.seen_BNN).sum(-1)
    leaf_B = path_log_p_BN.masked_fill(~is_longest_BN, -torch.inf).argmax(1)
    return path_verdict(proposal, tree, leaf_B, sampled_BN.gather(1, leaf_B[:, None]))


class SyntheticVerifier:
    """A verifier (round.Verifier) that accepts drafts at given rates, regardless of their tokens.

    Every row of every round is drawn independently, so rows advance unevenly, as real ones do.
    """

    def __init__(self, acceptance: Acceptance) -> None:
        """`acceptance` has the values of `acceptance_rates`; K is the depth of each proposal."""
        acceptance_rates(acceptance, 0)
        self._acceptance = acceptance

    def __call__(
        self,
        proposal: Proposal,
        logits_BNV: Tensor,
        sampler: Sampler,
        seed_B: Tensor,
        positions_BN: Tensor,
    ) -> Verdict:
        """Accept draft i with probability a_i / a_(i-1) if all before it were accepted.

        The target's own token follows. It is sampled at every position, as in a real round.
        """
        target_BT = sampler.pick(logits_BNV, seed_B, positions_BN)
        K = proposal.depth
        if K == 0:
            return Verdict(torch.zeros_like(proposal.num_drafted_B), target_BT)
        drafts_BK, most_B, path_BT = proposal.tokens_BK, proposal.num_drafted_B, None
        positions_BT = positions_BN
        if proposal.tree is not None:
            path_BT, most_B = _first_children(proposal.tree)
            drafts_BK = drafts_BK.gather(1, (path_BT[:, 1:] - 1).clamp(min=0))
            target_BT = target_BT.gather(1, path_BT)
            positions_BT = positions_BN.gather(1, path_BT)
        chance_BK = uniform(seed_B, positions_BT[:, :-1], Purpose.SYNTHETIC)
        # One comparison per position: a tensor of the rates would need a copy from the host.
        rates = conditional_rates(acceptance_rates(self._acceptance, K))
        accepted = [chance_BK[:, i] <= rate for i, rate in enumerate(rates)]
        num_accepted_B = torch.stack(accepted, 1).long().cumprod(1).sum(1).minimum(most_B)
        return chain_verdict(num_accepted_B, drafts_BK, target_BT, path_BT)


def _first_children(tree: Tree) -> tuple[Tensor, Tensor]:
    """The path [B, T] that always takes the first active draft, and its length [B]."""
    node_B1 = torch.zeros_like(tree.parents_BK[:, :1])
    path, num_B = [node_B1], torch.zeros_like(node_B1[:, 0])
    for _ in range(tree.depth):
        is_child_BK = (tree.parents_BK == node_B1) & tree.is_active_BK
        has_child_B1 = is_child_BK.any(1, keepdim=True)
        first_B1 = is_child_BK.int().argmax(1, keepdim=True) + 1
        # Past the end, -1 matches no parent; the clamp below makes it node 0, as in Tree.path_to.
        node_B1 = torch.where(has_child_B1, first_B1, -1)
        num_B = num_B + has_child_B1[:, 0]
        path.append(node_B1)
    return torch.cat(path, 1).clamp(min=0), num_B
