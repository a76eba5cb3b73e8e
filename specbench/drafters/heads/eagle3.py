"""EAGLE-3's head over the target's low, middle and high states, in the layouts that there are.

Shape suffixes: B rows, T tokens, F the head's hidden size, D the tokens that it can say,
V the target's vocabulary.
"""

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaRMSNorm

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
    wide_attention,
)
from specbench.errors import ModelError
from specbench.forward.runner import Runner
from specbench.model_files.eagle3_style import EAGLE3_NAMES, Style, eagle3_fit
from specbench.models.checkpoint import Checkpoint


class Eagle3Head(JoiningHead):
    """A checkpoint of EAGLE-3 in any of its layouts, bound to its target.

    ModelError says what does not fit.
    """

    _weights: "Eagle3Weights"

    def __init__(self, checkpoint: Checkpoint, target: Runner) -> None:
        checkpoint = checkpoint.renamed(EAGLE3_NAMES)
        names = checkpoint.tensors.keys()
        config = layer_config(checkpoint, target.max_position)
        self._style = style = Style.of(checkpoint, target.num_layers)
        F, D, V = config.hidden_size, style.num_tokens, target.vocab_size
        require_fit(checkpoint, **eagle3_fit(checkpoint, target))
        with torch.device("meta"):
            self._weights = Eagle3Weights(config, style, names, target.hidden_size)
            if "lm_head.weight" not in names:
                del self._weights.lm_head
        beside = load(
            self._weights,
            checkpoint,
            target,
            {"embed_tokens.weight": (V, F), "d2t": (D,), "t2d": (V,)},
        )
        self._target_ids_D = _target_ids(checkpoint, beside, D, V)
        self._embed = token_embedding(target, beside.get("embed_tokens.weight"))
        self._target = target
        self.features = style.layer_ids
        self.feature_size = target.hidden_size
        self.state_size: int = F
        self.num_tokens = D
        self.device, self.dtype = target.device, target.dtype
        self.layers = layer_stack(config, self._weights.layers, target.device)

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

    def _leave(self, states_BTF: Tensor) -> Tensor:
        return self._weights.norm(states_BTF) if self._style.norm_output else states_BTF

    def logits(self, states_BTF: Tensor) -> Tensor:
        weights = self._weights
        if not self._style.norm_output:
            states_BTF = weights.norm(states_BTF)
        if not hasattr(weights, "lm_head"):
            return self._target.logits(states_BTF)
        logits_BTD: Tensor = weights.lm_head(states_BTF) * self._style.logit_scale
        if self._target_ids_D is None:
            return logits_BTD
        shape = (*logits_BTD.shape[:2], self._target.vocab_size)
        unsaid_BTV = logits_BTD.new_full(shape, -torch.inf)
        return unsaid_BTV.index_copy(-1, self._target_ids_D, logits_BTD)


def _target_ids(
    checkpoint: Checkpoint, tables: Mapping[str, Tensor], D: int, V: int
) -> Tensor | None:
    """The target's id of each token the head can say; d2t holds differences, not ids.

    ModelError where there is none such, or t2d, a mark for each of the target's ids, says others.
    """
    d2t_D, t2d_V = tables.get("d2t"), tables.get("t2d")
    for name, table in tables.items():
        is_flag = table.dtype == torch.bool and name == "t2d"
        if name != "embed_tokens.weight" and not is_flag and not _is_whole(table):
            raise ModelError(f"{checkpoint.source}: {name} is of {table.dtype}, not whole numbers")
    if d2t_D is None:
        if D != V:
            raise ModelError(
                f"{checkpoint.source} does not fit: missing: d2t, for draft_vocab_size is {D} and "
                f"vocab_size {V}"
            )
        if t2d_V is not None and not t2d_V.all():
            raise ModelError(f"{checkpoint.source}: t2d leaves tokens out, and there is no d2t")
        return None
    ids_D = torch.arange(D, device=d2t_D.device) + d2t_D
    ids = set(ids_D.tolist())
    if min(ids) < 0 or max(ids) >= V or len(ids) != D:
        raise ModelError(
            f"{checkpoint.source}: d2t does not lead to {D} different tokens of the target's {V}"
        )
    if t2d_V is not None and set(t2d_V.nonzero()[:, 0].tolist()) != ids:
        raise ModelError(
            f"{checkpoint.source}: d2t and t2d name different tokens; one is of another head"
        )
    return ids_D


def _is_whole(table: Tensor) -> bool:
    return table.dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


class Eagle3Weights(nn.Module):
    def __init__(self, config: Any, style: Style, names: Collection[str], target_size: int) -> None:
        super().__init__()
        F, num_states, eps = config.hidden_size, len(style.layer_ids), config.rms_norm_eps
        if style.norm_before_fc:
            self.input_norm = LlamaRMSNorm(num_states * target_size, eps)
        if style.fc_norm:
            self.fc_norm = nn.ModuleList(LlamaRMSNorm(target_size, eps) for _ in range(num_states))
        self.fc = nn.Linear(num_states * target_size, F, bias="fc.bias" in names)
        self.layers = nn.ModuleList([_FusingLayer(config, style, names)])
        for i in range(1, config.num_hidden_layers):
            self.layers.append(decoder_layer(config, i, names))
        self.norm = LlamaRMSNorm(F, eps)
        self.lm_head = nn.Linear(F, style.num_tokens, bias=False)


class _FusingLayer(nn.Module):
    """A decoder layer that attends with a token's embedding and a state side by side."""

    def __init__(self, config: Any, style: Style, names: Collection[str]) -> None:
        super().__init__()
        plain = decoder_layer(config, 0, names)
        self.input_layernorm = plain.input_layernorm
        self.hidden_norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = wide_attention(config, 2 * config.hidden_size, names)
        self.post_attention_layernorm = plain.post_attention_layernorm
        self.mlp = plain.mlp
        self._norm_before_residual = style.norm_before_residual

    def forward(self, joined: Tensor, **attention_args: Any) -> Tensor:
        embedded_BTF, states_BTF = joined.chunk(2, -1)
        normed_BTF = self.hidden_norm(states_BTF)
        residual_BTF = normed_BTF if self._norm_before_residual else states_BTF
        joined = torch.cat([self.input_layernorm(embedded_BTF), normed_BTF], -1)
        states_BTF = residual_BTF + self.self_attn(joined, **attention_args)[0]
        out_BTF: Tensor = states_BTF + self.mlp(self.post_attention_layernorm(states_BTF))
        return out_BTF
