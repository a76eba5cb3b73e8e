"""How much of a proposal a known text would have accepted.

Shape suffixes: B rows, K drafts, N = K + 1 nodes, D depths, C capacity of a row in tokens.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from specbench.decode.drafter import Proposal
from specbench.errors import UsageError
from specbench.forward.tree import Tree


@dataclass(slots=True)
class ProposalMatches:
    """What one depth's proposals came to, by start."""

    num_drafted: dict[int, int] = field(default_factory=dict)
    limit: dict[int, int] = field(default_factory=dict)  # drafts that could be accepted at most
    num_equal: dict[int, int] = field(default_factory=dict)  # leading drafts as in the text
    # Where drafts were drawn: the probability that their distribution gave to each text token.
    draft_probs: dict[int, list[float]] = field(default_factory=dict)

    def add(
        self, starts: list[int], proposal: Proposal, length_B1: Tensor, text_C: Tensor, size: int
    ) -> None:
        """Take in the proposals of rows that stand at `starts`; `size` tokens end the text."""
        left_B = size - 1 - length_B1[:, 0]
        drafted_B = proposal.num_drafted_B
        if proposal.tree is not None:
            limit_B = torch.full_like(left_B, proposal.depth).minimum(left_B)
            equal_B = _equal_in_tree(proposal, proposal.tree, length_B1, text_C)
        else:
            limit_B = drafted_B.minimum(left_B)
            equal_B = _equal_in_chain(proposal, length_B1, text_C).minimum(limit_B)
        columns = zip(starts, drafted_B.tolist(), limit_B.tolist(), equal_B.tolist(), strict=True)
        for start, drafted, limit, equal in columns:
            self.num_drafted[start] = drafted
            self.limit[start] = limit
            self.num_equal[start] = equal
        if proposal.probs is not None:
            tokens_BK1 = _expected(proposal, length_B1, text_C).clamp(min=0)[..., None]
            probs_BK = proposal.probs.gather(-1, tokens_BK1)[..., 0]
            self.draft_probs |= dict(zip(starts, probs_BK.tolist(), strict=True))

    def chances(self, start: int, target_probs: list[float]) -> tuple[float, ...]:
        """P(accepted) by depth, up to the first that is certainly not.

        `target_probs[t]` is the target's own probability of token t of the text. Of a draft
        drawn from q and accepted with min(1, p/q), what comes out is x with p(x), and it is x
        because the draft was x and accepted with min(p(x), q(x)): given the text, min(1, q/p).
        Source: Leviathan et al. 2023 (arXiv:2211.17192), Algorithm 1, read backwards.
        """
        limit, num_equal = self.limit[start], self.num_equal[start]
        if start not in self.draft_probs:
            return (1.0,) * num_equal + (0.0,) * (num_equal < limit)
        found: list[float] = []
        for depth, q in enumerate(self.draft_probs[start][:limit], 1):
            found.append(round(kept_given_text(q, target_probs[start + depth]), 6))
            if not found[-1]:
                break
        return tuple(found)


def kept_given_text(q: float, p: float) -> float:
    """P(a draft drawn from q was accepted | the text has a token of those probabilities)."""
    return min(1.0, q / p) if p > 0 else float(q > 0)


def refuse_drawn_tree(name: str, proposal: Proposal) -> None:
    """UsageError: siblings drawn without putting back have no chance of their own a token."""
    if proposal.tree is not None and proposal.probs is not None:
        raise UsageError(
            f"{name} samples its draft tree from its distribution at this temperature, which "
            "cannot be traced; measure it, or forecast it at temperature 0"
        )


def _expected(proposal: Proposal, length_B1: Tensor, text_C: Tensor) -> Tensor:
    """What the text has where each draft stands [B, K]."""
    if proposal.tree is not None:
        return text_C[length_B1 + proposal.tree.depths_BN[:, 1:]]
    depths_K = torch.arange(1, proposal.tokens_BK.shape[1] + 1, device=text_C.device)
    return text_C[length_B1 + depths_K]


def _equal_in_chain(proposal: Proposal, length_B1: Tensor, text_C: Tensor) -> Tensor:
    """Leading drafts that are as in the text [B]."""
    equal_BK = proposal.tokens_BK == _expected(proposal, length_B1, text_C)
    return equal_BK.cumprod(1).sum(1)


def _equal_in_tree(proposal: Proposal, tree: Tree, length_B1: Tensor, text_C: Tensor) -> Tensor:
    """Depth of the deepest node whose whole path is as in the text [B]."""
    equal_BK = proposal.tokens_BK == _expected(proposal, length_B1, text_C)
    kept_BK = equal_BK & tree.is_meant_BK
    kept_BN = torch.cat([torch.ones_like(kept_BK[:, :1]), kept_BK], 1)
    is_reached_BN = (kept_BN[:, None] | ~tree.seen_BNN).all(-1) & kept_BN
    return (tree.depths_BN * is_reached_BN).amax(1)
