"""EAGLE-3: a decoder layer drafts tokens from the target's low, middle and high hidden states.

Shape suffixes: B rows, T tokens, F the head's hidden size, W input size of the first layer's
attention, D the tokens that the head can draft, V the target's vocabulary.
"""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from specbench.drafters.eagle import Eagle, JoiningHead
from specbench.drafters.registry import drafter
from specbench.drafters.shared.feature_drafter import Reads
from specbench.drafters.shared.layers import (
    decoder_layer,
    fitting,
    layer_config,
    layer_stack,
    load,
    new_layer_fields,
    output_weights,
    random_weights,
    tensors_of,
    to_target_vocab,
    token_embedding,
    token_table,
)
from specbench.files.eagle import Style, default_layer_ids
from specbench.forward.runner import Runner, state_features
from specbench.models.checkpoint import Checkpoint


class Eagle3Head(JoiningHead):
    """The head of an EAGLE-3 checkpoint in any layout; ModelError if it does not fit the target."""

    _weights: "Eagle3Weights"

    method, is_parallel = "eagle3", False

    def __init__(self, checkpoint: Checkpoint, target: Runner) -> None:
        checkpoint = fitting(checkpoint, target, self.method)
        names = checkpoint.tensors.keys()
        config = layer_config(checkpoint)
        self._style = style = Style.of(checkpoint, target.num_layers, is_parallel=self.is_parallel)
        F, D = config.hidden_size, style.num_tokens
        with torch.device("meta"):
            self._weights = Eagle3Weights(config, style, names, target.hidden_size)
            if "lm_head.weight" not in names:
                del self._weights.lm_head
        loaded = load(self._weights, checkpoint, target, {"embed_tokens.weight", "d2t", "t2d"})
        self._target_ids_D = token_table(checkpoint, D, target)
        self._embed = token_embedding(target, loaded.get("embed_tokens.weight"))
        self._target = target
        self.features = state_features(style.layer_ids, target.model, target.num_layers)
        self.feature_size = target.hidden_size
        self.state_size: int = F
        self.num_tokens, self.mask_id = D, style.mask_id or 0
        self.device, self.dtype = target.device, target.dtype
        self.layers = layer_stack(config, self._weights.layers, target)

    def reads(self, depth: int = 0) -> Reads:  # noqa: ARG002
        weights, has_own = self._weights, hasattr(self._weights, "lm_head")
        norm = tensors_of(weights.norm)
        head = tensors_of(weights.lm_head) if has_own else output_weights(self._target)
        ids = () if self._target_ids_D is None else (self._target_ids_D,)
        before = [name for name in ("input_norm", "fc_norm", "fc") if hasattr(weights, name)]
        step = tensors_of(weights.layers)
        return Reads(
            fuse=tensors_of(*(getattr(weights, name) for name in before)),
            step=(*step, *norm) if self._style.norm_output else step,
            logits=(*head, *ids) if self._style.norm_output else (*norm, *head, *ids),
        )

    def masks(self, like_BT: Tensor) -> tuple[Tensor, Tensor]:
        """The mask tokens [B, T] and learned states [B, T, F] that a parallel head gets instead of
        unknown ones."""
        hidden_11F, tokens_BT = self._weights.mask_hidden, torch.full_like(like_BT, self.mask_id)
        masked = self.fuse(hidden_11F.chunk(len(self.features), -1))
        return tokens_BT, masked.expand(*like_BT.shape, -1)

    def fuse(self, features: tuple[Tensor, ...]) -> Tensor:
        weights = self._weights
        if self._style.fc_norm:
            features = tuple(
                norm(x_BTF) for norm, x_BTF in zip(weights.fc_norm, features, strict=True)
            )
        joined = torch.cat(features, -1)
        if self._style.norm_before_fc:
            joined = weights.input_norm(joined)
        fused_BTF: Tensor = weights.fc(joined)
        return fused_BTF

    def _enter(self, embedded_BTF: Tensor, states_BTF: Tensor) -> tuple[Tensor, Tensor]:
        return self._weights.first.enter(embedded_BTF, states_BTF)

    def _leave(self, states_BTF: Tensor) -> Tensor:
        return self._weights.norm(states_BTF) if self._style.norm_output else states_BTF

    def logits(self, states_BTF: Tensor, depth: int = 0) -> Tensor:  # noqa: ARG002
        weights = self._weights
        if not self._style.norm_output:
            states_BTF = weights.norm(states_BTF)
        if not hasattr(weights, "lm_head"):
            return self._target.logits(states_BTF)
        logits_BTD: Tensor = weights.lm_head(states_BTF)
        if self._style.logit_scale != 1:
            logits_BTD = logits_BTD * self._style.logit_scale
        return to_target_vocab(logits_BTD, self._target_ids_D, self._target.vocab_size)


