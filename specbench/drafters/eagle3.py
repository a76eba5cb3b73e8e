"""EAGLE-3: a decoder layer over the target's low, middle and high states guesses tokens."""

from dataclasses import replace
from typing import Any

import torch

from specbench.drafters.heads.eagle3 import Eagle3Head, Eagle3Weights
from specbench.drafters.heads.feature_drafter import FeatureDrafter, TreePlan
from specbench.drafters.heads.layers import drawn, layer_config, new_layer_fields
from specbench.drafters.registry import Parts, drafter
from specbench.drafting.published import EAGLE_STATIC
from specbench.files.eagle import Style, default_layer_ids
from specbench.models.checkpoint import Checkpoint


@drafter("eagle3")
class Eagle3(FeatureDrafter):
    """Drafts with an EAGLE-3 head (Li et al. 2025, arXiv:2503.01840)."""

    open_head = Eagle3Head

    def __init__(self, parts: Parts, *, tree: str, top_k: int, max_drafts: int) -> None:
        plan = TreePlan(kind=tree, topology=EAGLE_STATIC, top_k=top_k, max_drafts=max_drafts)
        super().__init__(self.open_head(parts.checkpoint(), parts.target), plan)

    @staticmethod
    def new_checkpoint(
        config: Any,
        seed: int,
        *,
        target_ids: tuple[int, ...] = (),
        layer_ids: tuple[int, ...] = (),
        **changes: Any,
    ) -> Checkpoint:
        """A head that knows nothing yet, for a target of this config.

        It can say `target_ids`, in rising order; none means all. `layer_ids` are the states
        that it fuses, as the paper has them if none are given; `changes` go to its config.
        """
        text = config.get_text_config()
        fields = {
            **new_layer_fields(config, "LlamaForCausalLMEagle3"),
            "draft_vocab_size": len(target_ids) or text.vocab_size,
            "eagle_aux_hidden_state_layer_ids": list(
                layer_ids or default_layer_ids(text.num_hidden_layers)
            ),
            **changes,
        }
        bare = Checkpoint(source="a new EAGLE-3 head", config=fields, tensors={})
        style = Style.of(bare, text.num_hidden_layers)
        with torch.device("meta"):
            weights = Eagle3Weights(layer_config(bare), style, frozenset(), text.hidden_size)
        tensors = drawn(weights, seed, fields["initializer_range"])
        if target_ids:
            ids_D = torch.tensor(target_ids)
            tensors["d2t"] = ids_D - torch.arange(len(ids_D))
            says_V = torch.zeros(text.vocab_size, dtype=torch.bool)
            tensors["t2d"] = says_V.index_fill(0, ids_D, True)
        return replace(bare, tensors=tensors)
