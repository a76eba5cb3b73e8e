"""Lookahead decoding: drafts n-grams that the target completed in earlier rounds. No draft model.

Shape suffixes: B rows, R all rows, N tokens of an n-gram, L = N - 1 levels, W columns of the
window, G guesses, D tokens of a guess, K draft tokens, T tokens, V vocabulary. Suffixes of the
pool: S buckets, E n-grams per bucket, P = S * E + 1 entries, M n-grams to add, X = M * E entries.
"""

from functools import partial

import torch
from torch import Tensor

from specbench.decode.drafter import Capabilities, Chunk, Drafter, Outcome, Proposal
from specbench.decode.sampling import Purpose, Sampler, uniform
from specbench.decode.state import State
from specbench.drafters.registry import Parts, drafter
from specbench.footprint import NGRAM_BUCKETS
from specbench.forward.tree import ByDepth, Tree
from specbench.methods import lookahead_depth

_CHUNK_SIZE = 128  # n-grams of a prompt, compared pairwise
_EMPTY = -1


@drafter("lookahead")
class Lookahead(Drafter):
    """Feeds a window of guesses, collects the n-grams that it completes, and drafts from them.

    A round feeds `ngram` - 1 levels of `window` tokens, and up to `guesses` n-grams that begin with
    the current token. Each level has the target's predictions after the level above, from the
    previous round. Predictions after the last level complete `window` n-grams, and the levels move
    up. A fully accepted guess yields `ngram` tokens. The defaults feed 40 tokens per round, which a
    CPU can afford.
    """

    def __init__(
        self, parts: Parts, *, window: int, ngram: int, guesses: int, pool_from_prompt: bool
    ) -> None:
        device = parts.target.device
        # The drafts are n-grams of earlier rounds, so they depend on these rounds.
        self.capabilities = Capabilities(max_k=lookahead_depth(ngram), repeatability="none")
        self._window, self._ngram, self._num_levels = window, ngram, ngram - 1
        self._pool_from_prompt = pool_from_prompt
        self._pool = NgramPool(ngram, guesses, parts.target.vocab_size, device)
        self._shapes = ByDepth(partial(round_shape, ngram - 1, window, guesses, device))
        zeros = torch.zeros(0, ngram - 1, window, dtype=torch.long, device=device)
        self._levels_RLW = zeros
        self._num_filled_R = zeros[:, 0, 0]  # levels with predictions of the target

    @property
    def buffers(self) -> tuple[Tensor, ...]:
        return (self._levels_RLW, self._num_filled_R, *self._pool.buffers)

    def allocate(self, num_rows: int, max_len: int) -> None:  # noqa: ARG002
        self._pool.allocate(num_rows)
        if num_rows > len(self._num_filled_R):
            self._levels_RLW = self._levels_RLW.new_zeros(num_rows, self._num_levels, self._window)
            self._num_filled_R = self._num_filled_R.new_ones(num_rows)

    def num_drafts(self, k: int) -> int:
        return self._shapes[min(k, self._num_levels)].parents_BK.shape[1]

    def prefill(self, state: State, chunk: Chunk) -> None:
        """Clear the row at the start of a prompt, and fill level 0 with tokens of the prompt.

        The next turn of a conversation starts at a later position, so it keeps the n-grams.
        """
        levels_BLW, num_filled_B = self._rows(state)
        begins_B1 = chunk.positions_BT[:, :1] == 0
        columns_BW = state.places(self._window).expand(state.num_rows, -1)
        uniform_BW = uniform(state.seed_B, columns_BW, Purpose.DRAFT)
        drawn_BW = (uniform_BW * state.length_B1).long().minimum(state.length_B1 - 1)
        seeds_B1W = state.tokens_at(drawn_BW)[:, None]
        levels_BLW.copy_(torch.where(begins_B1[..., None], seeds_B1W, levels_BLW))
        num_filled_B.masked_fill_(begins_B1[:, 0], 1)
        self._pool.clear(state.first_row, begins_B1)
        if self._pool_from_prompt:
            self._collect(state, chunk.positions_BT)

    def _collect(self, state: State, positions_BT: Tensor) -> None:
        """Add the n-grams of the prompt that end at these positions."""
        for first in range(0, positions_BT.shape[1], _CHUNK_SIZE):
            ends_BT = positions_BT[:, first : first + _CHUNK_SIZE]
            begins_BT1 = ends_BT[..., None] - self._num_levels
            is_whole_BT = (begins_BT1[..., 0] >= 0) & (ends_BT < state.length_B1)
            positions_BTN = (begins_BT1 + state.places(self._ngram)).clamp(min=0)
            grams_BTN = state.tokens_at(positions_BTN.flatten(1)).view_as(positions_BTN)
            self._pool.add(state.first_row, grams_BTN, is_whole_BT)

    def propose(self, state: State, k: int, span: int, sampler: Sampler) -> Proposal:  # noqa: ARG002
        B, depth = state.num_rows, min(k, self._num_levels)
        levels_BLW, _ = self._rows(state)
        window_BK = levels_BLW.flatten(1)[:, 1:]  # without the current token, which comes first
        grams_BGN, is_found_BG = self._pool.find(state.first_row, state.tokens_at(state.length_B1))
        guesses_BGD = grams_BGN[..., 1 : 1 + depth].clamp(min=0)
        is_active_BGD = is_found_BG[..., None].expand_as(guesses_BGD)
        is_active_BK = torch.cat(
            [torch.zeros_like(window_BK, dtype=torch.bool), is_active_BGD.flatten(1)], 1
        )
        shape = self._shapes[depth]
        tree = Tree(
            parents_BK=shape.parents_BK.expand(B, -1),
            depths_BN=shape.depths_BN.expand(B, -1),
            seen_BNN=shape.seen_BNN.expand(B, -1, -1),
            is_active_BK=is_active_BK,
            depth=depth,
        )
        tokens_BK = torch.cat([window_BK, guesses_BGD.flatten(1)], 1)
        return Proposal(tokens_BK, is_active_BK.sum(1), tree=tree)

    def observe(self, state: State, outcome: Outcome) -> None:
        """Collect the n-grams that the last level completes, and set the levels of the next round.

        Until all levels are filled, each round fills one more and completes no n-gram.
        """
        if outcome.tokens_BN.shape[1] == 1:  # a prefill or a round at K = 0: no window was fed
            return
        L, W = self._num_levels, self._window
        levels_BLW, num_filled_B = self._rows(state)
        is_running_B = outcome.num_emitted_B > 0
        fed_BLW = outcome.tokens_BN[:, : L * W].reshape(-1, L, W)
        rows_B1 = torch.arange(state.num_rows, device=num_filled_B.device)[:, None]
        newest_BW = (num_filled_B[:, None] - 1) * W + state.places(W)
        predicted_B1W = outcome.logits_BNV[rows_B1, newest_BW].argmax(-1)[:, None]

        is_full_B = num_filled_B == L
        grams_BWN = torch.cat([fed_BLW, predicted_B1W], 1).transpose(1, 2)
        is_added_BW = (is_running_B & is_full_B)[:, None].expand(-1, W)
        self._pool.add(state.first_row, grams_BWN, is_added_BW)

        is_next_BL1 = (state.places(L) == num_filled_B[:, None])[..., None]
        longer_BLW = torch.where(is_next_BL1, predicted_B1W, levels_BLW)
        moved_BLW = torch.cat([levels_BLW[:, 1:], predicted_B1W], 1)
        next_BLW = torch.where(is_full_B[:, None, None], moved_BLW, longer_BLW)
        levels_BLW.copy_(torch.where(is_running_B[:, None, None], next_BLW, levels_BLW))
        num_filled_B.add_(is_running_B & ~is_full_B)

    def _rows(self, state: State) -> tuple[Tensor, Tensor]:
        return state.rows_of(self._levels_RLW), state.rows_of(self._num_filled_R)


