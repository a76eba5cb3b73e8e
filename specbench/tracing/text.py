"""A finished output of the target, a sampler that draws only its tokens, and what it accepts.

Shape suffixes: B rows, T positions, C capacity of a row in tokens, V vocabulary, K drafts,
N = K + 1 nodes.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from specbench.decode.drafter import Proposal
from specbench.decode.sampling import Sampler
from specbench.errors import UsageError
from specbench.forward.tree import Tree
from specbench.records import Sampling

NOTHING = -1  # in place of a token after the end of the text: no draft token equals it


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetText:
    """The target's output of one turn, decoded without drafts; `seed` is that of its sampling.

    `max_new_tokens` is its token budget: draft tokens beyond it do not count.
    """

    workload: str
    prompt_id: str
    turn: int
    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    max_new_tokens: int
    sampling: Sampling
    seed: int
    repeat: int = 0
    prediction_ids: tuple[int, ...] = ()  # a text that the output may resemble
    context: int | None = None  # as in CellKey

    @property
    def num_starts(self) -> int:
        """Tokens after which a round can start: all but the last."""
        return len(self.output_ids) - 1

    def by_position(self, capacity: int, device: torch.device) -> Tensor:
        """Prompt and output [C], NOTHING past their end."""
        tokens = [*self.prompt_ids, *self.output_ids]
        padding = [NOTHING] * (capacity - len(tokens))
        return torch.tensor([*tokens, *padding], device=device)


class TextSampler(Sampler):
    """A sampler that returns the token of the text at each position, for target and drafter.

    Distributions do not change. So a sampled draft follows the text to any depth, and the proposal
    has the distribution from which each token of the text might have been drawn.
    """

    def __init__(self, sampling: Sampling, text_C: Tensor) -> None:
        super().__init__(sampling)
        self._text_C = text_C

    def pick(self, logits_BTV: Tensor, seeds_B: Tensor, positions_BT: Tensor) -> Tensor:  # noqa: ARG002
        return self._text_C[positions_BT]

    def guess(self, probs_BTV: Tensor, seeds_B: Tensor, positions_BT: Tensor) -> Tensor:  # noqa: ARG002
        return self._text_C[positions_BT].clamp(min=0)


@dataclass(slots=True)
class ProposalMatches:
    """How the proposals of one depth match the text, by start."""

    num_drafted: dict[int, int] = field(default_factory=dict)
    limit: dict[int, int] = field(default_factory=dict)  # most draft tokens that can be accepted
    num_equal: dict[int, int] = field(default_factory=dict)  # leading draft tokens as in the text
    # If drafts are sampled: the probability of each text token in their distribution.
    draft_probs: dict[int, list[float]] = field(default_factory=dict)

    def add(
        self, starts: list[int], proposal: Proposal, length_B1: Tensor, text_C: Tensor, size: int
    ) -> None:
        """Add the proposals of rows at `starts`; the text has `size` tokens."""
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
        """P(accepted) by depth, up to the first that is 0.

        `target_probs[t]` is the target's probability of token t of the text. If a draft is drawn
        from q and accepted with min(1, p/q), the output is x with p(x), and the draft was x and
        accepted with min(p(x), q(x)): given the text, min(1, q/p).
        Source: Leviathan et al. 2023 (arXiv:2211.17192), Algorithm 1, by Bayes' rule.
        """
        limit, num_equal = self.limit[start], self.num_equal[start]
        if start not in self.draft_probs:
            return (1.0,) * num_equal + (0.0,) * (num_equal < limit)
        chances: list[float] = []
        for depth, q in enumerate(self.draft_probs[start][:limit], 1):
            chances.append(round(kept_given_text(q, target_probs[start + depth]), 6))
            if not chances[-1]:
                break
        return tuple(chances)


def kept_given_text(q: float, p: float) -> float:
    """P(a draft token drawn from q was accepted | it is the token of the text)."""
    return min(1.0, q / p) if p > 0 else float(q > 0)


def refuse_drawn_tree(name: str, proposal: Proposal) -> None:
    """UsageError: siblings drawn without replacement have no separate chance per token."""
    if proposal.tree is not None and proposal.probs is not None:
        raise UsageError(
            f"{name} samples its draft tree from its distribution at this temperature, which "
            "cannot be traced; measure it, or forecast it at temperature 0"
        )


def _expected(proposal: Proposal, length_B1: Tensor, text_C: Tensor) -> Tensor:
    """The token of the text at the position of each draft token [B, K]."""
    if proposal.tree is not None:
        return text_C[length_B1 + proposal.tree.depths_BN[:, 1:]]
    depths_K = torch.arange(1, proposal.tokens_BK.shape[1] + 1, device=text_C.device)
    return text_C[length_B1 + depths_K]


def _equal_in_chain(proposal: Proposal, length_B1: Tensor, text_C: Tensor) -> Tensor:
    """Number of leading draft tokens that are as in the text [B]."""
    equal_BK = proposal.tokens_BK == _expected(proposal, length_B1, text_C)
    return equal_BK.cumprod(1).sum(1)


def _equal_in_tree(proposal: Proposal, tree: Tree, length_B1: Tensor, text_C: Tensor) -> Tensor:
    """Depth of the deepest node whose whole path is as in the text [B]."""
    equal_BK = proposal.tokens_BK == _expected(proposal, length_B1, text_C)
    accepted_BK = equal_BK & tree.is_active_BK
    accepted_BN = torch.cat([torch.ones_like(accepted_BK[:, :1]), accepted_BK], 1)
    return (tree.depths_BN * tree.reached(accepted_BN)).amax(1)
