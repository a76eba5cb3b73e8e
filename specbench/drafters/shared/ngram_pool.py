"""N-grams that each row has come across, found by their first token, on the device.

Shape suffixes: B rows, R all rows, S buckets, G n-grams of a bucket, P = S * G + 1 places,
M n-grams to add, N tokens of one.
"""

import torch
from torch import Tensor

_NUM_BUCKETS = 1024
_EMPTY = -1


class NgramPool:
    """The newest `size` n-grams of every bucket; a bucket is of first tokens modulo 1024."""

    def __init__(self, ngram: int, size: int, vocab_size: int, device: torch.device) -> None:
        self._size = size
        self._num_buckets = min(_NUM_BUCKETS, vocab_size)
        # The last place of a row is for what is not to be kept.
        num_places = self._num_buckets * size + 1
        self._grams_RPN = torch.full((0, num_places, ngram), _EMPTY, device=device)
        self._num_added_RS = torch.zeros(0, self._num_buckets, dtype=torch.long, device=device)

    @property
    def buffers(self) -> tuple[Tensor, ...]:
        return (self._grams_RPN, self._num_added_RS)

    def allocate(self, num_rows: int) -> None:
        """Make room; what the rows hold stays until it is cleared."""
        if num_rows > len(self._grams_RPN):
            _, P, N = self._grams_RPN.shape
            self._grams_RPN = self._grams_RPN.new_full((num_rows, P, N), _EMPTY)
            self._num_added_RS = self._num_added_RS.new_zeros(num_rows, self._num_buckets)

    def clear(self, first_row: int, is_cleared_B1: Tensor) -> None:
        """Forget the n-grams of those rows."""
        rows = slice(first_row, first_row + len(is_cleared_B1))
        self._grams_RPN[rows].masked_fill_(is_cleared_B1[..., None], _EMPTY)
        self._num_added_RS[rows].masked_fill_(is_cleared_B1, 0)

    def find(self, first_row: int, tokens_B1: Tensor) -> tuple[Tensor, Tensor]:
        """The n-grams [B, G, N] of each token's bucket, and which of them begin with it [B, G]."""
        grams_BGN = self._held(first_row, tokens_B1)[:, 0]
        return grams_BGN, grams_BGN[..., 0] == tokens_B1

    def add(self, first_row: int, grams_BMN: Tensor, is_added_BM: Tensor) -> None:
        """Add n-grams in their order, but for those that are there; the oldest make room."""
        B, M, N = grams_BMN.shape
        rows = slice(first_row, first_row + B)
        is_earlier_MM = torch.ones(M, M, dtype=torch.bool, device=grams_BMN.device).tril(-1)
        is_equal_BMM = (grams_BMN[:, :, None] == grams_BMN[:, None]).all(-1)
        is_again_BM = (is_equal_BMM & is_added_BM[:, None] & is_earlier_MM).any(-1)
        held_BMGN = self._held(first_row, grams_BMN[..., 0])
        is_held_BM = (held_BMGN == grams_BMN[:, :, None]).all(-1).any(-1)
        is_new_BM = is_added_BM & ~is_held_BM & ~is_again_BM

        # [b, m, i]: n-gram i is new and goes to the bucket of m.
        bucket_BM = grams_BMN[..., 0] % self._num_buckets
        beside_BMM = (bucket_BM[:, :, None] == bucket_BM[:, None]) & is_new_BM[:, None]
        num_before_BM = (beside_BMM & is_earlier_MM).sum(-1)
        num_after_BM = (beside_BMM & is_earlier_MM.T).sum(-1)
        is_kept_BM = is_new_BM & (num_after_BM < self._size)
        num_added_BS = self._num_added_RS[rows]
        turn_BM = (num_added_BS.gather(1, bucket_BM) + num_before_BM) % self._size
        spare = self._num_buckets * self._size
        place_BM = torch.where(is_kept_BM, bucket_BM * self._size + turn_BM, spare)
        self._grams_RPN[rows].scatter_(1, place_BM[..., None].expand(-1, -1, N), grams_BMN)
        num_added_BS.scatter_add_(1, bucket_BM, is_new_BM.long())

    def _held(self, first_row: int, tokens_BM: Tensor) -> Tensor:
        """All that is in the tokens' buckets [B, M, G, N]."""
        B, M = tokens_BM.shape
        N = self._grams_RPN.shape[2]
        first_BM1 = (tokens_BM % self._num_buckets * self._size)[..., None]
        places_BL = (first_BM1 + torch.arange(self._size, device=tokens_BM.device)).flatten(1)
        grams_BPN = self._grams_RPN[first_row : first_row + B]
        held_BLN = grams_BPN.gather(1, places_BL[..., None].expand(-1, -1, N))
        return held_BLN.view(B, M, self._size, N)
