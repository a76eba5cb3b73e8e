"""Drafts the tokens that the target last predicted after each token. No draft model.

Shape suffixes: B rows, N nodes fed, M = B * N, K draft tokens, W of them in a level, I of these
with children, R ranks, V vocabulary, X = V + 1 tokens including the unknown one.
"""

import torch

from specbench.decode.drafter import Capabilities, Drafter, Outcome, Proposal
from specbench.decode.sampling import Sampler
from specbench.decode.state import State
from specbench.drafters.registry import Parts, drafter
from specbench.forward.tree import StaticTrees
from specbench.topology import RANK_PROBS, recycling_tree


@drafter("token_recycling")
class TokenRecycling(Drafter):
    """Drafts a tree from a table of the likeliest successors of each token.

    All rows share one table of the 8 likeliest successors of every token. A round updates the
    entries of all tokens that it feeds, including rejected draft tokens, so the table improves from
    request to request. Each pass starts with an empty table. With one row, each prompt does, which
    is the method's worst case. With `warm_start` the next pass keeps the table, as a server would.
    But a benchmark decodes the same prompts again, so its results are then too good.
    """

    def __init__(self, parts: Parts, *, max_drafts: int, warm_start: bool) -> None:
        device, V = parts.target.device, parts.target.vocab_size
        topology = recycling_tree(max_drafts, V)
        # The table also depends on the rejected draft tokens of earlier rounds.
        self.capabilities = Capabilities(max_k=topology.depth, repeatability="approximate")
        self._warm_start = warm_start
        self._trees = StaticTrees(topology.cut, device)
        # Token V means unknown; its only successor is itself.
        self._unknown = V
        self._successors_XR = torch.full((V + 1, len(RANK_PROBS[:V])), V, device=device)

    @property
    def buffers(self) -> tuple[torch.Tensor, ...]:
        return (self._successors_XR,)

    def allocate(self, num_rows: int, max_len: int) -> None:  # noqa: ARG002
        if not self._warm_start:
            self._successors_XR.fill_(self._unknown)

    def copy_row(self, source: int, destination: int, num_tokens: int) -> None:
        """Do nothing: rows have no separate state."""

    def num_drafts(self, k: int) -> int:
        return self._trees[k].topology.num_drafts

    def propose(self, state: State, k: int, span: int, sampler: Sampler) -> Proposal:  # noqa: ARG002
        tree, drafts = self._trees[k], []
        tokens_BI = state.tokens_at(state.length_B1)
        for level in tree.levels:
            tokens_BW = self._successors_XR[tokens_BI][:, level.parents_W, level.ranks_W]
            tokens_BI = tokens_BW[:, level.inner_I]
            drafts.append(tokens_BW)
        tokens_BK = torch.cat(drafts, 1)
        is_known_BK = tokens_BK < self._unknown
        return Proposal(
            tokens_BK.clamp(max=self._unknown - 1),
            is_known_BK.sum(1),
            tree=tree.of_rows(state.num_rows)._replace(is_active_BK=is_known_BK),
        )

    def observe(self, state: State, outcome: Outcome) -> None:  # noqa: ARG002
        """Update the successors of every token fed; a token fed several times gets its last node's.

        The last node is the deepest, so its context is the most like that of the next tokens. On
        text, more draft tokens were accepted with the last node than with the first.
        """
        tokens_M = outcome.tokens_BN.flatten()
        nodes_BN = torch.arange(len(tokens_M), device=tokens_M.device).view_as(outcome.tokens_BN)
        nodes_BN = torch.where(outcome.num_emitted_B[:, None] > 0, nodes_BN, -1)
        none_X = torch.full_like(self._successors_XR[:, 0], -1)
        last_M = none_X.scatter_reduce(0, tokens_M, nodes_BN.flatten(), "amax")[tokens_M]
        # All nodes of a token write the same values, so the order of the writes does not matter.
        best_MR = outcome.logits_BNV.topk(self._successors_XR.shape[1]).indices.flatten(0, 1)
        self._successors_XR[tokens_M] = torch.where(
            last_M[:, None] >= 0, best_MR[last_M.clamp(min=0)], self._successors_XR[tokens_M]
        )
