"""Every decoder that transformers knows, as a tiny model with random weights."""

from collections.abc import Mapping
from typing import Any

import torch
from transformers import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
)

from specbench.engines.family_trial import HEAD_SIZE, HEADS, HIDDEN, WINDOW, small_config
from specbench.models.parts import text_class

# What a family's own defaults leave open, or what has to fit together at small sizes.
_HEAD_SIZE = {"head_dim": HEAD_SIZE}
_ALL_HEADS = {"num_key_value_heads": HEADS}
_DECODER = {"is_decoder": True}
_MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_expand": 2, "mamba_d_state": 16}
_INDEXER = {"n_heads": HEADS, "kv_heads": 1, "head_dim": HEAD_SIZE, "budget": 8}
_QSA = {f"indexer_{name}": size for name, size in {**_INDEXER, "compress_ratio": 4}.items()}


def _rope(**more: Any) -> Mapping[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, **more}}


_SECTIONS = _rope(mrope_section=[4, 2, 2])
_HALF_SECTIONS = _rope(mrope_section=[2, 1, 1], partial_rotary_factor=0.5)
_BY_LAYER = {"rope_parameters": {"full_attention": _rope()["rope_parameters"]}}
# As published models have them, where the defaults have one kind of layer.
_CONV = {"layer_types": ["conv", "full_attention"]}
_SPARSE = {"layer_types": ["full_attention", "minimax_m3_sparse"]}
_SHARED = {
    "num_hidden_layers": 3,
    "layers_block_type": ["linear_attention", "linear_attention", "hybrid"],
    "hybrid_layer_ids": [2],
    "num_mem_blocks": 1,
    "num_key_value_heads": HEADS,
}
_MIXED = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": WINDOW}
_CHANGES: Mapping[str, Mapping[str, Any]] = {
    **dict.fromkeys(("hunyuan_v1_dense", "hunyuan_v1_moe", "ministral"), _HEAD_SIZE),
    "hunyuan_vl": {**_HEAD_SIZE, **_rope(mrope_section=[2, 2, 2, 2])},
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl", "qwen2_5_omni_thinker", "paddleocr_vl"), _SECTIONS),
    **dict.fromkeys(("glm46v", "glm4v", "glm_ocr", "glmga"), _SECTIONS),
    "glm4v_moe": _HALF_SECTIONS,
    "ernie4_5_vl_moe": _rope(mrope_section=[3, 3, 2]),
    **dict.fromkeys(("dots3_note", "dots3_note_text", "glm5_next"), _ALL_HEADS),
    "bamba": {**_MAMBA, "attn_layer_indices": [1]},
    "falcon_h1": {**_MAMBA, "mamba_d_ssm": 2 * HIDDEN},
    "granitemoehybrid": {**_MAMBA, "layer_types": ["linear_attention", "full_attention"]},
    "zamba": {**_SHARED, "tie_word_embeddings": False},
    "zamba2": _SHARED,
    "zaya": {"layer_types": ["hybrid", "hybrid_sliding"], "sliding_window": WINDOW},
    **dict.fromkeys(("qwen4_exp", "qwen4_exp_text"), _QSA),
    **dict.fromkeys(
        ("bert", "bert-generation", "big_bird", "camembert", "data2vec-text"), _DECODER
    ),
    **dict.fromkeys(("electra", "ernie", "megatron-bert", "rembert", "roberta"), _DECODER),
    **dict.fromkeys(("roberta-prelayernorm", "roc_bert", "roformer", "xlm-roberta"), _DECODER),
    "xlm-roberta-xl": _DECODER,
    "xmod": {**_DECODER, "default_language": "en_XX"},
    **dict.fromkeys(("cohere_compass", "cohere_compass_text"), _BY_LAYER),
    "dbrx": {"attn_config": {"rope_theta": 1e4, "kv_n_heads": 2, "clip_qkv": 8.0}},
    "deepseek_ocr2": {"mlp_layer_types": ["dense", "sparse"], "num_experts_per_tok": 2},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    **dict.fromkeys(("lfm2", "lfm2_moe", "lfm2_vl"), _CONV),
    **dict.fromkeys(("minimax_m3_vl", "minimax_m3_vl_text"), _SPARSE),
    **dict.fromkeys(("laguna", "mellum", "step3p7"), _MIXED),
    "mamba2": {"num_heads": 8, "head_dim": 16, "state_size": 16},
    "mistral_large4": {"kv_source_layers": [0, 1]},
    "nemotron": {"num_key_value_heads": 2},
    "reformer": {**_DECODER, "axial_pos_embds_dim": [32, 32], "axial_pos_shape": [16, 16]},
    "xlnet": {"d_head": HEAD_SIZE},
}
_SPREAD = 1.5  # of a random matrix, so that texts do not repeat one token


def families() -> list[str]:
    """Model types, by the name that a config.json has."""
    return sorted({*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES})


def tiny_model(family: str, seed: int) -> Any:
    """A model in float32; raises whatever transformers raises where it cannot be built."""
    config = small_config(CONFIG_MAPPING[family](), **_CHANGES.get(family, {}))
    torch.manual_seed(seed)
    model = text_class(config).from_config(config).eval()
    if model.can_generate():
        model.generation_config.eos_token_id = None
    _draw(model, seed)
    return model


def _draw(model: Any, seed: int) -> None:
    """Matrices anew and wide, vectors moved: what starts as 0 or 1 has to count as well."""
    generator = torch.Generator().manual_seed(seed)
    embeddings = {id(model.get_input_embeddings().weight)}
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if id(parameter) in embeddings:
            parameter.data = noise
        elif parameter.ndim >= 2:
            parameter.data = noise * _SPREAD / parameter.shape[-1] ** 0.5
        else:
            parameter.data += 0.1 * noise