def round_shape(
    num_levels: int, window: int, num_guesses: int, device: torch.device, depth: int
) -> Tree:
    """The tree of one row: the window level by level, current token first, then the guesses.

    A token of the window attends to level 0 up to its own column, and to the lower levels of this
    column down to itself. A token of a guess attends to the current token and the guess so far.
    """
    seen = [
        [*range(column + 1), *(column + i * window for i in range(1, level + 1))]
        for level in range(num_levels)
        for column in range(window)
    ]
    for first in range(num_levels * window, num_levels * window + num_guesses * depth, depth):
        seen += [[0, *range(first, first + i)] for i in range(1, depth + 1)]
    num_window = num_levels * window - 1
    seen_1NN = torch.zeros(1, len(seen), len(seen), dtype=torch.bool)
    for node, row in enumerate(seen):
        seen_1NN[0, node, row] = True
    return Tree(
        parents_BK=torch.tensor([[row[-2] for row in seen[1:]]], device=device),
        depths_BN=torch.tensor([[len(row) - 1 for row in seen]], device=device),
        seen_BNN=seen_1NN.to(device),
        is_active_BK=torch.tensor([[i >= num_window for i in range(len(seen) - 1)]], device=device),
        depth=depth,
    )


class NgramPool:
    """The n-grams of each row, on the device: the newest `size` of every bucket.

    A bucket holds the n-grams whose first token is the same modulo the number of buckets.
    """

    def __init__(self, ngram: int, size: int, vocab_size: int, device: torch.device) -> None:
        self._size = size
        self._num_buckets = min(NGRAM_BUCKETS, vocab_size)
        # Writes to be discarded go to the last entry of a row.
        num_entries = self._num_buckets * size + 1
        self._grams_RPN = torch.full((0, num_entries, ngram), _EMPTY, device=device)
        self._num_added_RS = torch.zeros(0, self._num_buckets, dtype=torch.long, device=device)

    @property
    def buffers(self) -> tuple[Tensor, ...]:
        return (self._grams_RPN, self._num_added_RS)

    def allocate(self, num_rows: int) -> None:
        """Allocate at least `num_rows` rows; `clear` empties them."""
        if num_rows > len(self._grams_RPN):
            _, P, N = self._grams_RPN.shape
            self._grams_RPN = self._grams_RPN.new_full((num_rows, P, N), _EMPTY)
            self._num_added_RS = self._num_added_RS.new_zeros(num_rows, self._num_buckets)

    def clear(self, first_row: int, is_cleared_B1: Tensor) -> None:
        """Remove the n-grams of these rows."""
        rows = slice(first_row, first_row + len(is_cleared_B1))
        self._grams_RPN[rows].masked_fill_(is_cleared_B1[..., None], _EMPTY)
        self._num_added_RS[rows].masked_fill_(is_cleared_B1, 0)

    def find(self, first_row: int, tokens_B1: Tensor) -> tuple[Tensor, Tensor]:
        """The n-grams [B, E, N] of each token's bucket, and which of them begin with it [B, E]."""
        grams_BEN = self._bucket(first_row, tokens_B1)[:, 0]
        return grams_BEN, grams_BEN[..., 0] == tokens_B1

    def add(self, first_row: int, grams_BMN: Tensor, is_added_BM: Tensor) -> None:
        """Add n-grams that are not in the pool, in order; they replace the oldest of the bucket."""
        B, M, N = grams_BMN.shape
        rows = slice(first_row, first_row + B)
        is_earlier_MM = torch.ones(M, M, dtype=torch.bool, device=grams_BMN.device).tril(-1)
        is_equal_BMM = (grams_BMN[:, :, None] == grams_BMN[:, None]).all(-1)
        is_repeated_BM = (is_equal_BMM & is_added_BM[:, None] & is_earlier_MM).any(-1)
        stored_BMEN = self._bucket(first_row, grams_BMN[..., 0])
        is_stored_BM = (stored_BMEN == grams_BMN[:, :, None]).all(-1).any(-1)
        is_new_BM = is_added_BM & ~is_stored_BM & ~is_repeated_BM

        # shares_bucket_BMM[b, m, i]: n-gram i is new and goes to the bucket of n-gram m.
        bucket_BM = grams_BMN[..., 0] % self._num_buckets
        shares_bucket_BMM = (bucket_BM[:, :, None] == bucket_BM[:, None]) & is_new_BM[:, None]
        num_before_BM = (shares_bucket_BMM & is_earlier_MM).sum(-1)
        num_after_BM = (shares_bucket_BMM & is_earlier_MM.T).sum(-1)
        is_kept_BM = is_new_BM & (num_after_BM < self._size)
        num_added_BS = self._num_added_RS[rows]
        index_BM = (num_added_BS.gather(1, bucket_BM) + num_before_BM) % self._size
        discarded = self._num_buckets * self._size
        entry_BM = torch.where(is_kept_BM, bucket_BM * self._size + index_BM, discarded)
        self._grams_RPN[rows].scatter_(1, entry_BM[..., None].expand(-1, -1, N), grams_BMN)
        num_added_BS.scatter_add_(1, bucket_BM, is_new_BM.long())

    def _bucket(self, first_row: int, tokens_BM: Tensor) -> Tensor:
        """The n-grams in the bucket of each token [B, M, E, N]."""
        B, M = tokens_BM.shape
        N = self._grams_RPN.shape[2]
        first_BM1 = (tokens_BM % self._num_buckets * self._size)[..., None]
        entries_BX = (first_BM1 + torch.arange(self._size, device=tokens_BM.device)).flatten(1)
        grams_BPN = self._grams_RPN[first_row : first_row + B]
        stored_BXN = grams_BPN.gather(1, entries_BX[..., None].expand(-1, -1, N))
        return stored_BXN.view(B, M, self._size, N)
