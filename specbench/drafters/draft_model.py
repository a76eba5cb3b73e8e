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
    needs_host = False
    max_k: int | None = None

    def __init__(self, parts: Parts) -> None:
        self._runner: Runner = parts.draft_runner()
        self._target_vocab_size = parts.target.vocab_size

    @property
    def buffers(self) -> tuple[object, ...]:
        return (self._runner.cache,)

    def allocate(self, num_rows: int, max_len: int) -> None:
        self._runner.allocate(num_rows, max_len)

    def prefill(
        self,
        tokens_BT: Tensor,
        positions_BT: Tensor,
        span: int,
        features: tuple[Tensor, ...],  # noqa: ARG002
        *,
        first_row: int = 0,
    ) -> None:
        last_1 = torch.full_like(tokens_BT[0, :1], tokens_BT.shape[1] - 1)
        self._runner.forward(
            self._known(tokens_BT), positions_BT, span, first_row=first_row, last_B=last_1
        )

    def propose(self, state: State, k: int, span: int, sampler: Sampler) -> Proposal:
        # The token before the current one is fed again: after a round in which every draft
        # was accepted it is the one the draft model has not seen, and else it costs nothing.
        positions_BT, next_BK = state.positions(-1, 2), state.positions(1, k)
        tokens_BT = state.tokens_at(positions_BT)
        drafts, laws = [], []
        for i in range(k):
            logits_BTV = self._runner.forward(self._known(tokens_BT), positions_BT, span).logits
            positions_BT = next_BK[:, i : i + 1]
            tokens_BT, law_BV = self._guess(logits_BTV, state.seed_B, positions_BT, sampler)
            drafts.append(tokens_BT)
            laws.append(law_BV)
        probs = None if sampler.is_greedy else torch.stack(laws, 1)
        return Proposal(torch.cat(drafts, 1), torch.full_like(state.budget_B, k), probs)

    def catch_up(self, state: State, num_tokens: int, span: int) -> None:
        positions_BT, tokens_BT = state.last(num_tokens)
        self.prefill(tokens_BT, positions_BT, span, ())

    def copy_row(self, source: int, destination: int, num_tokens: int) -> None:
        self._runner.copy_row(source, destination, num_tokens)

    def forwards(self, k: int) -> tuple[BareForward, ...]:
        return (BareForward(2, 1), BareForward(1, k - 1)) if k > 1 else (BareForward(2, 1),)

    def observe(self, state: State, num_emitted_B: Tensor, features: tuple[Tensor, ...]) -> None:
        """Rejected slots are overwritten by the next proposal: nothing to do."""

    def _guess(
        self, logits_BTV: Tensor, seed_B: Tensor, positions_B1: Tensor, sampler: Sampler
    ) -> tuple[Tensor, Tensor]:
        """A token [B, 1] and the law [B, V] it was drawn from, over the target's vocabulary."""
        if logits_BTV.shape[1] > 1:
            logits_BTV = logits_BTV[:, -1:]
        missing = self._target_vocab_size - logits_BTV.shape[-1]
        if missing < 0:
            logits_BTV = logits_BTV[..., :missing]
        if sampler.is_greedy:
            return logits_BTV.argmax(-1), logits_BTV[:, 0]
        law_B1V = torch.nn.functional.pad(sampler.probs(logits_BTV), (0, max(missing, 0)))
        return draw(law_B1V, seed_B, positions_B1, Purpose.DRAFT), law_B1V[:, 0]

    def _known(self, tokens: Tensor) -> Tensor:
        """Ids past the draft's vocabulary are padding of the target's; any id will do."""
        if self._runner.vocab_size >= self._target_vocab_size:
            return tokens
        return tokens.clamp(max=self._runner.vocab_size - 1)
