"""Drafts from a reference text that the output is expected to resemble (predicted output).

Shape suffixes: B rows, K draft tokens, W new tokens compared, P reference tokens, R all rows.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from specbench.decode.drafter import Capabilities, Chunk, Drafter, Proposal, Repeatability
from specbench.decode.sampling import Sampler
from specbench.decode.state import State
from specbench.drafters.registry import Parts, drafter


@drafter("previous_turn")
class PreviousTurn(Drafter):
    """Drafts from a reference text, at an index that advances with the output.

    The index advances while output and reference agree. After a mismatch, the reference is searched
    for the last `max_ngram` tokens of the output, then for fewer; matches ahead of the index take
    precedence. An output token that the reference lacks counts as a replacement.

    With `verify_prediction_first`, one forward pass verifies the whole reference after the first
    output token, if the reference contains that token. Rounds continue from the first difference.
    This long pass replaces many rounds if the output begins like the reference, and costs little
    otherwise.
    """

    def __init__(self, parts: Parts, *, max_ngram: int, verify_prediction_first: bool) -> None:
        self._max_ngram = max_ngram
        self._checks_predicted_output = verify_prediction_first
        # The nearest match depends on the previous index. How many tokens are left for rounds after
        # the reference was verified is known only once that has run.
        repeatability: Repeatability = "none" if verify_prediction_first else "approximate"
        self.capabilities = Capabilities(chains_nest=True, repeatability=repeatability)
        self._device = parts.target.device
        self._make_buffers(0, 0)

    @property
    def buffers(self) -> tuple[Tensor, ...]:
        return (self._reference_RP, self._size_R1, self._index_R1, self._position_R1)

    def allocate(self, num_rows: int, max_len: int) -> None:
        R, P = self._reference_RP.shape
        if num_rows > R or max_len > P:
            self._make_buffers(max(num_rows, R), max(max_len, P))
        self._size_R1.zero_()

    def _make_buffers(self, num_rows: int, num_tokens: int) -> None:
        def zeros(width: int) -> Tensor:
            return torch.zeros(num_rows, width, dtype=torch.long, device=self._device)

        self._reference_RP = zeros(num_tokens)
        self._size_R1 = zeros(1)
        # The reference token at `index` is the prediction for `position`, the first position of
        # the output that has not been matched.
        self._index_R1, self._position_R1 = zeros(1), zeros(1)

    def begin(self, state: State, predictions: Sequence[Sequence[int]]) -> None:
        num_tokens = self._reference_RP.shape[1]
        truncated = [list(tokens[:num_tokens]) for tokens in predictions]
        longest = max(map(len, truncated))
        padded = [[*tokens, *[0] * (longest - len(tokens))] for tokens in truncated]
        state.rows_of(self._reference_RP)[:, :longest].copy_(torch.tensor(padded))
        state.rows_of(self._size_R1).copy_(torch.tensor([[len(tokens)] for tokens in truncated]))

    def prefill(self, state: State, chunk: Chunk) -> None:  # noqa: ARG002
        state.rows_of(self._index_R1).zero_()
        state.rows_of(self._position_R1).copy_(state.length_B1)

    def propose(self, state: State, k: int, span: int, sampler: Sampler) -> Proposal:  # noqa: ARG002
        return self._continuation(state, k)

    def predicted_output(self, state: State, most: int) -> Proposal | None:
        if not self._checks_predicted_output:
            return None
        proposal = self._continuation(state, most)
        is_matched_B = (state.rows_of(self._position_R1) > state.length_B1)[:, 0]
        return proposal._replace(num_drafted_B=proposal.num_drafted_B * is_matched_B)

    def catch_up(self, state: State, num_tokens: int, span: int) -> None:  # noqa: ARG002
        self._advance(state, num_tokens)

    def _continuation(self, state: State, k: int) -> Proposal:
        """Up to k reference tokens that follow the current output."""
        reference_BP = state.rows_of(self._reference_RP)
        size_B1 = state.rows_of(self._size_R1)
        index_B1 = state.rows_of(self._index_R1)
        position_B1 = state.rows_of(self._position_R1)

        self._advance(state, k + 1)
        next_B1 = state.length_B1 + 1
        found_B1 = self._find(state, reference_BP, size_B1, index_B1)
        is_unmatched_B1 = position_B1 < next_B1
        is_found_B1 = is_unmatched_B1 & (found_B1 > 0)
        index_B1.copy_(torch.where(is_found_B1, found_B1, index_B1))
        position_B1.copy_(torch.where(is_found_B1, next_B1, position_B1))

        begin_B1 = index_B1 + next_B1 - position_B1
        num_left_B1 = (size_B1 - begin_B1).clamp(0, k)
        indices_BK = (begin_B1 + state.places(k)).clamp(max=reference_BP.shape[1] - 1)
        return Proposal(reference_BP.gather(1, indices_BK), num_left_B1[:, 0])

    def _advance(self, state: State, num_tokens: int) -> None:
        """Advance index and position past up to `num_tokens` output tokens that match."""
        num_equal_B1 = self._num_equal(state, num_tokens)
        state.rows_of(self._index_R1).add_(num_equal_B1)
        state.rows_of(self._position_R1).add_(num_equal_B1)

    def _num_equal(self, state: State, num_tokens: int) -> Tensor:
        """The number of output tokens from `position` on that match the reference [B, 1]."""
        indices_BW = state.rows_of(self._index_R1) + state.places(num_tokens)
        positions_BW = state.rows_of(self._position_R1) + state.places(num_tokens)
        reference_BP = state.rows_of(self._reference_RP)
        expected_BW = reference_BP.gather(1, indices_BW.clamp(max=reference_BP.shape[1] - 1))
        tokens_BW = state.tokens_at(positions_BW.clamp(max=state.capacity - 1))
        is_equal_BW = (
            (tokens_BW == expected_BW)
            & (indices_BW < state.rows_of(self._size_R1))
            & (positions_BW <= state.length_B1)
        )
        return is_equal_BW.cumprod(1).sum(1, keepdim=True)

    def _find(
        self, state: State, reference_BP: Tensor, size_B1: Tensor, index_B1: Tensor
    ) -> Tensor:
        """The index after the longest match of the output's end, the nearest if tied; 0 if there is
        none [B, 1]."""
        P = reference_BP.shape[1]
        ends_P = torch.arange(1, P + 1, device=reference_BP.device)
        match_length_BP = torch.zeros_like(reference_BP)
        is_match_BP = ends_P <= size_B1
        for j in range(self._max_ngram):
            token_B1 = state.tokens_at((state.length_B1 - j).clamp(min=0))
            shifted_BP = pad(reference_BP, (j, 0), value=-1)[:, :P]
            is_match_BP = is_match_BP & (shifted_BP == token_B1)
            match_length_BP = match_length_BP + is_match_BP
        ahead_BP = ends_P - index_B1
        distance_BP = torch.where(ahead_BP > 0, ahead_BP, P - ahead_BP)
        best_match_B1 = (match_length_BP * (2 * P + 1) - distance_BP).argmax(1, keepdim=True)
        return torch.where(match_length_BP.gather(1, best_match_B1) > 0, best_match_B1 + 1, 0)
