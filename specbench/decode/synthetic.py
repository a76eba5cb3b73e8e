"""Acceptance that is drawn instead of judged: what a pairing would cost at a given acceptance.

The text means nothing, the times do: a round does the work of a real one.
Shape suffixes: B rows, K drafts of a path, N nodes, T = K + 1 tokens of a path, V vocabulary.
"""

import torch
from torch import Tensor

from specbench.decode.drafter import Proposal
from specbench.decode.sampling import Purpose, Sampler, uniform
from specbench.decode.verifier import Verdict, chain_verdict
from specbench.forward.tree import Tree
from specbench.stats.rounds import Acceptance, acceptance_rates, conditional_rates


class SyntheticVerifier:
    """A verifier (round.Verifier) that accepts drafts at given rates, whatever they say.

    Every row of every round draws for itself, so rows advance raggedly as real ones do.
    """

    def __init__(self, acceptance: Acceptance) -> None:
        """Takes the values of `acceptance_rates`; K is that of each proposal."""
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
        """Accept draft i with a_i / a_(i-1) after those before it; then the target's own token.

        The target's tokens are picked at every position, as a real round does it.
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
        # A comparison a position: a tensor of the rates would be a copy from the host.
        rates = conditional_rates(acceptance_rates(self._acceptance, K))
        accepted = [chance_BK[:, i] <= rate for i, rate in enumerate(rates)]
        num_accepted_B = torch.stack(accepted, 1).long().cumprod(1).sum(1).minimum(most_B)
        return chain_verdict(num_accepted_B, drafts_BK, target_BT, path_BT)


def _first_children(tree: Tree) -> tuple[Tensor, Tensor]:
    """The path [B, T] that always takes the first draft that is meant, and its length [B]."""
    node_B1 = torch.zeros_like(tree.parents_BK[:, :1])
    path, num_B = [node_B1], torch.zeros_like(node_B1[:, 0])
    for _ in range(tree.depth):
        is_child_BK = (tree.parents_BK == node_B1) & tree.is_active_BK
        has_child_B1 = is_child_BK.any(1, keepdim=True)
        first_B1 = is_child_BK.int().argmax(1, keepdim=True) + 1
        # Past the end: the current token again, as in Tree.path_to; it has no parent.
        node_B1 = torch.where(has_child_B1, first_B1, -1)
        num_B = num_B + has_child_B1[:, 0]
        path.append(node_B1)
    return torch.cat(path, 1).clamp(min=0), num_B
