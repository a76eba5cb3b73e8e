"""A small model of the same vocabulary guesses the next K tokens, one after the other.

Shape suffixes: B rows, K drafts, V the target's vocabulary.
"""

import torch
from torch import Tensor

from specbench.decoding.drafter import BareForward, Proposal
from specbench.decoding.runner import Runner
from specbench.decoding.sampling import Purpose, Sampler, draw
from specbench.decoding.state import State
from specbench.drafters.registry import Parts, drafter


@drafter("draft_model", needs_model=True)
class DraftModel:
    """Chain drafting with a KV cache of its own (Leviathan et al. 2023, arXiv:2211.17192)."""

    features: tuple[int, ...] = ()

    def __init__(self, parts: Parts) -> None:
        self._runner: Runner = parts.draft_runner()
        self._target_vocab_size = parts.target.vocab_size

    def allocate(self, num_rows: int, max_len: int) -> None:
        self._runner.allocate(num_rows, max_len)

    def prefill(
        self,
        tokens_BT: Tensor,
        positions_BT: Tensor,
        span: int,
        features: tuple[Tensor, ...],  # noqa: ARG002
    ) -> None:
        last_B = torch.full_like(tokens_BT[:, 0], tokens_BT.shape[1] - 1)
        self._runner.forward(self._known(tokens_BT), positions_BT, span, last_B=last_B)

    def propose(self, state: State, k: int, span: int, sampler: Sampler) -> Proposal:
        # The token before the current one is fed again: after a round in which every draft
        # was accepted it is the one the draft model has not seen, and else it costs nothing.
        positions, tokens = state.window(-1, 2)
        drafts, laws = [], []
        for i in range(k):
            logits_BV = self._runner.forward(self._known(tokens), positions, span).logits[:, -1]
            positions = state.length_B[:, None] + i + 1
            tokens, law_BV = self._guess(logits_BV, state.seed_B, positions, sampler)
            drafts.append(tokens)
            laws.append(law_BV)
        probs = None if sampler.is_greedy else torch.stack(laws, 1)
        return Proposal(torch.cat(drafts, 1), torch.full_like(state.length_B, k), probs)

    def forwards(self, k: int) -> tuple[BareForward, ...]:
        return (BareForward(2, 1), BareForward(1, k - 1)) if k > 1 else (BareForward(2, 1),)

    def observe(self, state: State, num_emitted_B: Tensor, features: tuple[Tensor, ...]) -> None:
        """Rejected slots are overwritten by the next proposal: nothing to do."""

    def _guess(
        self, logits_BV: Tensor, seed_B: Tensor, positions_B1: Tensor, sampler: Sampler
    ) -> tuple[Tensor, Tensor]:
        """A token [B, 1] and the law it was drawn from, over the target's vocabulary."""
        logits_BV = logits_BV[:, : self._target_vocab_size]
        if sampler.is_greedy:
            return logits_BV.argmax(-1, keepdim=True), logits_BV
        law_BV = sampler.probs(logits_BV)
        law_BV = torch.nn.functional.pad(law_BV, (0, self._target_vocab_size - law_BV.shape[1]))
        return draw(law_BV[:, None], seed_B, positions_B1, Purpose.DRAFT), law_BV

    def _known(self, tokens: Tensor) -> Tensor:
        """Ids past the draft's vocabulary are padding of the target's; any id will do."""
        if self._runner.vocab_size >= self._target_vocab_size:
            return tokens
        return tokens.clamp(max=self._runner.vocab_size - 1)
