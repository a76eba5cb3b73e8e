"""EAGLE-1 and EAGLE-2: one decoder layer predicts the target's next hidden state.

Both use the same weights; EAGLE-2 drafts another tree. EAGLE-3's head has the same `step`.
Shape suffixes: B rows, T tokens, F hidden size, V vocabulary, W input size of the first layer's
attention.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from specbench.drafters.registry import Parts, drafter
from specbench.drafters.shared.feature_drafter import (
    FeatureDrafter,
    FeatureHead,
    Reads,
    TreePlan,
)
from specbench.drafters.shared.layers import (
    Embed,
    decoder_layer,
    fitting,
    layer_config,
    layer_stack,
    load,
    new_layer_fields,
    output_weights,
    random_weights,
    tensors_of,
    token_embedding,
    weights_of,
)
from specbench.files.eagle import eagle_has_bias
from specbench.forward.layer_stack import LayerStack
from specbench.forward.runner import Runner
from specbench.forward.tree import Branches
from specbench.models.checkpoint import Checkpoint
from specbench.topology import EAGLE_STATIC


class JoiningHead:
    """The common part of heads that join a token and a state; all depths use the same layers."""

    layers: LayerStack
    num_depths = 1
    _weights: nn.Module
    _embed: Embed
    _target: Runner

    @property
    def module(self) -> nn.Module:
        """The head's own weights, which training replaces."""
        return self._weights

    @property
    def weights(self) -> tuple[Tensor, ...]:
        return weights_of(self._weights, self._embed)

    def files(
        self,
        checkpoint: Checkpoint,  # noqa: ARG002
        weights: Mapping[str, Tensor],
    ) -> Mapping[str, Tensor]:
        return weights

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
        added_BTF, entry_BTW = self._enter(self._embed(tokens_BT), states_BTF)
        states_BTF = self.layers.forward(
            added_BTF,
            positions_BT,
            span,
            first_row=first_row,
            branches=branches,
            entry_BTW=entry_BTW,
        )
        return self._leave(states_BTF)

    def _enter(self, embedded_BTF: Tensor, states_BTF: Tensor) -> tuple[Tensor, Tensor | None]:
        """The layers' input [B, T, F], and that of the first attention if it differs [B, T, W]."""
        raise NotImplementedError

    def _leave(self, states_BTF: Tensor) -> Tensor:
        """The states that the next step gets, from those of the last layer."""
        return states_BTF


class EagleHead(JoiningHead):
    """The head of an EAGLE checkpoint, also in the layout of speculators; ModelError if it does not
    fit the target."""

    _weights: "EagleWeights"

    def __init__(self, checkpoint: Checkpoint, target: Runner) -> None:
        checkpoint = fitting(checkpoint, target, "eagle")
        config = layer_config(checkpoint)
        has_bias = eagle_has_bias(checkpoint)
        with torch.device("meta"):
            self._weights = EagleWeights(config, checkpoint.tensors.keys(), has_bias=has_bias)
        loaded = load(self._weights, checkpoint, target, {"embed_tokens.weight"})
        self._embed = token_embedding(target, loaded.get("embed_tokens.weight"))
        self._target = target
        self.features: tuple[int, ...] = (target.num_layers,)
        self.feature_size = target.hidden_size
        self.state_size: int = config.hidden_size
        self.num_tokens: int = config.vocab_size
        self.device, self.dtype = target.device, target.dtype
        self.layers = layer_stack(config, self._weights.layers, target)

    def reads(self, depth: int = 0) -> Reads:  # noqa: ARG002
        return Reads(fuse=(), step=tensors_of(self._weights), logits=output_weights(self._target))

    def fuse(self, features: tuple[Tensor, ...]) -> Tensor:
        """The target's hidden state after its final norm, unchanged."""
        return features[0]

    def _enter(self, embedded_BTF: Tensor, states_BTF: Tensor) -> tuple[Tensor, None]:
        return self._weights.fc(torch.cat([embedded_BTF, states_BTF], -1)), None

    def logits(self, states_BTF: Tensor, depth: int = 0) -> Tensor:  # noqa: ARG002
        return self._target.logits(states_BTF)


class EagleWeights(nn.Module):
    def __init__(self, config: Any, names: Collection[str], *, has_bias: bool) -> None:
        super().__init__()
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=has_bias)
        self.layers = nn.ModuleList(
            decoder_layer(config, i, names) for i in range(config.num_hidden_layers)
        )
        self.layers[0].input_layernorm = nn.Identity()  # the first layer reads fc's output unnormed


@drafter("eagle")
class Eagle(FeatureDrafter):
    """Drafts with an EAGLE head: a chain, EAGLE-1's static tree or EAGLE-2's dynamic tree."""

    open_head: Callable[[Checkpoint, Runner], FeatureHead] = EagleHead

    def __init__(self, parts: Parts, *, tree: str, top_k: int, max_drafts: int) -> None:
        plan = TreePlan(kind=tree, topology=EAGLE_STATIC, top_k=top_k, max_drafts=max_drafts)
        super().__init__(self.open_head(parts.checkpoint(), parts.target), plan)

    @staticmethod
    def new_checkpoint(config: Any, seed: int) -> Checkpoint:
        """A head with random weights for a target with this config.

        Its `fc` has no bias, because vLLM ignores one and applies `bias: true` to attention.
        """
        fields = {**new_layer_fields(config, "LlamaForCausalLM"), "bias": False}
        bare = Checkpoint(source="a new EAGLE head", config=fields, tensors={})
        with torch.device("meta"):
            weights = EagleWeights(layer_config(bare), frozenset(), has_bias=False)
        return replace(bare, tensors=random_weights(weights, seed, fields["initializer_range"]))
