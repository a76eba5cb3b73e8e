"""DSpark: a DFlash block whose tokens are drafted in turn, each biased by the one before.

Shape suffixes: B rows, T tokens, K draft tokens, F hidden size, D the tokens that a head can draft,
R rank of the Markov head, V vocabulary.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding

from specbench.decode.drafter import DrafterForward, HeadPart, Proposal, Resources
from specbench.decode.sampling import Sampler
from specbench.decode.state import State
from specbench.drafters.dflash import DFlash, DFlashHead
from specbench.drafters.registry import drafter
from specbench.files.dflash import DSPARK_ARCHITECTURE, MARKOV
from specbench.methods import NEW_BLOCK_SIZE
from specbench.models.checkpoint import Checkpoint

_NEW_RANK = 16


class DSparkHead(DFlashHead):
    """A DFlash head with a product of rank R that adds to a token's logits by the token before it.

    A confidence head, which estimates whether a draft token is accepted, is not read: without p_min
    every round drafts K tokens.
    """

    method = "dspark"

    @property
    def markov(self) -> tuple[Tensor, ...]:
        """The embedding [V, R] and the output matrix [D, R] of the bias; () without one."""
        return tuple(self.taken[name] for name in MARKOV) if self.style.markov_rank else ()

    @property
    def weights(self) -> tuple[Tensor, ...]:
        return (*super().weights, *self.markov)

    def bias(self, tokens_BT: Tensor) -> Tensor:
        """What is added to the logits [B, T, D] of the tokens after these."""
        before_VR, after_DR = self.markov
        return embedding(tokens_BT, before_VR) @ after_DR.T


@drafter("dspark")
class DSpark(DFlash):
    """Drafts with a DSpark head: one forward over a block of masks, then token by token."""

    open_head = DSparkHead
    head: DSparkHead

    @staticmethod
    def new_checkpoint(
        config: Any,
        seed: int,
        *,
        num_layers: int = 5,
        block_size: int = NEW_BLOCK_SIZE - 1,
        markov_rank: int = _NEW_RANK,
    ) -> Checkpoint:
        """A head with random weights for a target with this transformers config, named as DeepSeek
        names its heads'."""
        made = DFlash.new_checkpoint(config, seed, num_layers=num_layers, block_size=block_size)
        fields = {**made.config, **made.config["dflash_config"], "markov_rank": markov_rank}
        del fields["dflash_config"]
        fields["architectures"] = [DSPARK_ARCHITECTURE]
        generator = torch.Generator("cpu").manual_seed(seed)
        V = config.get_text_config().vocab_size
        tensors = {
            name: torch.randn(V, markov_rank, generator=generator, device="cpu") * scale
            for name, scale in zip(MARKOV, (1.0, fields["initializer_range"]), strict=True)
            if markov_rank
        }
        return replace(made, config=fields, tensors={**made.tensors, **tensors})

    @cached_property
    def resources(self) -> Resources:
        block, num_biases = super().resources, 1 if self.head.markov else 0
        return replace(
            block,
            forwards=lambda k: (*block.forwards(k), *(DrafterForward(1, "bias"),) * k * num_biases),
        )

    def _head_parts(self) -> Mapping[str, HeadPart]:
        """Those of the block, and `bias`, which adds to the logits of one token."""
        head, parts = self.head, super()._head_parts()
        if not head.markov:
            return parts

        def bias(tokens_1T: Tensor, positions_1T: Tensor, span: int) -> Tensor:  # noqa: ARG001
            return head.bias(tokens_1T)

        return {**parts, "bias": HeadPart(run=bias, weights=head.markov[1:])}

    def propose(self, state: State, k: int, span: int, sampler: Sampler) -> Proposal:
        head = self.head
        if not head.markov:
            return super().propose(state, k, span, sampler)
        logits_BKD = head.own_logits(*self.block(state, k), span, state.first_row)

        def logits_after(i: int, tokens_B1: Tensor) -> Tensor:
            return head.for_target(logits_BKD[:, i : i + 1] + head.bias(tokens_B1))

        return self.draft_in_turn(state, k, sampler, logits_after)