class ParallelHead(Eagle3Head):
    """The head of a P-EAGLE checkpoint, which drafts all tokens in one forward."""

    method, is_parallel = "peagle", True


class Eagle3Weights(nn.Module):
    def __init__(self, config: Any, style: Style, names: Collection[str], target_size: int) -> None:
        super().__init__()
        F, num_states, eps = config.hidden_size, len(style.layer_ids), config.rms_norm_eps
        if style.norm_before_fc:
            self.input_norm = nn.RMSNorm(num_states * target_size, eps)
        if style.fc_norm:
            self.fc_norm = nn.ModuleList(nn.RMSNorm(target_size, eps) for _ in range(num_states))
        self.fc = nn.Linear(num_states * target_size, F, bias="fc.bias" in names)
        if style.mask_id is not None:
            self.mask_hidden = nn.Parameter(torch.empty(1, 1, num_states * target_size))
        self.layers = nn.ModuleList([_FusingLayer(config, style, names)])
        for i in range(1, config.num_hidden_layers):
            self.layers.append(decoder_layer(config, i, names))
        self.norm = nn.RMSNorm(F, eps)
        self.lm_head = nn.Linear(F, style.num_tokens, bias=False)

    @property
    def first(self) -> "_FusingLayer":
        layer = self.layers[0]
        assert isinstance(layer, _FusingLayer)
        return layer


class _FusingLayer(nn.Module):
    """A decoder layer whose attention reads the embedding and the state, concatenated."""

    def __init__(self, config: Any, style: Style, names: Collection[str]) -> None:
        super().__init__()
        plain = decoder_layer(config, 0, names, width=2 * config.hidden_size)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.hidden_norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = plain.self_attn
        self.post_attention_layernorm = plain.post_attention_layernorm
        self.mlp = plain.mlp
        self._norm_before_residual = style.norm_before_residual

    def enter(self, embedded_BTF: Tensor, states_BTF: Tensor) -> tuple[Tensor, Tensor]:
        """The residual [B, T, F] and the input of attention [B, T, W], W = 2 F."""
        normed_BTF = self.hidden_norm(states_BTF)
        entry = torch.cat([self.input_layernorm(embedded_BTF), normed_BTF], -1)
        return normed_BTF if self._norm_before_residual else states_BTF, entry

    def forward(self, states_BTF: Tensor, entry_BTW: Tensor, **attention_args: Any) -> Tensor:
        states_BTF = states_BTF + self.self_attn(entry_BTW, **attention_args)[0]
        out_BTF: Tensor = states_BTF + self.mlp(self.post_attention_layernorm(states_BTF))
        return out_BTF


@drafter("eagle3")
class Eagle3(Eagle):
    """Drafts with an EAGLE-3 head (Li et al. 2025, arXiv:2503.01840)."""

    open_head = Eagle3Head

    @staticmethod
    def new_checkpoint(
        config: Any,
        seed: int,
        *,
        target_ids: tuple[int, ...] = (),
        layer_ids: tuple[int, ...] = (),
        **changes: Any,
    ) -> Checkpoint:
        """A head with random weights for a target with this config.

        It drafts only `target_ids`, in ascending order, or all tokens if there are none. It fuses
        the states of `layer_ids`, or those of the paper. `changes` are fields of its config.
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
        tensors = random_weights(weights, seed, fields["initializer_range"])
        if target_ids:
            ids_D = torch.tensor(target_ids)
            tensors["d2t"] = ids_D - torch.arange(len(ids_D))
            is_drafted_V = torch.zeros(text.vocab_size, dtype=torch.bool)
            tensors["t2d"] = is_drafted_V.index_fill(0, ids_D, True)
        return replace(bare, tensors=tensors)
