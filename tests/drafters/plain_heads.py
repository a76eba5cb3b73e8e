"""EAGLE's heads from only the papers: the whole text in one forward pass, no cache, their own mask.

Shape suffixes: T tokens, F hidden size, H heads, D head size, V vocabulary.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from specbench.models.checkpoint import Checkpoint


class PlainHead:
    """The outputs of a head after a text and drafts that follow it; the target has not read the
    text's last token yet."""

    def __init__(self, model: Any, checkpoint: Checkpoint) -> None:
        self.model, self.config, self.tensors = model, checkpoint.config, checkpoint.tensors
        self.embedding_VF = model.get_input_embeddings().weight

    def first(self, hidden_states: Sequence[Tensor]) -> Tensor:
        """The head's states [T, F] of the tokens that the target read."""
        raise NotImplementedError

    def next(self, embedded_TF: Tensor, states_TF: Tensor) -> Tensor:
        """The state that the head expects after each [T, F]."""
        raise NotImplementedError

    def output_logits(self, states_TF: Tensor) -> Tensor:
        """Logits over the target's vocabulary."""
        raise NotImplementedError

    @torch.no_grad()
    def logits(self, text: Sequence[int], drafts: Sequence[int] = ()) -> Tensor:
        """Logits [V] after the text and the drafts."""
        ids_1T = torch.tensor([text[:-1]])
        out = self.model.model(input_ids=ids_1T, use_cache=False, output_hidden_states=True)
        states_TF = self.first([state_1TF[0] for state_1TF in out.hidden_states])
        tokens = list(text[1:])
        for draft in drafts:
            next_TF = self.next(self.embedding_VF[tokens], states_TF)
            tokens, states_TF = [*tokens, draft], torch.cat([states_TF, next_TF[-1:]])
        return self.output_logits(self.next(self.embedding_VF[tokens], states_TF)[-1])

    def layer(self, inputs: Tensor, residual_TF: Tensor, prefix: str) -> Tensor:
        """Attention over `inputs`, then the MLP; the caller applies the norm before it."""
        tensors = {
            name.removeprefix(prefix): tensor
            for name, tensor in self.tensors.items()
            if name.startswith(prefix)
        }
        states_TF = residual_TF + attend(inputs, tensors, self.config)
        normed_TF = self.norm(states_TF, f"{prefix}post_attention_layernorm.weight")
        gate = torch.nn.functional.silu(normed_TF @ tensors["mlp.gate_proj.weight"].T)
        up = normed_TF @ tensors["mlp.up_proj.weight"].T
        return states_TF + (gate * up) @ tensors["mlp.down_proj.weight"].T

    def norm(self, x: Tensor, name: str) -> Tensor:
        scale = x.pow(2).mean(-1, keepdim=True) + self.config["rms_norm_eps"]
        return x * scale.rsqrt() * self.tensors[name]


class PlainEagle(PlainHead):
    """EAGLE-1, arXiv:2401.15077."""

    def first(self, hidden_states: Sequence[Tensor]) -> Tensor:
        return hidden_states[-1]

    def next(self, embedded_TF: Tensor, states_TF: Tensor) -> Tensor:
        joined = torch.cat([embedded_TF, states_TF], -1)
        fused_TF = joined @ self.tensors["fc.weight"].T + self.tensors.get("fc.bias", 0)
        return self.layer(fused_TF, fused_TF, "layers.0.")

    def output_logits(self, states_TF: Tensor) -> Tensor:
        logits_TV: Tensor = self.model.lm_head(states_TF)
        return logits_TV


class PlainEagle3(PlainHead):
    """EAGLE-3, arXiv:2503.01840."""

    def first(self, hidden_states: Sequence[Tensor]) -> Tensor:
        chosen = self.config["eagle_aux_hidden_state_layer_ids"]
        return torch.cat([hidden_states[i] for i in chosen], -1) @ self.tensors["fc.weight"].T

    def next(self, embedded_TF: Tensor, states_TF: Tensor) -> Tensor:
        token_TF = self.norm(embedded_TF, "layers.0.input_layernorm.weight")
        state_TF = self.norm(states_TF, "layers.0.hidden_norm.weight")
        return self.layer(torch.cat([token_TF, state_TF], -1), states_TF, "layers.0.")

    def output_logits(self, states_TF: Tensor) -> Tensor:
        draft_logits = self.norm(states_TF, "norm.weight") @ self.tensors["lm_head.weight"].T
        logits = torch.full((*draft_logits.shape[:-1], self.config["vocab_size"]), -torch.inf)
        for i, offset in enumerate(self.tensors["d2t"].tolist()):
            logits[..., i + offset] = draft_logits[..., i]
        return logits


class PlainPEagle(PlainEagle3):
    """P-EAGLE, arXiv:2602.01469: masks stand for the drafts, whatever these are."""

    @torch.no_grad()
    def logits(self, text: Sequence[int], drafts: Sequence[int] = ()) -> Tensor:
        ids_1T = torch.tensor([text[:-1]])
        out = self.model.model(input_ids=ids_1T, use_cache=False, output_hidden_states=True)
        masks, mask_F = len(drafts), self.tensors["mask_hidden"][0] @ self.tensors["fc.weight"].T
        known_TF = self.first([state_1TF[0] for state_1TF in out.hidden_states])
        states_TF = torch.cat([known_TF, mask_F.expand(masks, -1)])
        tokens = [*text[1:], *[self.config["mask_token_id"]] * masks]
        return self.output_logits(self.next(self.embedding_VF[tokens], states_TF)[-1])


def attend(inputs: Tensor, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> Tensor:
    T, D = len(inputs), config["head_dim"]
    q, k, v = (
        (inputs @ tensors[f"self_attn.{name}_proj.weight"].T).view(T, -1, D) for name in "qkv"
    )
    times = config["num_attention_heads"] // config["num_key_value_heads"]
    k, v = k.repeat_interleave(times, 1), v.repeat_interleave(times, 1)
    q, k = rotated(q, config["rope_theta"]), rotated(k, config["rope_theta"])
    scores_HTT = torch.einsum("thd,shd->hts", q, k) / D**0.5
    unseen_TT = torch.ones(T, T).triu(1).bool()
    if config.get("layer_types") == ["sliding_attention"]:
        unseen_TT |= torch.ones(T, T).tril(-config["sliding_window"]).bool()
    scores_HTT = scores_HTT.masked_fill(unseen_TT, -torch.inf)
    joined = torch.einsum("hts,shd->thd", scores_HTT.softmax(-1), v).reshape(T, -1)
    return joined @ tensors["self_attn.o_proj.weight"].T


def rotated(x_THD: Tensor, theta: float) -> Tensor:
    T, _, D = x_THD.shape
    frequencies = theta ** -(torch.arange(0, D, 2) / D)
    angles = (torch.arange(T)[:, None] * frequencies)[:, None]
    left, right = x_THD.chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)
