"""Tiny targets of the families with MTP layers, and the outputs of such a layer in a plain
implementation.

Shape suffixes: T tokens, F hidden size, V vocabulary.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor
from torch.nn.functional import embedding

from specbench.drafters.mtp import Mtp
from specbench.models.checkpoint import Checkpoint
from tests.decoding.models import SHAPE, build, tiny_llama
from tests.drafters.plain_heads import PlainHead

_SHAPE = {**SHAPE, "vocab_size": 61, "moe_intermediate_size": 16, "num_experts_per_tok": 2}
_GROUPS = {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
_LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": 8,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 6,
}
_LINEAR = {
    "head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
_SHARED = {"num_experts": 4, "shared_expert_intermediate_size": 16}


class Family(NamedTuple):
    """A family's config, and the names and conventions of its MTP layer."""

    config: Any  # of a target with two layers
    token_norm: str
    state_norm: str
    join: str
    out_norm: str
    block: str
    head: str = ""
    order: str = "token state"
    norm_adds: int = 0


def family_of(name: str, i: int = 0) -> Family:
    """The family, with the names of MTP layer i."""
    make = {
        "deepseek_v3": lambda: transformers.DeepseekV3Config(**{**_SHAPE, **_GROUPS, **_LATENT}),
        "glm4_moe": lambda: transformers.Glm4MoeConfig(**{**_SHAPE, **_GROUPS, "head_dim": 8}),
        "mimo": lambda: transformers.Qwen2Config(**_SHAPE),
        "qwen3_next": lambda: transformers.Qwen3NextConfig(**{**_SHAPE, **_LINEAR, **_SHARED}),
        "qwen3_5": lambda: transformers.Qwen3_5TextConfig(**{**_SHAPE, **_LINEAR}),
        "qwen3_5_moe": lambda: transformers.Qwen3_5MoeTextConfig(
            **{**_SHAPE, **_LINEAR, **_SHARED}
        ),
    }
    config = make[name]()
    if name == "mimo":
        at = f"model.mtp_layers.{i}."
        names = ("token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm")
        return Family(config, *(f"{at}{o}.weight" for o in names), at, order="state token")
    if name.startswith("qwen"):
        names = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm")
        return Family(config, *(f"mtp.{o}.weight" for o in names), f"mtp.layers.{i}.", norm_adds=1)
    at = f"model.layers.{2 + i}."
    names = ("enorm", "hnorm", "eh_proj", "shared_head.norm")
    return Family(
        config, *(f"{at}{o}.weight" for o in names), at, head=f"{at}shared_head.head.weight"
    )


def plain_block(family: Family, files: Mapping[str, Tensor]) -> Any:
    """One more layer of the family's own model, with the weights under the block's prefix."""
    fields = {**family.config.to_dict(), "num_hidden_layers": 3}
    if fields.get("layer_types"):
        fields["layer_types"] = [*fields["layer_types"], "full_attention"]
    model = build(type(family.config)(**fields))
    layer = model.model.layers[2]
    state = layer.state_dict()
    for name in state:
        if name.endswith("experts.down_proj"):
            at = family.block + name.removesuffix("down_proj")
            state[name] = torch.stack([files[f"{at}{e}.down_proj.weight"] for e in range(4)])
        elif name.endswith("experts.gate_up_proj"):
            at = family.block + name.removesuffix("gate_up_proj")
            both = [[files[f"{at}{e}.{p}_proj.weight"] for p in ("gate", "up")] for e in range(4)]
            state[name] = torch.stack([torch.cat(pair) for pair in both])
        else:
            state[name] = files[family.block + name]
    layer.load_state_dict(state)
    return model


class PlainLayer:
    """One MTP layer over a whole text, without any cache."""

    def __init__(self, family: Family, files: Mapping[str, Tensor], target: Any) -> None:
        self.family, self.files, self.target = family, files, target
        self.model = plain_block(family, files).model

    @torch.no_grad()
    def __call__(self, tokens_T: Tensor, states_TF: Tensor) -> tuple[Tensor, Tensor]:
        """States [T, F] and logits [T, V]."""
        files, family = self.files, self.family
        token_TF = embedding(tokens_T, self.target.get_input_embeddings().weight)
        pair = {
            "token": self.norm(token_TF, family.token_norm),
            "state": self.norm(states_TF, family.state_norm),
        }
        joined = torch.cat([pair[word] for word in family.order.split()], -1) @ files[family.join].T
        places_1T = torch.arange(len(tokens_T))[None]
        has_axes = family.config.model_type.startswith("qwen3_5")
        turn = self.model.rotary_emb(
            joined[None], places_1T.expand(3, -1, -1) if has_axes else places_1T
        )
        mask = torch.full((len(tokens_T),) * 2, torch.finfo(joined.dtype).min).triu(1)
        made_TF = self.model.layers[2](
            joined[None],
            position_embeddings=turn,
            attention_mask=mask[None, None],
            position_ids=places_1T,
        )[0]
        normed_TF = self.norm(made_TF, family.out_norm)
        head = files.get(family.head, self.target.get_output_embeddings().weight)
        return (made_TF if family.head else normed_TF), normed_TF @ head.T

    def norm(self, x: Tensor, name: str) -> Tensor:
        eps = self.family.config.rms_norm_eps
        unit = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
        return unit * (self.files[name] + self.family.norm_adds)


class PlainMtp(PlainHead):
    """MTP layers' outputs after a text, whose last token the target has not read, and drafts."""

    def __init__(self, layers: Sequence[PlainLayer], model: Any) -> None:
        self.layers, self.model = layers, model

    @torch.no_grad()
    def logits(self, text: Sequence[int], drafts: Sequence[int] = ()) -> Tensor:
        """Logits [V] after the text and the drafts.

        Layer i continues from the states of layer i - 1, one token later. A single layer
        continues from its own.
        """
        out = self.model.model(torch.tensor([text[:-1]]), use_cache=False)
        states_TF = out.last_hidden_state[0]
        tokens, T = torch.tensor([*text[1:], *drafts]), len(text) - 1
        for i in range(len(drafts) + 1):
            if len(self.layers) > 1:
                states_TF, logits_TV = self.layers[i](tokens[i : T + i], states_TF)
            else:
                made_TF, logits_TV = self.layers[0](tokens[: T + i], states_TF)
                states_TF = torch.cat([states_TF, made_TF[-1:]])
        return logits_TV[-1]


def checkpoint_for(name: str, config: Any, **options: Any) -> Checkpoint:
    """Random layers with random norms, and a separate head if files have one."""
    made = Mtp.new_checkpoint(config, 3, **options)
    generator = torch.Generator().manual_seed(4)
    tensors = {
        key: tensor + torch.rand(tensor.shape, generator=generator) if "norm" in key else tensor
        for key, tensor in made.tensors.items()
    }
    if name in ("deepseek_v3", "glm4_moe"):
        for i in range(options.get("num_layers", 1)):
            head_VF = torch.randn(61, 32, generator=generator)
            tensors[f"model.layers.{2 + i}.shared_head.head.weight"] = head_VF
            tensors[f"model.layers.{2 + i}.embed_tokens.weight"] = head_VF
    return replace(made, config={**made.config, "model_type": name}, tensors=tensors)


def dense_target() -> Any:
    """Any model with the family's sizes: a head uses only its embedding and output head."""
    return tiny_llama(vocab_size=61)
