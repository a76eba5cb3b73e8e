"""EAGLE-1 and EAGLE-2: one decoder layer guesses the target's next hidden state.

The same weights serve both: EAGLE-2 drafts another tree.
"""

from dataclasses import replace
from typing import Annotated, Any, Literal

import torch

from specbench.drafters.heads.eagle import EagleHead, EagleWeights
from specbench.drafters.heads.feature_drafter import FeatureDrafter, TreePlan
from specbench.drafters.heads.layers import drawn, layer_config, new_layer_fields
from specbench.drafters.registry import Parts, drafter
from specbench.drafting.published import EAGLE_STATIC
from specbench.models.checkpoint import Checkpoint


@drafter("eagle", model="required", is_head=True, draws=True)
class Eagle(FeatureDrafter):
    """One-layer head that continues from the target's last hidden state (arXiv:2401.15077).

    `tree`: `dynamic` keeps the `max_drafts` likeliest of the paths that a beam of `top_k`
    finds (Li et al. 2024, EAGLE-2, arXiv:2406.16858), `static` drafts the published tree of
    EAGLE-1, which is 5 deep, `chain` drafts one token after the other.
    """

    def __init__(
        self,
        parts: Parts,
        *,
        tree: Literal["chain", "static", "dynamic"] = "dynamic",
        top_k: Annotated[int, range(1, 65)] = 10,
        max_drafts: Annotated[int, range(1, 257)] = 59,
    ) -> None:
        plan = TreePlan(kind=tree, topology=EAGLE_STATIC, top_k=top_k, max_drafts=max_drafts)
        super().__init__(EagleHead(parts.checkpoint(), parts.target), plan)

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
