"""All drafts of a round from one forward over a block of masks.

Shape suffixes: B rows, K drafts, N = K + 1 tokens of a block, V vocabulary.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from torch import Tensor

from specbench.decode.drafter import (
    Chunk,
    Footprint,
    Outcome,
    OwnForward,
    PlainDrafter,
    Proposal,
    RowBuffer,
    Traits,
)
from specbench.decode.growth import grow_block
from specbench.decode.head_part import HeadPart
from specbench.decode.sampling import Sampler
from specbench.decode.state import State
from specbench.drafters.heads.dflash import DFlashHead, new_dflash_checkpoint
from specbench.drafters.registry import Parts, drafter
from specbench.methods import NEW_BLOCK_SIZE
from specbench.models.checkpoint import Checkpoint


@drafter("dflash")
class DFlash(PlainDrafter):
    """Drafts with a block of masks, which one forward fills in.

    The block is the current token and K masks, K below the head's block size (of some heads the
    current token's place says the first draft: one mask less); the head sees the target's
    hidden states at all tokens before. Drafts do not know of each other, so above
    temperature 0 each is drawn from a distribution of its own, whatever the others are.
    """

    def __init__(self, parts: Parts) -> None:
        self.head = DFlashHead(parts.checkpoint(), parts.target)
        self.traits = Traits(features=self.head.features, max_k=self.head.depth)

    @staticmethod
    def new_checkpoint(
        config: Any, seed: int, *, num_layers: int = 5, block_size: int = NEW_BLOCK_SIZE
    ) -> Checkpoint:
        """A head with random weights for a target with this transformers config."""
        return new_dflash_checkpoint(config, seed, num_layers=num_layers, block_size=block_size)

    @cached_property
    def footprint(self) -> Footprint:
        return Footprint(
            keeps=self.head.layers,
            weights=self.head.weights,
            head_parts=self._head_parts(),
            forwards=lambda k: (
                OwnForward(k + 1, 1, "observe"),
                OwnForward(self.head.num_places(k), 1, "block"),
            ),
        )

    def _head_parts(self) -> Mapping[str, HeadPart]:
        """`observe` writes keys and values and looks at none, `block` fills in the masks."""
        head = self.head
        weight_F = head.model.norm.weight
        feature_11F = weight_F.new_zeros(1, 1, len(weight_F))

        def observe(tokens_1T: Tensor, positions_1T: Tensor, span: int) -> None:
            features = (feature_11F.expand(-1, tokens_1T.shape[1], -1),) * len(head.features)
            head.see(features, positions_1T, span, 0)

        def block(tokens_1T: Tensor, positions_1T: Tensor, span: int) -> Tensor:
            return head.logits(tokens_1T[:, :1], positions_1T, span, 0)

        num_layers = len(head.layers.layers)
        return {
            "observe": HeadPart(run=observe, weights=head.reads_to_see, layers=head.layers),
            "block": HeadPart(
                run=block,
                weights=head.reads_to_say,
                layers=head.layers,
                num_attending=num_layers,
            ),
        }

    @property
    def buffers(self) -> tuple[RowBuffer, ...]:
        return (self.head.layers.cache,)

    def allocate(self, num_rows: int, max_len: int) -> None:
        self.head.layers.allocate(num_rows, max_len)

    def prefill(self, state: State, chunk: Chunk) -> None:
        self.head.see(chunk.features, chunk.positions_BT, chunk.span, state.first_row)

    def observe(self, state: State, outcome: Outcome) -> None:
        """What follows the accepted tokens is overwritten by the next block."""
        self.head.see(outcome.features, outcome.positions_BT, outcome.span, state.first_row)

    def propose(self, state: State, k: int, span: int, sampler: Sampler) -> Proposal:
        current_B1 = state.tokens_at(state.length_B1)
        places_BN = state.positions(0, self.head.num_places(k))
        logits_BKV = self.head.logits(current_B1, places_BN, span, state.first_row)
        return grow_block(state, logits_BKV, sampler)
