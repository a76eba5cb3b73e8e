"""EAGLE-1 and EAGLE-2: one decoder layer guesses the target's next hidden state.

The same weights serve both: EAGLE-2 drafts another tree.
"""

from dataclasses import replace
from typing import Any

import torch

from specbench.drafters.heads.eagle import EagleHead, EagleWeights
from specbench.drafters.heads.feature_drafter import FeatureDrafter, TreePlan
from specbench.drafters.heads.layers import drawn, layer_config, new_layer_fields
from specbench.drafters.registry import Parts, drafter
from specbench.drafting.published import EAGLE_STATIC
from specbench.models.checkpoint import Checkpoint


@drafter("eagle")
class Eagle(FeatureDrafter):
    """Drafts with an EAGLE head: chains, EAGLE-1's tree and EAGLE-2's."""

    open_head = EagleHead

    def __init__(self, parts: Parts, *, tree: str, top_k: int, max_drafts: int) -> None:
        plan = TreePlan(kind=tree, topology=EAGLE_STATIC, top_k=top_k, max_drafts=max_drafts)
        super().__init__(self.open_head(parts.checkpoint(), parts.target), plan)

    @staticmethod
    def new_checkpoint(config: Any, seed: int) -> Checkpoint:
        """A head that knows nothing yet, for a target of this config.

        Its `fc` adds no bias: vLLM drops that one, and takes `bias: true` for attention's.
        """
        fields = {**new_layer_fields(config, "LlamaForCausalLM"), "bias": False}
        bare = Checkpoint(source="a new EAGLE head", config=fields, tensors={})
        with torch.device("meta"):
            weights = EagleWeights(layer_config(bare), frozenset(), has_bias=False)
        return replace(bare, tensors=drawn(weights, seed, fields["initializer_range"]))
