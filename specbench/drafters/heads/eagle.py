"""EAGLE's head, of which EAGLE-2 drafts another tree.

Shape suffixes: B rows, T tokens, F hidden size, V vocabulary.
"""

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn

from specbench.drafters.heads.feature_drafter import Reads
from specbench.drafters.heads.joining_head import JoiningHead
from specbench.drafters.heads.layers import (
    decoder_layer,
    layer_config,
    layer_stack,
    load,
    output_weights,
    require_fit,
    tensors_of,
    token_embedding,
)
from specbench.files.head_fit import EAGLE_NAMES, eagle_fit, eagle_has_bias
from specbench.forward.runner import Runner
from specbench.models.checkpoint import Checkpoint


class EagleHead(JoiningHead):
    """A checkpoint of EAGLE, or of what speculators calls eagle, bound to its target;
    ModelError."""

    _weights: "EagleWeights"

    def __init__(self, checkpoint: Checkpoint, target: Runner) -> None:
        checkpoint = checkpoint.renamed(EAGLE_NAMES)
        config = layer_config(checkpoint, target.max_position)
        require_fit(checkpoint, **eagle_fit(checkpoint, target))
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
