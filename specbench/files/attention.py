"""Which kinds of attention the decoder runs, and how much context they hold, by the config."""

from collections.abc import Callable, Mapping
from typing import Any

Fields = Callable[[str], Any]  # a field of a config by name; None where it has none

RECURRENT = (
    "keeps recurrent state that cannot be rolled back after a rejected draft; choose a target and "
    "a draft that have attention layers"
)
NO_TREES = (
    "has recurrent layers, which can only check chains of drafts; choose a method without a tree"
)
ATTENTION_LAYERS = frozenset(
    {"full_attention", "sliding_attention", "chunked_attention", "attention"}
)
STATE_LAYERS = ("linear_attention", "conv")  # by the names that masks go by
# `mamba` is an older name; `hybrid` layers have attention and a state; the last two have neither.
_KNOWN_LAYER_TYPES = ATTENTION_LAYERS | {*STATE_LAYERS, "mamba", "hybrid", "mlp", "moe"}
_OWN_LAYER_TYPES = {"zaya": {"hybrid_sliding"}}  # others call the mask of such a layer otherwise
_WITH_ALIBI = ("bloom", "mpt")  # by model type; others have a field for it
_PICKED = ("index_topk", "keep_window_size")  # DeepSeek V3.2, GLM with DSA; Doge
ELSEWHERE = "measure it with --engine transformers, or with vllm where vLLM serves it"

# Model types with recurrent or convolutional layers beside attention.
_HYBRIDS = frozenset(
    {
        *("qwen3_next", "qwen3_5", "qwen3_5_moe", "kimi_linear", "olmo_hybrid", "minimax"),
        *("nemotron_h", "granitemoehybrid", "falcon_h1", "bamba", "jamba", "zamba", "zamba2"),
        *("lfm2", "lfm2_moe", "lfm3", "zaya"),
    }
)


def is_hybrid(fields: Fields) -> bool:
    """Whether layers keep a state beside keys and values, which is rolled back position by
    position: such a model can only check chains of drafts."""
    if str(fields("model_type")).removesuffix("_text") not in _HYBRIDS:
        return False
    kinds = fields("layer_types")
    is_told = isinstance(kinds, list)
    return not (is_told and all(isinstance(k, str) and k in ATTENTION_LAYERS for k in kinds))


def unsupported_attention(fields: Fields) -> str | None:
    """Why the decoder would be wrong, to be read after the model's name; None where it is not."""
    known = _KNOWN_LAYER_TYPES | _OWN_LAYER_TYPES.get(str(fields("model_type")), set())
    if unknown := set(fields("layer_types") or ()) - known:
        return (
            f"has layers of type {', '.join(sorted(unknown))}; "
            f"supported: {', '.join(sorted(_KNOWN_LAYER_TYPES))}; {ELSEWHERE}"
        )
    if any(rope_type(rope) == "dynamic" for rope in ropes(fields)):
        return (
            "rescales its rotary positions by the current length (rope_type dynamic), "
            "which makes text depend on drafts; set rope_type to default in its config"
        )
    for name in _PICKED:
        if budget := fields(name):
            return (
                f"picks the {budget} slots that a token sees by an index of its own ({name}), "
                f"which the decoder does not keep; {ELSEWHERE}"
            )
    if fields("alibi") or fields("model_type") in _WITH_ALIBI:
        return (
            "uses ALiBi, whose bias counts slots where the decoder has positions, so trees and "
            f"ragged rows would be wrong; {ELSEWHERE}"
        )
    return None


def longest_context(fields: Fields) -> int | None:
    """Tokens of context the model was made for, up to where its positions change their meaning.

    longrope turns a whole batch to other frequencies once any position, a draft's or a
    neighbour's, passes the original length: beyond it text would depend on both. Llama 4 scales
    the queries of layers without rope from `floor_scale` tokens on by a position that it takes
    from a cache of its own.
    """
    limits = [fields("max_position_embeddings")]
    if fields("attn_temperature_tuning") and fields("floor_scale"):
        limits.append(fields("floor_scale") - 1)
    for rope in ropes(fields):
        if rope_type(rope) == "longrope":
            name = "original_max_position_embeddings"
            limits.append(rope.get(name) or fields(name))
    return min((limit for limit in limits if limit is not None), default=None)


def ropes(fields: Fields) -> list[Mapping[str, Any]]:
    """The settings of the rotary positions; mixed layers have one set per layer type."""
    rope = fields("rope_parameters") or fields("rope_scaling") or {}
    return [kind for kind in rope.values() if isinstance(kind, dict)] or [rope]


def rope_type(rope: Mapping[str, Any]) -> Any:
    """Under the key of today, else that of older configs."""
    return rope.get("rope_type") or rope.get("type")
