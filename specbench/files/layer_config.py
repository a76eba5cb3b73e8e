"""The config of a head's own decoder layers: read with care, and refused where it is not run."""

import math
from collections.abc import Collection, Mapping

from specbench.errors import ModelError
from specbench.files.attention import rope_type
from specbench.files.fields import MOST_LAYERS, Fields
from specbench.files.head_files import HeadFiles, Shaped

LAYER_NEEDS = ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
# Numbers above 0 where a config has them.
SIZES = (*LAYER_NEEDS, "num_key_value_heads", "head_dim", "max_position_embeddings")
SLIDING, FULL = "sliding_attention", "full_attention"
_ATTENTION = {FULL, SLIDING}
# What Qwen's config classes take for fields that a file leaves out. Source: transformers.
_QWEN = ("qwen2", "qwen3")
_FIRST_WINDOW, _QWEN_WINDOW = 28, 4096
# Dense families whose whole models run in tests/decoding, by their model type: what transformers'
# classes mean by a config that is silent.
DENSE: Mapping[str, Mapping[str, int]] = {
    "llama": {},
    "mistral": {"num_key_value_heads": 8},
    "qwen2": {"num_key_value_heads": 32},
    "qwen3": {"num_key_value_heads": 32, "head_dim": 128},
}
# What would change the computation, with the value that does not.
_NEUTRAL = {
    "partial_rotary_factor": 1.0,
    "attn_logit_softcapping": 0.0,
    "residual_multiplier": 1.0,
    "embedding_multiplier": 1.0,
    "logits_scaling": 1.0,
    "clip_qkv": 0.0,
}


def layer_fields(files: HeadFiles[Shaped]) -> Fields:
    """The config of a head's decoder layers; ModelError if it lacks something or heads cannot run
    it."""
    fields = files.fields.section("transformer_layer_config") or files.fields
    if lacking := [name for name in LAYER_NEEDS if not fields.has(name)]:
        fields.lacks(*lacking)
    for name in SIZES:
        fields.whole(name, least=1)
    fields.whole("num_hidden_layers", least=1, most=MOST_LAYERS)
    for name in ("rms_norm_eps", "rope_theta"):
        fields.number(name)
    fields.flag("mlp_bias")
    for name in ("hidden_act", "model_type"):
        fields.text(name)
    _refuse_unread(files.fields, fields)
    _refuse_uneven_heads(fields)
    layer_windows(fields)
    _refuse_positions(fields)
    _refuse_scales(fields)
    return fields


def head_size(fields: Fields) -> int:
    """Numbers in a key of one attention head."""
    heads = fields.must("num_attention_heads", least=1)
    return fields.whole("head_dim", least=1) or fields.must("hidden_size", least=1) // heads


