"""Tests whether the decoder runs a model's family, on a small model with random weights.

The small model's config has the same kinds of layers and the same flags, but sizes that cost almost
nothing. A family's masks, positions and caches depend on its code and flags, not on its sizes.
"""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
from transformers.quantizers.auto import get_hf_quantizer

from specbench.errors import ModelError
from specbench.files.model_spec import ModelSpec
from specbench.forward.self_test import make_checked_runner
from specbench.models.library_errors import errors_translated
from specbench.models.library_output import quiet
from specbench.models.loading import load_config, refusing
from specbench.models.parts import keep_text_part, text_class
from specbench.models.quantization import named_format


def why_family_fails(spec: ModelSpec) -> str | None:
    """The error that loading the model would raise, according to its config; None if it would run,
    or if no small model of its family can be built."""
    try:
        config = load_config(spec)
        with refusing(spec, "cpu", named_format(config)), quiet():
            get_hf_quantizer(deepcopy(config), None, None, True, {})  # it reads no weights
        auto = text_class(config, trust_remote_code=spec.trust_remote_code)
    except ModelError as error:
        return str(error)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = auto.from_config(small_config(config)).eval()
    except Exception:
        return None  # an inconsistent small config proves nothing about the real one
    try:
        with errors_translated():
            keep_text_part(model)
            make_checked_runner(model)
    except ModelError as error:
        return f"{spec.location}: {error}"
    return None


HIDDEN = 64
HEADS = 4
HEAD_SIZE = 16
VOCABULARY = 128
WINDOW = 12  # shorter than the longest text of the self-test
CONTEXT = 256

# Sizes, each with the names of its fields in the families' configs.
_NAMES: tuple[tuple[int, str], ...] = (
    (VOCABULARY, "vocab_size vocab_size_per_layer_input unpadded_vocab_size"),
    (VOCABULARY, "encoder_hash_byte_group_vocab"),
    (HIDDEN, "hidden_size n_embd d_model embedding_size word_embed_proj_dim embed_dim emb_dim"),
    (HIDDEN, "out_hidden_size text_hidden_size dim_model_base hidden_size_global"),
    (96, "intermediate_size ffn_dim decoder_ffn_dim encoder_ffn_dim d_ff dff dim_ff d_inner"),
    (96, "n_inner ffn_hidden_size intermediate_size_mlp dense_intermediate_size"),
    (32, "moe_intermediate_size shared_expert_intermediate_size shared_intermediate_size"),
    (32, "shared_experts_intermediate_size moe_shared_expert_intermediate_size"),
    (32, "moe_hidden_size share_expert_dim expert_ffn_hidden_size router_hidden_size"),
    (HEADS, "num_attention_heads n_head n_heads num_heads attention_heads index_n_heads"),
    (HEADS, "encoder_attention_heads num_encoder_attention_heads"),
    (HEADS, "decoder_attention_heads num_decoder_attention_heads"),
    (HEADS, "swa_num_attention_heads num_sliding_attention_heads"),
    (2, "num_key_value_heads num_kv_heads swa_num_key_value_heads"),
    (HEAD_SIZE, "head_dim swa_head_dim dim_head kv_channels d_kv v_head_dim qk_head_dim"),
    (HEAD_SIZE, "index_head_dim indexer_head_dim"),
    (8, "qk_rope_head_dim qk_nope_head_dim rotary_dim hidden_size_per_layer_input laurel_rank"),
    (24, "kv_lora_rank q_lora_rank"),
    (4, "num_experts n_routed_experts num_local_experts moe_num_experts"),
    (2, "num_experts_per_tok num_experts_per_token moe_k moe_topk"),
    (2, "depth decoder_layers encoder_layers num_decoder_layers num_encoder_layers"),
    (WINDOW, "sliding_window sliding_window_size window_size local_attention"),
    (2 * HIDDEN, "mamba_d_ssm attention_hidden_size"),
    (2 * HEAD_SIZE, "attention_head_dim"),
    (2, "attn_layer_period"),
    (1, "attn_layer_offset"),
    (8, "mamba_n_heads n_mamba_heads mamba_num_heads mamba_chunk_size"),
    (HEAD_SIZE, "mamba_d_head mamba_head_dim mamba_headdim mamba_d_state ssm_state_size"),
    (2, "linear_num_key_heads"),
    (HEADS, "linear_num_value_heads linear_num_heads"),
    (HEAD_SIZE, "linear_key_head_dim linear_value_head_dim linear_head_dim"),
    (8, "attention_chunk_size index_topk keep_window_size"),
    (4, "index_block_size index_kpool"),
    (1, "n_group num_expert_group topk_group"),
    (2, "index_topk_blocks"),
    (CONTEXT, "max_position_embeddings n_positions n_ctx max_seq_len max_sequence_length"),
    (CONTEXT, "max_target_positions"),
)
_SIZES = {name: size for size, names in _NAMES for name in names.split()}
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "layers", "decoder_layers")
_OF_FILES = ("transformers_version", "architectures", "dtype", "torch_dtype", "model_type")
_PAD, _BOS, _EOS = 0, 1, 2
_SPECIAL = {"pad_token_id": _PAD, "bos_token_id": _BOS, "eos_token_id": _EOS}


