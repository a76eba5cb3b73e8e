"""A draft model with another vocabulary drafts the tokens that both vocabularies contain.

Shape suffixes: B rows, T tokens, S shared tokens, D the draft model's vocabulary, V the target's.
"""

import torch
from torch import Tensor

from specbench.decode.drafter import Capabilities, Proposal
from specbench.decode.sampling import Sampler
from specbench.decode.state import State
from specbench.drafters.registry import Parts, drafter
from specbench.drafters.shared.retokenized_model import RetokenizedModel
from specbench.errors import CompatibilityError
from specbench.files.tokenizer import NOTHING_IN_COMMON
from specbench.models.retokenizer import require_common_tokens


@drafter("token_intersection")
class TokenIntersection(RetokenizedModel):
    """Drafts with the draft model's distribution over the shared tokens.

    The distribution is renormalized over these tokens before one is drawn. The verifier gets this
    renormalized distribution as q, so the output is lossless at any temperature.
    """

    capabilities = Capabilities(needs_host=True, chains_nest=True)

    def __init__(self, parts: Parts) -> None:
        target, draft = (tokenizer.vocabulary for tokenizer in parts.tokenizers())
        draft_ids = require_common_tokens(target, draft).draft_ids
        super().__init__(parts)
        # A tokenizer may have ids beyond the logits of its model.
        width, own_width = parts.target.vocab_size, self.runner.vocab_size
        pairs = [
            (i, target_id)
            for i, target_id in draft_ids.items()
            if i < width and target_id < own_width
        ]
        if not pairs:
            raise CompatibilityError(NOTHING_IN_COMMON)
        self._target_S, self._draft_S = torch.tensor(pairs, device=parts.target.device).T
        self._draft_ids_V = torch.zeros(width, dtype=torch.long, device=parts.target.device)
        self._draft_ids_V[self._target_S] = self._draft_S

    def propose(self, state: State, k: int, span: int, sampler: Sampler) -> Proposal:  # noqa: ARG002
        return self.guess(state, k, sampler)

    def _own_ids(self, tokens: Tensor) -> Tensor:
        return self._draft_ids_V[tokens]

    def _draft_logits(self, logits_BTD: Tensor) -> Tensor:
        """Logits over the target's vocabulary [B, T, V]; -inf for tokens that are not shared."""
        shape = (*logits_BTD.shape[:2], len(self._draft_ids_V))
        nothing_BTV = logits_BTD.new_full(shape, -torch.inf)
        return nothing_BTV.index_copy_(2, self._target_S, logits_BTD.index_select(2, self._draft_S))
