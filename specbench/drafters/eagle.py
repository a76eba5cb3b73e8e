"""EAGLE-1 and EAGLE-2: one decoder layer guesses the target's next hidden state.

The same weights serve both: EAGLE-2 drafts another tree. Shape suffixes: B rows, T tokens,
F hidden size, V vocabulary.
"""

from collections.abc import Collection
from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from specbench.decoding.checkpoint import Checkpoint
from specbench.decoding.runner import Runner
from specbench.decoding.topology import Topology
from specbench.decoding.tree import Branches
from specbench.drafters.feature_drafter import FeatureDrafter, TreePlan
from specbench.drafters.head_layers import (
    decoder_layer,
    drawn,
    layer_config,
    layer_stack,
    load,
    new_layer_fields,
    require_fit,
    token_embedding,
    weights_of,
)
from specbench.drafters.registry import Parts, drafter
from specbench.model_files.head_fit import EAGLE_NAMES, eagle_fit

# The tree of EAGLE-1: its authors' `mc_sim_7b_63`, SafeAILab/EAGLE eagle/model/choices.py.
_PATHS = """0 1 2 3 00 01 02 10 11 20 21 30 000 001 002 010 011 020 021 100
    0000 0001 0002 00000 00001"""
STATIC_TREE = Topology.of_paths([int(rank) for rank in path] for path in _PATHS.split())


@drafter("eagle", model="required", is_head=True)
class Eagle(FeatureDrafter):
    """A head of one layer goes on from the target's last hidden state (arXiv:2401.15077).

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
        plan = TreePlan(kind=tree, topology=STATIC_TREE, top_k=top_k, max_drafts=max_drafts)
        super().__init__(EagleHead(parts.checkpoint(), parts.target), plan)

    @staticmethod
    def new_checkpoint(config: Any, seed: int, *, bias: bool = True) -> Checkpoint:
        """A head that knows nothing yet, for a target of this config."""
        fields = {**new_layer_fields(config), "bias": bias}
        bare = Checkpoint(source="a new EAGLE head", config=fields, tensors={})
        with torch.device("meta"):
            weights = _Weights(layer_config(bare), frozenset(), has_bias=bias)
        return replace(bare, tensors=drawn(weights, seed, fields["initializer_range"]))


class EagleHead:
    """A checkpoint of EAGLE, or of what speculators calls eagle, bound to its target.

    ModelError says what does not fit.
    """

    def __init__(self, checkpoint: Checkpoint, target: Runner) -> None:
        given = checkpoint.config
        is_speculators = "speculators_model_type" in given
        checkpoint = checkpoint.renamed(EAGLE_NAMES)
        fit = eagle_fit(checkpoint, target)
        config = layer_config(checkpoint, target.max_position)
        require_fit(checkpoint, **fit)
        has_bias = bool(given.get("fusion_bias", given.get("bias", not is_speculators)))
        with torch.device("meta"):
            self._weights = _Weights(config, checkpoint.tensors.keys(), has_bias=has_bias)
        table = {"embed_tokens.weight": (config.vocab_size, config.hidden_size)}
        beside = load(self._weights, checkpoint, target, table)
        self._embed = token_embedding(target, beside.get("embed_tokens.weight"))
        self._target = target
        self.features: tuple[int, ...] = (target.num_layers,)
        self.state_size: int = config.hidden_size
        self.num_tokens: int = config.vocab_size
        self.device, self.dtype = target.device, target.dtype
        self.layers = layer_stack(config, self._weights.layers, target.device)

    @property
    def module(self) -> nn.Module:
        """Its own weights, which training replaces."""
        return self._weights

    @property
    def weights(self) -> tuple[Tensor, ...]:
        return weights_of(self._weights, self._embed)

    def fuse(self, features: tuple[Tensor, ...]) -> Tensor:
        """The hidden state that the target's own head reads, as it is."""
        return features[0]

    def step(
        self,
        tokens_BT: Tensor,
        states_BTF: Tensor,
        positions_BT: Tensor,
        span: int,
        *,
        first_row: int = 0,
        branches: Branches | None = None,
        depth: int = 0,  # noqa: ARG002
    ) -> Tensor:
        joined = torch.cat([self._embed(tokens_BT), states_BTF], -1)
        return self.layers.forward(
            self._weights.fc(joined), positions_BT, span, first_row=first_row, branches=branches
        )

    def logits(self, states_BTF: Tensor) -> Tensor:
        return self._target.logits(states_BTF)


class _Weights(nn.Module):
    def __init__(self, config: Any, names: Collection[str], *, has_bias: bool) -> None:
        super().__init__()
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=has_bias)
        self.layers = nn.ModuleList(
            decoder_layer(config, i, names) for i in range(config.num_hidden_layers)
        )
        self.layers[0].input_layernorm = nn.Identity()  # the first layer's input is as fc made it