def small_config(config: Any, **changes: Any) -> Any:
    """A config of the same class with small sizes; raises any error that the class raises for them.

    `changes` apply to the config of the part that generates text.
    """
    values = _small(config.to_dict())
    text = config.get_text_config(decoder=True)
    names = [name for name in config.sub_configs if getattr(config, name, None) is text]
    (values[names[0]] if names else values).update(changes)
    return type(config)(**{k: v for k, v in values.items() if k not in _OF_FILES})


def _small(values: Mapping[str, Any]) -> dict[str, Any]:
    kept = _kept_layers(values)
    return {name: _small_value(name, value, values, kept) for name, value in values.items()}


def _num_layers(values: Mapping[str, Any]) -> int:
    return next((values[name] for name in _LAYERS if isinstance(values.get(name), int)), 0)


def _kept_layers(values: Mapping[str, Any]) -> list[int]:
    """The indices of the first layer of every kind and of the last layer."""
    num_layers = _num_layers(values)
    kinds = values.get("layer_types") or values.get("layers_block_type")
    if attention := values.get("attn_layer_indices"):  # Bamba
        return sorted({0, attention[0], num_layers - 1})
    if not isinstance(kinds, list) or len(kinds) != num_layers:
        return list(range(min(num_layers, 2)))
    return sorted({*map(kinds.index, kinds), num_layers - 1})


def _small_value(name: str, value: Any, values: Mapping[str, Any], kept: list[int]) -> Any:
    if name in _SPECIAL:
        return _SPECIAL[name]
    if value is None or isinstance(value, bool):
        return value
    if name in _LAYERS:
        return len(kept)
    if name == "head_dim" and value == values.get("qk_rope_head_dim"):
        return _SIZES["qk_rope_head_dim"]  # of latent attention (MLA)
    if name == "num_key_value_heads" and value == values.get("num_attention_heads"):
        return min(value, HEADS)
    if name == "attn_layer_indices":
        return [at for at, layer in enumerate(kept) if layer in (value or ())]
    if name == "num_kv_shared_layers":
        return min(value, 1)
    if name == "per_layer_config":
        of_layers = {int(layer): of_kept for layer, of_kept in value.items()}
        of_kept = {i: of_layers[at] for i, at in enumerate(kept) if at in of_layers}
        return {
            i: {
                key: _small_value(key, setting, {**values, **layer}, kept)
                for key, setting in layer.items()
            }
            for i, layer in of_kept.items()
        }
    if name in ("rope_parameters", "rope_scaling"):
        return _small_rope(value, values)
    if isinstance(value, Mapping):
        return _small(value)
    if isinstance(value, list | tuple):
        return [value[i] for i in kept] if len(value) == _num_layers(values) > 0 else value
    if isinstance(value, int) and name in _SIZES:
        return min(value, _SIZES[name])
    is_token = str(name).endswith(("_token_id", "_token_index", "_token"))
    return min(value, VOCABULARY - 1) if is_token and isinstance(value, int) else value


def _small_rope(rope: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The rope fields; sections of a head's frequencies (Qwen-VL) are scaled to a small head."""
    small: dict[str, Any] = {
        key: _small_rope(setting, values) if isinstance(setting, Mapping) else deepcopy(setting)
        for key, setting in rope.items()
    }
    if sections := small.get("mrope_section"):
        rotated = HEAD_SIZE // 2 * small.get("partial_rotary_factor", 1)
        shares = [int(section * rotated / sum(sections)) for section in sections]
        small["mrope_section"] = [int(rotated) - sum(shares[1:]), *shares[1:]]
    return small
