"""EAGLE's head, of which EAGLE-2 drafts another tree, and the step that EAGLE-3's shares.

Shape suffixes: B rows, T tokens, F hidden size, V vocabulary, W what the first layer's attention
reads.
"""

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from specbench.drafters.heads.feature_drafter import Reads
from specbench.drafters.heads.layers import (
    Embed,
    decoder_layer,
    fitting,
    layer_config,
    layer_stack,
    load,
    output_weights,
    tensors_of,
    token_embedding,
    weights_of,
)
from specbench.files.eagle import eagle_has_bias
from specbench.forward.layer_stack import LayerStack
from specbench.forward.runner import Runner
from specbench.forward.tree import Branches
from specbench.models.checkpoint import Checkpoint


class JoiningHead:
    """What a FeatureHead of this kind needs not say itself; every depth has the same layers."""

    layers: LayerStack
    num_depths = 1
    _weights: nn.Module
    _embed: Embed
    _target: Runner

    @property
    def module(self) -> nn.Module:
        """Its own weights, which training replaces."""
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
        """What the layers are fed: states, and what the first reads if not them."""
        raise NotImplementedError

    def _leave(self, states_BTF: Tensor) -> Tensor:
        """What the next step is fed of the last layer's states."""
        return states_BTF


class EagleHead(JoiningHead):
    """A checkpoint of EAGLE, or of what speculators calls eagle, bound to its target;
    ModelError."""

    _weights: "EagleWeights"

    def __init__(self, checkpoint: Checkpoint, target: Runner) -> None:
        checkpoint = fitting(checkpoint, target, "eagle")
        config = layer_config(checkpoint, target.max_position)
        has_bias = eagle_has_bias(checkpoint)
        with torch.device("meta"):
            self._weights = EagleWeights(config, checkpoint.tensors.keys(), has_bias=has_bias)
        beside = load(self._weights, checkpoint, target, {"embed_tokens.weight"})
        self._embed = token_embedding(target, beside.get("embed_tokens.weight"))
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
        """The hidden state that the target's own head reads, as it is."""
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
        self.layers[0].input_layernorm = nn.Identity()  # the first layer's input is as fc made it
