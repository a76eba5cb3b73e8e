"""Tiny random models with recurrent or convolutional layers in addition to attention."""

from collections.abc import Callable
from typing import Any

import torch
import transformers

from tests.decoding.models import SHAPE, WINDOW

_MAMBA = {
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_n_groups": 1,
    "mamba_d_state": 8,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_chunk_size": 8,
}
_DELTA = {
    "head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_MIXED = ["linear_attention", "full_attention"]


def _config(family: str, **changes: Any) -> Callable[..., Any]:
    return lambda **more: getattr(transformers, f"{family}Config")(**{**SHAPE, **changes, **more})


HYBRIDS: dict[str, Callable[..., Any]] = {
    "Qwen3-Next": _config(
        "Qwen3Next",
        layer_types=_MIXED,
        decoder_sparse_step=1,
        mlp_only_layers=[0],
        shared_expert_intermediate_size=16,
        **_EXPERTS,
        **_DELTA,
    ),
    "Qwen3.5": _config("Qwen3_5Text", layer_types=_MIXED, **_DELTA),
    "Qwen3.5-MoE": _config(
        "Qwen3_5MoeText",
        layer_types=_MIXED,
        shared_expert_intermediate_size=16,
        **_EXPERTS,
        **_DELTA,
    ),
    "Nemotron-H": _config(
        "NemotronH",
        layers_block_type=["linear_attention", "mlp", "full_attention", "moe"],
        mamba_num_heads=4,
        mamba_head_dim=16,
        n_groups=1,
        ssm_state_size=8,
        chunk_size=8,
        head_dim=8,
        n_routed_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        moe_shared_expert_intermediate_size=16,
    ),
    "Granite hybrid": _config(
        "GraniteMoeHybrid",
        layer_types=_MIXED,
        shared_intermediate_size=32,
        num_local_experts=4,
        num_experts_per_tok=2,
        **_MAMBA,
    ),
    "Granite, all attention": _config(
        "GraniteMoeHybrid",
        layer_types=["full_attention"] * 2,
        shared_intermediate_size=32,
        num_local_experts=0,
        num_experts_per_tok=0,
        position_embedding_type="rope",
        **_MAMBA,
    ),
    "Falcon-H1": _config("FalconH1", mamba_d_ssm=64, **_MAMBA),
    "LFM2": _config("Lfm2", layer_types=["conv", "full_attention"], conv_L_cache=3),
    "LFM2-MoE": _config(
        "Lfm2Moe",
        layer_types=["conv", "full_attention"],
        conv_L_cache=3,
        num_dense_layers=1,
        **_EXPERTS,
    ),
    "Jamba": _config(
        "Jamba",
        attn_layer_period=2,
        attn_layer_offset=1,
        expert_layer_period=2,
        expert_layer_offset=1,
        num_experts=4,
        num_experts_per_tok=2,
        mamba_d_state=8,
        mamba_d_conv=4,
        mamba_expand=2,
        mamba_dt_rank=4,
    ),
    "Bamba": _config("Bamba", attn_layer_indices=[1], **_MAMBA),
    "Zamba2": _config(
        "Zamba2",
        num_hidden_layers=3,
        layers_block_type=["linear_attention", "linear_attention", "hybrid"],
        mamba_d_state=8,
        mamba_expand=2,
        mamba_ngroups=1,
        n_mamba_heads=4,
        chunk_size=8,
        num_mem_blocks=1,
        num_key_value_heads=4,
        add_bias_linear=False,
        use_mem_rope=True,
    ),
    "Zamba": _config(
        "Zamba",
        num_hidden_layers=3,
        layers_block_type=["linear_attention", "linear_attention", "hybrid"],
        mamba_d_state=8,
        mamba_dt_rank=4,
        n_mamba_heads=2,
        num_key_value_heads=4,
        attention_head_dim=16,
        attention_hidden_size=64,
    ),
    "Kimi Linear": _config(
        "KimiLinear",
        layer_types=_MIXED,
        mlp_layer_types=["dense", "sparse"],
        linear_num_heads=2,
        linear_head_dim=16,
        linear_conv_kernel_dim=4,
        num_key_value_heads=4,
        kv_lora_rank=16,
        q_lora_rank=None,
        qk_nope_head_dim=8,
        qk_rope_head_dim=4,
        v_head_dim=8,
        n_routed_experts=4,
        n_shared_experts=1,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        n_group=1,
        topk_group=1,
    ),
    "MiniMax": _config(
        "MiniMax",
        layer_types=_MIXED,
        block_size=8,
        num_local_experts=4,
        num_experts_per_tok=2,
    ),
    "LFM3": _config(
        "Lfm3",
        num_hidden_layers=3,
        layer_types=["conv", "sliding_attention", "full_attention"],
        sliding_window=WINDOW,
        head_dim=8,
        conv_L_cache=7,
    ),
    "Zaya": _config(
        "Zaya",
        layer_types=["hybrid", "hybrid_sliding"],
        sliding_window=WINDOW,
        head_dim=8,
        num_experts=4,
        moe_intermediate_size=16,
        router_hidden_size=16,
    ),
    "Olmo hybrid": _config(
        "OlmoHybrid", layer_types=_MIXED, **{k: v for k, v in _DELTA.items() if k != "head_dim"}
    ),
}


def tiny_hybrid(family: str, *, seed: int = 0, **changes: Any) -> Any:
    """A hybrid model of that family in evaluation mode; `changes` go to its config."""
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(HYBRIDS[family](**changes))
    for name, weight in model.named_parameters():
        if name.endswith("qk_norm.temp"):
            weight.data.fill_(1)  # Zaya begins with zeros, by which its keys are multiplied
    return model.eval().requires_grad_(False)
