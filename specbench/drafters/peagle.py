"""P-EAGLE: an EAGLE-3 head that drafts all tokens of a round in one forward.

Shape suffixes: B rows, K draft tokens, F hidden size, V vocabulary.
"""

from dataclasses import replace
from typing import Any

import torch

from specbench.decode.drafter import DrafterForward, Proposal
from specbench.decode.growth import grow_block
from specbench.decode.sampling import Sampler
from specbench.decode.state import State
from specbench.drafters.eagle3 import Eagle3, ParallelHead
from specbench.drafters.registry import Parts, drafter
from specbench.drafters.shared.feature_drafter import FeatureDrafter, TreePlan
from specbench.models.checkpoint import Checkpoint


@drafter("peagle")
class PEagle(FeatureDrafter):
    """Drafts with a P-EAGLE head, in one forward over masks instead of one forward per token.

    EAGLE-3 feeds back each draft token and its state. This head instead gets a mask token and a
    learned state for each of K - 1 draft tokens, all but the first; each mask attends to those
    before it. Draft tokens are independent: above temperature 0 each has its own distribution.
    """

    def __init__(self, parts: Parts) -> None:
        head = ParallelHead(parts.checkpoint(), parts.target)
        super().__init__(head, TreePlan())
        self._masks = head.masks

    @staticmethod
    def new_checkpoint(config: Any, seed: int, **changes: Any) -> Checkpoint:
        """A head with random weights; its mask token is the last one of the target's vocabulary."""
        text = config.get_text_config()
        parallel = {"parallel_drafting": True, "mask_token_id": text.vocab_size - 1}
        bare = Eagle3.new_checkpoint(config, seed, **changes)
        width = bare.tensors["fc.weight"].shape[1]
        generator = torch.Generator("cpu").manual_seed(seed)
        mask = torch.randn(1, 1, width, generator=generator, device="cpu")
        return replace(
            bare,
            source="a new P-EAGLE head",
            config={**bare.config, **parallel},
            tensors={**bare.tensors, "mask_hidden": mask},
        )

    def _forwards(self, k: int) -> tuple[DrafterForward, ...]:
        masks = (DrafterForward(k - 1, "draft"),) if k > 1 else ()
        return (DrafterForward(k + 1, "observe"), *masks)

    def propose(self, state: State, k: int, span: int, sampler: Sampler) -> Proposal:
        head = self.head
        logits_BKV = head.logits(state.rows_of(self._last_RF)[:, None])
        if k > 1:
            # The head's positions are one below the target's.
            places_BK = state.positions(0, k - 1)
            masks = self._masks(places_BK)
            states_BKF = head.step(*masks, places_BK, span, first_row=state.first_row, depth=1)
            logits_BKV = torch.cat([logits_BKV, head.logits(states_BKF)], 1)
        return grow_block(state, logits_BKV, sampler, self.p_min)
