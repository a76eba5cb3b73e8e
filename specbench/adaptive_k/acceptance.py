"""How many drafts a round keeps: counts by position that fade, so that the text may change."""

from collections.abc import Sequence
from math import sqrt

from specbench.stats.acceptance import expected_tokens_by_k

# Before anything is seen, position 1 is kept as often as not, as if 3 drafts had said so.
# A later position is taken to be like the one before it, as if 12 drafts had said so: where K
# has not reached lately, the last rate seen goes on.
_FIRST_RATE = 0.5
_FIRST_WEIGHT = 3.0
_LIKE_THE_ONE_BEFORE = 12.0


class Acceptance:
    """P(draft i kept | drafts before it kept), pooled over rows; a missing draft is not kept."""

    def __init__(self, max_k: int, *, memory_rounds: float) -> None:
        self._num_tried = [0.0] * max_k
        self._num_kept = [0.0] * max_k
        self._fading = 1 - 1 / memory_rounds

    def observe(self, k: int, num_accepted: Sequence[int]) -> None:
        """Count one round at `k` > 0; one entry a live row."""
        self._scale(self._fading)
        for accepted in num_accepted:
            for i in range(accepted):
                self._num_kept[i] += 1
            for i in range(min(accepted + 1, k)):
                self._num_tried[i] += 1

    def weaken(self, num_rounds: float) -> None:
        """Let all that was seen weigh no more than `num_rounds` rounds of one row."""
        if self._num_tried[0] > num_rounds:
            self._scale(num_rounds / self._num_tried[0])

    def expected_tokens(self) -> list[float]:
        """Tokens a row emits in a round at K = 0, 1, .. the largest."""
        rates = []
        rate, weight = _FIRST_RATE, _FIRST_WEIGHT
        for tried, kept in zip(self._num_tried, self._num_kept, strict=True):
            rate = (kept + weight * rate) / (tried + weight)
            weight = _LIKE_THE_ONE_BEFORE
            rates.append(rate)
        return expected_tokens_by_k(rates)

    def relative_error(self, tokens: float) -> float:
        """Standard error of an estimate of `tokens` a round, as a share of it.

        Kept drafts are taken as geometric: with mean m their variance is m (m + 1).
        """
        kept = tokens - 1
        return sqrt(kept * tokens / (self._num_tried[0] + _FIRST_WEIGHT)) / tokens

    def _scale(self, share: float) -> None:
        self._num_tried = [n * share for n in self._num_tried]
        self._num_kept = [n * share for n in self._num_kept]