def layer_shapes(
    fields: Fields,
    names: Collection[str],
    prefix: str = "",
    *,
    width: int | None = None,
    kind: str | None = None,
) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors of dense decoder layers, biases of attention as `names` has them.

    `width` is how many numbers the first layer's attention reads, if not the hidden size; `kind`
    the model type, if it is no head: their layers are those of Llama or Qwen 3.
    """
    if kind is None:
        kind = "qwen3" if fields.text("model_type") == "qwen3" else "llama"
    silent = DENSE[kind]
    F, inner = fields.must("hidden_size"), fields.must("intermediate_size")
    heads = fields.must("num_attention_heads")
    kv_heads = fields.whole("num_key_value_heads") or silent.get("num_key_value_heads") or heads
    size = fields.whole("head_dim") or silent.get("head_dim") or head_size(fields)
    has_mlp_bias = kind == "llama" and fields.flag("mlp_bias")
    shapes: dict[str, tuple[int, ...]] = {}
    for i in range(fields.whole("num_hidden_layers") or 1):
        layer, read = f"{prefix}layers.{i}.", F if i else width or F
        linears = {
            "self_attn.q_proj": (heads * size, read),
            "self_attn.k_proj": (kv_heads * size, read),
            "self_attn.v_proj": (kv_heads * size, read),
            "self_attn.o_proj": (F, heads * size),
            "mlp.gate_proj": (inner, F),
            "mlp.up_proj": (inner, F),
            "mlp.down_proj": (F, inner),
        }
        for name, shape in linears.items():
            shapes[f"{layer}{name}.weight"] = shape
            bias = f"{layer}{name}.bias"
            if has_mlp_bias if name.startswith("mlp.") else bias in names:
                shapes[bias] = shape[:1]
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{layer}{name}.weight"] = (F,)
        for name in ("q_norm", "k_norm") if kind == "qwen3" else ():
            shapes[f"{layer}self_attn.{name}.weight"] = (size,)
    return shapes


def layer_windows(fields: Fields) -> tuple[int | None, ...]:
    """By layer, how many tokens one sees, itself included; None: all. ModelError.

    Where `layer_types` are left out it means what transformers' classes make of it: Llama has
    no windows, Mistral has them in all layers, Qwen from layer `max_window_layers` on.
    """
    num_layers = fields.whole("num_hidden_layers") or 1
    window, is_on = fields.whole("sliding_window", least=1), fields.flag("use_sliding_window")
    first, kind = fields.whole("max_window_layers"), fields.text("model_type")
    if types := fields.texts("layer_types"):
        if len(types) < num_layers or set(types) - _ATTENTION:
            fields.fail("layer_types", f"{' or '.join(sorted(_ATTENTION))} for {num_layers} layers")
        slides = [types[i] == SLIDING for i in range(num_layers)]
    elif kind == "mistral":
        slides = [bool(window)] * num_layers
    else:
        starts = _FIRST_WINDOW if first is None else first
        slides = [kind in _QWEN and is_on is True and i >= starts for i in range(num_layers)]
    if window is None and kind in _QWEN and is_on:
        window = _QWEN_WINDOW
    if any(slides) and window is None:
        fields.fail("sliding_window", f"a number of tokens, for layers of type {SLIDING}")
    return tuple(window if is_sliding else None for is_sliding in slides)


def _refuse_unread(config: Fields, layer: Fields) -> None:
    if config.has("quantization_config"):
        raise ModelError(
            f"{config.source}: its config has a quantization_config, and quantised heads are not "
            "read; choose a copy in plain weights"
        )
    if layer.has("kv_lora_rank"):
        raise ModelError(
            f"{config.source}: its layers have latent attention (kv_lora_rank), which heads cannot "
            "run; choose a head with plain attention"
        )


def _refuse_uneven_heads(fields: Fields) -> None:
    heads = fields.must("num_attention_heads")
    if heads % (fields.whole("num_key_value_heads") or heads):
        fields.fail("num_key_value_heads", f"a divisor of num_attention_heads, {heads}")
    if head_size(fields) % 2 or not head_size(fields):
        name = "head_dim" if fields.has("head_dim") else "hidden_size"
        fields.fail(name, "such that each attention head has an even number of its own")


def _refuse_positions(fields: Fields) -> None:
    rope = fields.section("rope_parameters") or fields.section("rope_scaling")
    if rope is None:
        return
    for name in ("rope_type", "type"):
        rope.text(name)
    for name in ("rope_theta", "factor"):
        rope.number(name)
    if rope_type(rope.values) == "dynamic":
        raise ModelError(
            f"{fields.source}: rope_type dynamic rescales positions by the current length; "
            "set it to default in the head's config"
        )
    if rope.number("partial_rotary_factor") not in (None, 1.0):
        _refuse(rope, "partial_rotary_factor", 1.0)


def _refuse_scales(fields: Fields) -> None:
    for name, neutral in _NEUTRAL.items():
        if fields.number(name) not in (None, neutral):
            _refuse(fields, name, neutral)
    size = head_size(fields)
    scalar = fields.number("query_pre_attn_scalar")
    if scalar is not None and scalar != size:
        _refuse(fields, "query_pre_attn_scalar", size)
    multiplier = fields.number("attention_multiplier")
    if multiplier is not None and not math.isclose(multiplier, size**-0.5, rel_tol=1e-3):
        _refuse(fields, "attention_multiplier", size**-0.5)


def _refuse(fields: Fields, name: str, neutral: float) -> None:
    raise ModelError(
        f"{fields.source}: {fields.path}{name} is {fields.values[name]!r}, which heads cannot run "
        f"({neutral:g} would change nothing); choose a head with plain attention"
    )
