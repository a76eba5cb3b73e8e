"""The memory that the decoder needs: the sizes of its tensors, without torch.

The decoder allocates with these sizes, and memory plans, which read only configs, add them up.
"""

from collections.abc import Sequence
from math import isqrt
from typing import NamedTuple

SPAN_STEP = 64  # attention spans are rounded up to it, so that kernel shapes are few
SPAN_BUCKET_MIN, SPAN_BUCKET_STEP = 256, 4096  # slots
PREFILL_CHUNK = 512  # tokens of a prompt per forward pass
# Per forward pass: a stock one computes logits for every position of every row.
PREFILL_LOGITS = 2**25
MOST_DRAFTS = 256  # per row and round
# Recurrent states per row in addition to one per draft token: the state at the start of a round,
# the one after the current token, and the one before it, from which the next turn or a draft
# model's next round starts.
STATES_BESIDE_DRAFTS = 3
NGRAM_BUCKETS = 1024  # per row in its pool of n-grams; at most one per token of the vocabulary
DEEPEST_BEAM = 16  # levels of a dynamic tree; its authors use up to 8
KEPT_TOKENS = 256  # a fused forward of more tokens is a prefill, whose tensors are freed


class Sizes(NamedTuple):
    """The dimensions of a model's tensors."""

    hidden: int
    query_heads: int
    kv_heads: int
    head: int
    mlp: int

    @property
    def group(self) -> int:
        """Query heads that share a key/value head."""
        return self.query_heads // self.kv_heads

    def widths(self, *, mirrored: bool) -> tuple[int, ...]:
        """Elements per token that a fused forward writes: hidden state, q-k-v, gate-up, heads'
        output, packed queries. `mirrored` stores the negated hidden state as well."""
        query, kv = self.query_heads * self.head, self.kv_heads * self.head
        packed = query if self.group > 1 else 0
        return ((1 + mirrored) * self.hidden, query + 2 * kv, 2 * self.mlp, query, packed)


def rows_prefilled_together(vocab_size: int) -> int:
    """The largest number of adjacent rows whose prompts are prefilled in one forward pass."""
    return max(isqrt(PREFILL_LOGITS // vocab_size), 1)


def row_slots(num_tokens: int, device: str) -> int:
    """KV slots of a row for `num_tokens`; on CUDA one of few sizes, because of graphs."""
    return span_bucket(num_tokens) if device == "cuda" else rounded_up(num_tokens)


def span_bucket(num_tokens: int) -> int:
    """The slots that a captured round attends to: few different graphs, little waste.

    Powers of two from 256 to 4096, then multiples of 4096, because a power would read too much.
    """
    power = 1 << (num_tokens - 1).bit_length()
    return rounded_up(num_tokens, min(max(power, SPAN_BUCKET_MIN), SPAN_BUCKET_STEP))


def rounded_up(num_tokens: int, step: int = SPAN_STEP) -> int:
    """The next multiple of `step`."""
    return -(-num_tokens // step) * step


def num_dynamic_drafts(depth: int, top_k: int, most: int) -> int:
    """Draft tokens that a beam of `top_k` tokens per level chooses from, at most `most`."""
    return min(most, top_k + (depth - 1) * top_k * top_k)


def num_dynamic_slots(depth: int, top_k: int) -> int:
    """Slots past the current token's that such a beam writes; they may be more than its draft
    tokens."""
    return top_k * (depth - 1)


def num_static_drafts(widths: Sequence[int], depth: int) -> int:
    """Nodes of a tree whose nodes at level i have widths[i] children each, one past the list's
    end."""
    level, total = 1, 0
    for i in range(depth):
        level *= widths[i] if i < len(widths) else 1
        total += level
    return total


def spare_slots(top_k: int, most: int) -> int:
    """Slots of a row that the deepest beam takes in addition to those of the draft tokens chosen
    from it."""
    depths = range(1, DEEPEST_BEAM + 1)
    return max(
        0,
        *(num_dynamic_slots(d, top_k) - num_dynamic_drafts(d, top_k, most) for d in depths),
    )
