"""A block of masked tokens filled in by one forward that looks at the target's hidden states.

Shape suffixes: B rows, T tokens, K drafts, N = K + 1 tokens of a block, F hidden size,
V vocabulary.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm, apply_rotary_pos_emb

from specbench.drafters.heads.layers import (
    decoder_layer,
    drawn,
    layer_config,
    layer_stack,
    load,
    new_layer_fields,
    output_weights,
    require_fit,
    tensors_of,
)
from specbench.forward.runner import Runner
from specbench.forward.tree import Branches
from specbench.model_files.dflash_style import DFLASH_ARCHITECTURE, DFlashStyle, dflash_fit
from specbench.models.checkpoint import Checkpoint


class _Layers(nn.Module):
    """The tensors of a head, named as in its files."""

    def __init__(self, config: Any, num_features: int) -> None:
        super().__init__()
        F, count = config.hidden_size, config.num_hidden_layers
        self.fc = nn.Linear(num_features * F, F, bias=False)
        self.hidden_norm = Qwen3RMSNorm(F, eps=config.rms_norm_eps)
        self.layers = nn.ModuleList(decoder_layer(config, i, ()) for i in range(count))
        self.norm = Qwen3RMSNorm(F, eps=config.rms_norm_eps)


class DFlashHead:
    """Layers like those of Qwen 3 with the target's embedding and head.

    A committed token gives every layer its keys and values through the target's states alone;
    those of a block, whose tokens all see each other, are forgotten after its forward.
    Facts: z-lab/dflash, dflash/model.py.
    """

    def __init__(self, checkpoint: Checkpoint, target: Runner) -> None:
        """ModelError says what is missing, does not fit the target or cannot be run."""
        self._style = style = DFlashStyle.of(checkpoint)
        require_fit(checkpoint, **dflash_fit(checkpoint, target))
        self.features = tuple(i + 1 for i in style.layer_ids)
        self.block_size = style.block_size
        self._target = target
        config = make_config(checkpoint, target.max_position)
        self.model = make_layers(config, len(self.features))
        load(self.model, checkpoint, target, {})
        self.layers = layer_stack(config, self.model.layers, target.device)

    @property
    def weights(self) -> tuple[Tensor, ...]:
        return tuple(self.model.parameters())

    @property
    def reads_to_see(self) -> tuple[Tensor, ...]:
        """The tensors that `see` reads."""
        of_layers: list[nn.Module] = []
        for layer in self.layers.layers:
            attention: Any = layer.self_attn
            of_layers += [attention.k_proj, attention.k_norm, attention.v_proj]
        return tensors_of(self.model.fc, self.model.hidden_norm, *of_layers)

    @property
    def reads_to_say(self) -> tuple[Tensor, ...]:
        """The tensors that `logits` reads."""
        own = tensors_of(self.model.layers, self.model.norm)
        return (*own, *output_weights(self._target))

    def see(
        self, features: tuple[Tensor, ...], positions_BT: Tensor, span: int, first_row: int
    ) -> None:
        """Write the keys and values of committed tokens from the target's states at them."""
        model, cache = self.model, self.layers.cache
        context_BTF = model.hidden_norm(model.fc(torch.cat(features, -1)))
        cache.index.point(positions_BT, span, first_row)
        turn = self.layers.rotary(context_BTF, positions_BT)
        for i, layer in enumerate(self.layers.layers):
            attention: Any = layer.self_attn
            shape = (*positions_BT.shape, -1, attention.head_dim)
            keys = attention.k_norm(attention.k_proj(context_BTF).view(shape)).transpose(1, 2)
            values = attention.v_proj(context_BTF).view(shape).transpose(1, 2)
            cache.update(apply_rotary_pos_emb(keys, keys, *turn)[1], values, i)

    def logits(self, current_B1: Tensor, places_BN: Tensor, span: int, first_row: int) -> Tensor:
        """For each of the K tokens after the current one, of which none is known [B, K, V]."""
        B, N = places_BN.shape
        masks_BK = torch.full_like(places_BN[:, 1:], self._style.mask_id)
        embedded = self._target.embed(torch.cat([current_B1, masks_BK], 1))
        everything = torch.ones(B, N, N, dtype=torch.bool, device=places_BN.device)
        branches = Branches(places_BN[:, :1], places_BN, everything, places_BN)
        embedded = embedded * self._style.embedding_scale
        states_BNF = self.layers.forward(
            embedded, places_BN, span, first_row=first_row, branches=branches
        )
        logits_BKV = (
            self._target.logits(self.model.norm(states_BNF[:, 1:])) * self._style.logit_scale
        )
        if cap := self._style.softcap:
            logits_BKV = (logits_BKV / cap).tanh() * cap
        return logits_BKV


def make_config(checkpoint: Checkpoint, num_positions: int | None) -> Any:
    """The layers' config: Qwen 3's, whatever the target is."""
    return layer_config(
        replace(checkpoint, config={**checkpoint.config, "model_type": "qwen3"}), num_positions
    )


def make_layers(config: Any, num_features: int) -> _Layers:
    """Without weights."""
    with torch.device("meta"):
        return _Layers(config, num_features)


def spread_layers(num_layers: int, count: int) -> list[int]:
    """Which of the target's layers a head fuses: `count` of them, from the second on, the last
    three left out where there are more."""
    first = min(1, num_layers - 1)
    last = max(num_layers - 3, first)
    if count == 1:
        return [num_layers // 2]
    return sorted({round(first + i * (last - first) / (count - 1)) for i in range(count)})


def new_dflash_checkpoint(
    config: Any, seed: int, *, num_layers: int, block_size: int
) -> Checkpoint:
    """Random layers for a target with this config; its last token is taken for the mask."""
    text = config.get_text_config()
    target_layer_ids = spread_layers(text.num_hidden_layers, num_layers)
    fields = new_layer_fields(config, DFLASH_ARCHITECTURE) | {
        "model_type": "qwen3",
        "num_hidden_layers": num_layers,
        "num_target_layers": text.num_hidden_layers,
        "block_size": block_size,
        "dflash_config": {
            "target_layer_ids": target_layer_ids,
            "mask_token_id": text.vocab_size - 1,
        },
    }
    empty = Checkpoint(source="a new DFlash head", config=fields, tensors={})
    layers = make_layers(make_config(empty, None), len(target_layer_ids))
    return replace(empty, tensors=drawn(layers, seed, fields["initializer_range"]))
