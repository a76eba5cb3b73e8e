"""Drafts the tokens that followed the last few tokens earlier in the text (prompt lookup).

Shape suffixes: B rows, S positions, K draft tokens.
"""

import torch

from specbench.decode.drafter import Capabilities, Drafter, Proposal
from specbench.decode.sampling import Sampler
from specbench.decode.state import State
from specbench.drafters.registry import Parts, drafter
from specbench.errors import UsageError


@drafter("ngram")
class Ngram(Drafter):
    """Drafts the tokens after the longest match of the end of the text; the latest if tied."""

    capabilities = Capabilities(chains_nest=True)

    def __init__(
        self,
        parts: Parts,  # noqa: ARG002
        *,
        max_ngram: int,
        min_ngram: int,
    ) -> None:
        if not 1 <= min_ngram <= max_ngram:
            raise UsageError(
                f"ngram: min_ngram {min_ngram}, max_ngram {max_ngram}; expected 1 <= min <= max"
            )
        self._max_ngram = max_ngram
        self._min_ngram = min_ngram

    def propose(self, state: State, k: int, span: int, sampler: Sampler) -> Proposal:  # noqa: ARG002
        tokens_BS = state.tokens_BC[:, :span]
        last_B1 = state.length_B1
        ends_S = torch.arange(tokens_BS.shape[1], device=tokens_BS.device)

        # matched_BS[b, s]: the number of tokens up to s that equal those up to the current one.
        still_BS = ends_S < last_B1
        matched_BS = torch.zeros_like(tokens_BS)
        for j in range(self._max_ngram):
            suffix_B1 = state.tokens_BC.gather(1, (last_B1 - j).clamp(min=0))
            shifted_BS = torch.nn.functional.pad(tokens_BS, (j, 0), value=-1)[:, : len(ends_S)]
            still_BS = still_BS & (shifted_BS == suffix_B1) & (last_B1 >= j)
            matched_BS = matched_BS + still_BS
        score_BS = torch.where(matched_BS >= self._min_ngram, matched_BS, 0)
        best_B1 = (score_BS * len(ends_S) + ends_S).argmax(1, keepdim=True)
        found_B1 = score_BS.gather(1, best_B1) > 0

        places_K = torch.arange(1, k + 1, device=tokens_BS.device)
        copied_BK = state.tokens_BC.gather(1, (best_B1 + places_K).minimum(last_B1))
        num_B1 = torch.where(found_B1, (last_B1 - best_B1).clamp(max=k), 0)
        return Proposal(copied_BK, num_B1[:, 0])
