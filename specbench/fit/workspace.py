"""What the decoder allocates beside weights and keys: logits, masks, probabilities, activations.

Counted as forward/workspace.py, state.py, sampling.py and rows.py allocate. Letters: B rows,
T tokens a row, S slots, V vocabulary.
"""

from dataclasses import dataclass

from specbench.footprint import KEPT_TOKENS, PREFILL_CHUNK, Sizes, rows_prefilled_together

_PROBABILITY = 4  # bytes of a probability
_TOKEN = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Layers:
    """A model's layers as far as their temporary tensors go; `size` is bytes of a number."""

    sizes: Sizes
    vocab_size: int
    size: int
    mirrored: bool  # as forward/fused_layers.py keeps its hidden state on a CPU

    @property
    def kept_bytes(self) -> int:
        """What a forward of few tokens writes into, made once."""
        return KEPT_TOKENS * sum(self.sizes.widths(mirrored=self.mirrored)) * self.size

    def rotary_bytes(self, capacity: int) -> int:
        """A table of sines and cosines by position."""
        return capacity * 2 * self.sizes.head * self.size

    def forward_bytes(self, rows: int, tokens: int, span: int, num_logits: int) -> int:
        """The most that is alive at once in a forward of B x T tokens.

        `num_logits` are the tokens a row whose logits are asked for; a `span` of 0 needs no mask.
        """
        sizes, num_tokens = self.sizes, rows * tokens
        query, kv = sizes.query_heads * sizes.head, sizes.kv_heads * sizes.head
        made = (1 + self.mirrored) * sizes.hidden + max(query + kv, query, sizes.mlp)
        scratch = sum(sizes.widths(mirrored=self.mirrored)) if num_tokens > KEPT_TOKENS else 0
        mask = rows * sizes.group * tokens * span
        logits = rows * num_logits * self.vocab_size
        return (num_tokens * (made + scratch) + mask + logits) * self.size

    def prefill_bytes(self, rows: int, context: int) -> int:
        """For a chunk of the prompts of as many rows as are fed together."""
        together = min(rows, rows_prefilled_together(self.vocab_size))
        return self.forward_bytes(together, min(PREFILL_CHUNK, context), 0, 1)


def state_bytes(rows: int, capacity: int) -> int:
    """Prompt and output of every row, by position."""
    return rows * capacity * _TOKEN


def sampling_bytes(rows: int, num_drafts: int, vocab_size: int, *, draws: bool) -> int:
    """Probabilities of a sampled round: scores, noise and p of every node, and the drafts' q.

    At temperature 0 there are none: a chain is matched with the likeliest tokens.
    """
    nodes = rows * (num_drafts + 1) * vocab_size
    of_drafts = 2 * rows * num_drafts * vocab_size if draws else 0
    noise = 2 * _TOKEN * nodes  # a hash is mixed in 64 bits
    return (3 * nodes + of_drafts) * _PROBABILITY + noise
