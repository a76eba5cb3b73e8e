"""How much room the decoder takes: sizes of its tensors as pure numbers.

The decoder allocates by these, and a plan made from configs alone counts by them.
"""

from collections.abc import Sequence
from math import isqrt
from typing import NamedTuple

SPAN_STEP = 64  # attention reads slots in steps of this many, so that kernel shapes are few
SPAN_BUCKET_MIN, SPAN_BUCKET_STEP = 256, 4096  # slots
PREFILL_CHUNK = 512  # tokens of a prompt that are fed at once
PREFILL_LOGITS = 2**25  # at once: a stock forward computes them for every pair of rows
MOST_DRAFTS = 256  # of one row in one round
# A row's recurrent states beside those that a round's drafts leave: the one that it begins with,
# that of the current token, and the one before it, which another turn or a draft model's next
# round begins with.
STATES_BESIDE_DRAFTS = 3
NGRAM_BUCKETS = 1024  # of a row's pool of n-grams; at most one per token of the vocabulary
DEEPEST_BEAM = 16  # levels of a dynamic tree; its authors go to 8
KEPT_TOKENS = 256  # a fused forward of more is a prefill; its tensors are not kept


class Sizes(NamedTuple):
    """What the shapes of a model's tensors are made of."""

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
        """Elements a token that a fused forward writes: hidden state, q-k-v, gate-up, heads'
        output, packed queries. `mirrored` keeps the hidden state's negative beside it."""
        query, kv = self.query_heads * self.head, self.kv_heads * self.head
        packed = query if self.group > 1 else 0
        return ((1 + mirrored) * self.hidden, query + 2 * kv, 2 * self.mlp, query, packed)


def rows_prefilled_together(vocab_size: int) -> int:
    """The most neighbouring rows whose prompts are fed side by side."""
    return max(isqrt(PREFILL_LOGITS // vocab_size), 1)


def row_slots(num_tokens: int, device: str) -> int:
    """The KV slots of a row for so many tokens; graphs, on CUDA, are made for few sizes."""
    return span_bucket(num_tokens) if device == "cuda" else rounded_up(num_tokens)


def span_bucket(num_tokens: int) -> int:
    """The slots a captured round attends to: few kinds of graphs, little waste.

    Powers of two from 256 to 4096, then multiples of 4096, where a power would read too much.
    """
    power = 1 << (num_tokens - 1).bit_length()
    return rounded_up(num_tokens, min(max(power, SPAN_BUCKET_MIN), SPAN_BUCKET_STEP))


def rounded_up(num_tokens: int, step: int = SPAN_STEP) -> int:
    """The next multiple of `step`."""
    return -(-num_tokens // step) * step


def num_dynamic_drafts(depth: int, top_k: int, most: int) -> int:
    """Drafts that a beam of `top_k` tokens a level has to choose from, `most` at most."""
    return min(most, top_k + (depth - 1) * top_k * top_k)


def num_dynamic_slots(depth: int, top_k: int) -> int:
    """Slots past the current token's that such a beam writes; more than drafts, maybe."""
    return top_k * (depth - 1)


def num_static_drafts(widths: Sequence[int], depth: int) -> int:
    """Nodes of a tree whose level i has widths[i] children a node, one past the list's end."""
    level, total = 1, 0
    for i in range(depth):
        level *= widths[i] if i < len(widths) else 1
        total += level
    return total


def spare_slots(top_k: int, most: int) -> int:
    """Slots of a row that the deepest beam takes beyond those of the drafts chosen from it."""
    depths = range(1, DEEPEST_BEAM + 1)
    return max(
        0,
        *(num_dynamic_slots(d, top_k) - num_dynamic_drafts(d, top_k, most) for d in depths),
    )
