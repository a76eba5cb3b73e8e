"""Reads what config.json states about a model and its layers; the file is untrusted input."""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any, NoReturn

from specbench.errors import ModelError

MOST_LAYERS = 1000  # more than any draft head has


@dataclass(frozen=True, kw_only=True, slots=True)
class Fields:
    """A mapping in a config.json; `source` is the folder's name in messages.

    Each reader returns None if the field is missing or null. If its type is wrong, the reader
    raises a ModelError with the source, the field and the value.
    """

    source: str
    values: Mapping[str, Any] = field(repr=False)
    path: str = ""  # path of a nested mapping, ending in a dot; empty for the whole config

    def has(self, name: str) -> bool:
        return self.values.get(name) is not None

    def whole(self, name: str, least: int = 0, most: int | None = None) -> int | None:
        """A whole number from `least` to `most`; `most` None: no upper limit."""
        value = self.values.get(name)
        if value is None:
            return None
        if not _is_whole(value) or value < least or (most is not None and value > most):
            upper = "or more" if most is None else f"to {most}"
            self.fail(name, f"a whole number, {least} {upper}")
        return int(value)

    def must(self, name: str, least: int = 0) -> int:
        """A whole number from `least`; ModelError if it is missing."""
        value = self.whole(name, least)
        if value is None:
            self.fail_missing(name)
        return value

    def number(self, name: str) -> float | None:
        """A finite number."""
        value = self.values.get(name)
        if value is None:
            return None
        if not _is_number(value):
            self.fail(name, "a number")
        return float(value)

    def above_0(self, name: str) -> None:
        """Raise a ModelError if the field is not a finite number above 0."""
        if (value := self.number(name)) is not None and value <= 0:
            self.fail(name, "a number above 0")

    def numbers_above_0(self, name: str, length: int) -> None:
        """Raise a ModelError if the field is not a list of `length` finite numbers above 0."""
        value = self.values.get(name)
        items = value if isinstance(value, list) else []
        if len(items) != length or not all(_is_number(item) and item > 0 for item in items):
            self.fail(name, f"a list of {length} numbers above 0")

    def flag(self, name: str) -> bool | None:
        value = self.values.get(name)
        if not isinstance(value, bool | None):
            self.fail(name, "true or false")
        return value

    def text(self, name: str) -> str | None:
        value = self.values.get(name)
        if not isinstance(value, str | None):
            self.fail(name, "a string")
        return value

    def ids(self, name: str) -> tuple[int, ...] | None:
        """A list of whole numbers of at least 0; it may be empty."""
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, list | tuple) or not all(_is_whole(i) and i >= 0 for i in value):
            self.fail(name, "a list of whole numbers, 0 or more")
        return tuple(value)

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings; empty if the field is missing."""
        value = self.values.get(name)
        if value is None:
            return ()
        if not isinstance(value, list | tuple) or not all(isinstance(t, str) for t in value):
            self.fail(name, "a list of strings")
        return tuple(value)

    def section(self, name: str) -> "Fields | None":
        """A nested mapping."""
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            self.fail(name, "a mapping")
        return Fields(source=self.source, values=value, path=f"{self.path}{name}.")

    def require(self, *names: str) -> None:
        """Raise a ModelError that lists the fields that are missing."""
        if missing := [name for name in names if not self.has(name)]:
            self.fail_missing(*missing)

    def not_null(self, *names: str) -> None:
        """Raise a ModelError for a field that is null instead of missing: libraries fail at it."""
        for name in names:
            if name in self.values and not self.has(name):
                raise ModelError(
                    f"{self.source}: config.json: {self.path}{name} is null; give it a value, or "
                    "leave it out"
                )

    def fail_missing(self, *names: str) -> NoReturn:
        raise ModelError(f"{self.source}: config.json has no {', '.join(names)}")

    def fail(self, name: str, wanted: str) -> NoReturn:
        value = repr(self.values.get(name))
        value = value if len(value) <= 80 else f"{value[:77]}..."
        raise ModelError(
            f"{self.source}: config.json: {self.path}{name} is {value}; expected {wanted}"
        )


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63


def _is_number(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return abs(value) <= 1e300 and isfinite(value)


ReadField = Callable[[str], Any]  # reads a config field by name; None if it is missing


@dataclass(frozen=True, kw_only=True, slots=True)
class Experts:
    """The routed experts of a layer in a mixture of experts."""

    num: int
    per_token: int

    @classmethod
    def of(cls, num: Any, per_token: Any) -> "Experts | None":
        """The experts described by two config values; None if the model is not a mixture."""
        is_mixture = _is_whole(num) and _is_whole(per_token) and 0 < per_token < num
        return cls(num=num, per_token=per_token) if is_mixture else None

    def expected(self, num_tokens: int) -> float:
        """The average number of distinct experts that `num_tokens` use, if routing is uniform."""
        return self.num * (1 - (1 - self.per_token / self.num) ** num_tokens)


# Each is a reason that follows a model's name in an error.
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
STATE_LAYERS = ("linear_attention", "conv")  # as transformers names their masks
# `mamba` layers have a state, `hybrid` ones attention and a state, `mlp` and `moe` ones neither.
_KNOWN_LAYER_TYPES = ATTENTION_LAYERS | {*STATE_LAYERS, "mamba", "hybrid", "mlp", "moe"}
_OWN_LAYER_TYPES = {"zaya": {"hybrid_sliding"}}  # other model types name this mask differently
_WITH_ALIBI = ("bloom", "mpt")  # model types; other models have an `alibi` field
# Fields of models that attend to a selection of tokens: DeepSeek V3.2 and GLM with DSA; Doge.
_SELECTIVE_ATTENTION = ("index_topk", "keep_window_size")
ELSEWHERE = "measure it with --engine transformers, or with vllm if vLLM serves it"

# Model types with recurrent or convolutional layers in addition to attention.
_HYBRIDS = frozenset(
    {
        *("qwen3_next", "qwen3_5", "qwen3_5_moe", "kimi_linear", "olmo_hybrid", "minimax"),
        *("nemotron_h", "granitemoehybrid", "falcon_h1", "bamba", "jamba", "zamba", "zamba2"),
        *("lfm2", "lfm2_moe", "lfm3", "zaya"),
    }
)


def is_hybrid(fields: ReadField) -> bool:
    """Whether layers keep a state in addition to keys and values. The state is rolled back by
    position, so such a model can only verify chains of draft tokens."""
    if str(fields("model_type")).removesuffix("_text") not in _HYBRIDS:
        return False
    kinds = fields("layer_types")
    is_list = isinstance(kinds, list)
    return not (is_list and all(isinstance(k, str) and k in ATTENTION_LAYERS for k in kinds))


def unsupported_attention(fields: ReadField) -> str | None:
    """Why the decoder does not support the model, worded to follow its name; None if it does."""
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
    for name in _SELECTIVE_ATTENTION:
        if budget := fields(name):
            return (
                f"picks the {budget} slots that a token sees by a separate index ({name}), "
                f"which the decoder does not keep; {ELSEWHERE}"
            )
    if fields("alibi") or fields("model_type") in _WITH_ALIBI:
        return (
            "uses ALiBi, whose bias counts slots instead of positions, so trees and "
            f"ragged rows would be wrong; {ELSEWHERE}"
        )
    return None


def longest_context(fields: ReadField) -> int | None:
    """The longest context, in tokens, that the config states or the model's positions have."""
    limits = (fields("max_position_embeddings"), num_positions(fields))
    return min((limit for limit in limits if limit is not None), default=None)


_ROTARY_FIELDS = ("rope_parameters", "rope_scaling", "rope_theta", "rotary_emb_base")


def num_positions(fields: ReadField) -> int | None:
    """The number of positions before they end or change their meaning; None: rotary positions,
    which go on, whatever context the config states.

    Learned positions and tables of sines end. longrope switches the whole batch to other
    frequencies once any position, a draft token's or another sequence's, passes the original
    length. Beyond it, text would depend on both. From `floor_scale` tokens on, Llama 4 scales the
    queries of layers without rope by a position that it takes from its own cache.
    """
    limits = []
    is_rotary = fields("model_type") in (*DENSE, "falcon")  # older configs of these do not say so
    if not (is_rotary or any(fields(name) is not None for name in _ROTARY_FIELDS)):
        limits.append(fields("max_position_embeddings"))
    if fields("attn_temperature_tuning") and fields("floor_scale"):
        limits.append(fields("floor_scale") - 1)
    for rope in ropes(fields):
        if rope_type(rope) == "longrope":
            name = "original_max_position_embeddings"
            limits.append(rope.get(name) or fields(name))
    return min((limit for limit in limits if limit is not None), default=None)


def ropes(fields: ReadField) -> list[Mapping[str, Any]]:
    """The settings of the rotary positions; mixed layers have one set per layer type.

    The older name takes precedence, as in transformers.
    """
    rope = fields("rope_scaling") or fields("rope_parameters") or {}
    return [kind for kind in rope.values() if isinstance(kind, dict)] or [rope]


def rope_type(rope: Mapping[str, Any]) -> Any:
    """The type of rotary positions, under the current key or that of older configs."""
    return rope.get("rope_type") or rope.get("type")


LAYER_NEEDS = ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
# Fields that must be above 0 if they are present.
SIZES = (*LAYER_NEEDS, "num_key_value_heads", "head_dim", "max_position_embeddings")
SLIDING, FULL = "sliding_attention", "full_attention"
_ATTENTION = {FULL, SLIDING}
_QWEN = ("qwen2", "qwen3")
# Qwen's defaults: the first layer with a window, and the window in tokens. Source: transformers.
_FIRST_WINDOW, _QWEN_WINDOW = 28, 4096
# Dense families whose whole models run in tests/decoding, by model type, with the defaults that
# their transformers classes have for missing fields.
DENSE: Mapping[str, Mapping[str, int]] = {
    "llama": {},
    "mistral": {"num_key_value_heads": 8},
    "qwen2": {"num_key_value_heads": 32},
    "qwen3": {"num_key_value_heads": 32, "head_dim": 128},
}
# Types of rotary positions, with the fields that each requires.
_ROPES: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "proportional": (),
    "dynamic": ("factor",),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "longrope": ("short_factor", "long_factor"),
    "yarn": ("factor",),
}
_NOT_NULL_ROPE = ("rope_type", "rope_theta", "original_max_position_embeddings")
_ABOVE_0_ROPE = (
    *("rope_theta", "factor", "original_max_position_embeddings", "beta_fast", "beta_slow"),
    *("low_freq_factor", "high_freq_factor"),
)
# Names of dtypes in torch.
DTYPES = frozenset(
    {
        *("float64", "double", "float32", "float", "float16", "half", "bfloat16"),
        *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
        *("int64", "int32", "int16", "int8", "uint8", "float4_e2m1fn_x2"),
    }
)
# Activations, as transformers names them.
ACTIVATIONS = frozenset(
    {
        *("gelu", "quick_gelu", "relu", "relu2", "relu6", "leaky_relu", "prelu", "xielu", "mish"),
        *("silu", "swish", "hardswish", "sigmoid", "tanh", "laplace", "linear", "sqrtsoftplus"),
        *("gelu_10", "gelu_accurate", "gelu_fast", "gelu_new", "gelu_python"),
        *("gelu_python_tanh", "gelu_pytorch_tanh"),
    }
)
# Fields that change the computation, each with the value at which it changes nothing.
_NEUTRAL = {
    "partial_rotary_factor": 1.0,
    "attn_logit_softcapping": 0.0,
    "residual_multiplier": 1.0,
    "embedding_multiplier": 1.0,
    "logits_scaling": 1.0,
    "clip_qkv": 0.0,
}


def layer_fields(config: Fields) -> Fields:
    """The part of a draft head's config that describes its decoder layers; ModelError if a required
    field is missing or a draft head cannot run such layers."""
    fields = config.section("transformer_layer_config") or config
    rope = _rope(fields)
    if rope and rope_type(rope.values) == "mrope":  # a text's positions are equal in all sections
        plain = {**rope.values, "rope_type": "default", "type": "default"}
        fields = replace(fields, values={**fields.values, rope.path.rstrip("."): plain})
    fields.require(*LAYER_NEEDS)
    for name in SIZES:
        fields.whole(name, least=1)
    fields.whole("num_hidden_layers", least=1, most=MOST_LAYERS)
    fields.text("model_type")
    require_layers(fields)
    refuse_unsupported_layers(config, fields)
    _refuse_attention_head_sizes(fields)
    layer_windows(fields)
    _refuse_positions(fields)
    _refuse_scales(fields)
    return fields


def require_layers(fields: Fields) -> None:
    """Raise ModelError for values from which transformers cannot build a dense family's layers."""
    if fields.text("hidden_act") not in (None, *ACTIVATIONS):
        fields.fail("hidden_act", "an activation that transformers has")
    for name in ("rms_norm_eps", "rope_theta"):
        fields.above_0(name)
    if isinstance(fields.values.get("rms_norm_eps"), int):  # refused by transformers
        fields.fail("rms_norm_eps", "a fraction, such as 1e-6")
    for name in ("attention_dropout", "initializer_range"):
        fields.number(name)
    for name in ("attention_bias", "mlp_bias", "tie_word_embeddings", "use_sliding_window"):
        fields.flag(name)
    for name in ("max_position_embeddings", "sliding_window"):
        fields.whole(name, least=1)
    if (rope := _rope(fields)) is None:
        return
    for name in ("rope_type", "type"):
        rope.text(name)
    rope.not_null(*_NOT_NULL_ROPE)
    for name in _ABOVE_0_ROPE:
        rope.above_0(name)
    for name in ("attention_factor", "mscale", "mscale_all_dim"):
        rope.number(name)
    kind = rope_type(rope.values) or "default"
    if kind not in _ROPES:
        rope.fail("rope_type" if rope.has("rope_type") else "type", f"one of {', '.join(_ROPES)}")
    if missing := [name for name in _ROPES[kind] if not rope.has(name)]:
        rope.fail_missing(*(f"{rope.path}{name} (rope_type {kind})" for name in missing))
    share = rope.number("partial_rotary_factor") or 1.0
    for name in ("short_factor", "long_factor") if kind == "longrope" else ():
        rope.numbers_above_0(name, int(head_size(fields) * share) // 2)


_EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts")
_MOST_EXPERTS = 2**16  # each has names of its own
ROUTING = (*_EXPERTS, "num_experts_per_tok", "n_group", "topk_group", "topk_method")


def require_routing(fields: Fields) -> None:
    """Raise ModelError for numbers with which no router of a mixture of experts can choose; a list
    has a number per layer, and one expert needs no router."""
    single = {n: v for n, v in fields.values.items() if not isinstance(v, list)}
    fields = replace(fields, values=single)
    experts = max(fields.whole(name, most=_MOST_EXPERTS) or 0 for name in _EXPERTS)
    if experts > 1:
        fields.whole("num_experts_per_tok", least=1, most=experts)
    if experts > 1 and fields.values.get("topk_method") != "greedy":  # reads no groups
        groups = fields.whole("n_group", least=1, most=experts)
        if groups and experts % groups:
            fields.fail("n_group", f"a divisor of the number of experts, {experts}")
        fields.whole("topk_group", least=1, most=groups)


def _rope(fields: Fields) -> Fields | None:
    """The first section about rotary positions that is not empty; the older name comes first."""
    sections = (fields.section(name) for name in ("rope_scaling", "rope_parameters"))
    return next((section for section in sections if section and section.values), None)


def _biased_projections(fields: Fields, kind: str) -> str:
    """The letters of the projections q, k, v and o that have a bias in a dense family."""
    if kind == "qwen2":
        return "qkv"
    return "qkvo" if kind in ("llama", "qwen3") and fields.flag("attention_bias") else ""


def head_size(fields: Fields) -> int:
    """The number of elements in one attention head's key."""
    default_size = DENSE.get(fields.text("model_type") or "", {}).get("head_dim")
    num_heads = fields.must("num_attention_heads", least=1)
    split = fields.must("hidden_size", least=1) // num_heads
    return fields.whole("head_dim", least=1) or default_size or split


def layer_shapes(
    fields: Fields,
    names: Collection[str],
    prefix: str = "",
    *,
    width: int | None = None,
    kind: str | None = None,
) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors of dense decoder layers.

    `width` is the input size of the first layer's attention; None: the hidden size. `kind` is the
    model type of a whole model, whose config states which biases attention has; None: a head,
    whose layers are those of Llama or Qwen 3, with the biases in `names`.
    """
    biased = None if kind is None else _biased_projections(fields, kind)
    if kind is None:
        kind = "qwen3" if fields.text("model_type") == "qwen3" else "llama"
    defaults = DENSE[kind]
    F, inner = fields.must("hidden_size"), fields.must("intermediate_size")
    heads = fields.must("num_attention_heads")
    kv_heads = fields.whole("num_key_value_heads") or defaults.get("num_key_value_heads") or heads
    size = head_size(fields)
    has_mlp_bias = kind == "llama" and fields.flag("mlp_bias")
    shapes: dict[str, tuple[int, ...]] = {}
    for i in range(fields.whole("num_hidden_layers", most=MOST_LAYERS) or 1):
        layer, input_size = f"{prefix}layers.{i}.", F if i else width or F
        linears = {
            "self_attn.q_proj": (heads * size, input_size),
            "self_attn.k_proj": (kv_heads * size, input_size),
            "self_attn.v_proj": (kv_heads * size, input_size),
            "self_attn.o_proj": (F, heads * size),
            "mlp.gate_proj": (inner, F),
            "mlp.up_proj": (inner, F),
            "mlp.down_proj": (F, inner),
        }
        for name, shape in linears.items():
            shapes[f"{layer}{name}.weight"] = shape
            bias = f"{layer}{name}.bias"
            if name.startswith("mlp."):
                has_bias = has_mlp_bias
            else:
                has_bias = bias in names if biased is None else name[len("self_attn.")] in biased
            if has_bias:
                shapes[bias] = shape[:1]
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{layer}{name}.weight"] = (F,)
        for name in ("q_norm", "k_norm") if kind == "qwen3" else ():
            shapes[f"{layer}self_attn.{name}.weight"] = (size,)
    return shapes


def layer_windows(fields: Fields) -> tuple[int | None, ...]:
    """Each layer's attention window in tokens, including the token itself; None: no window.

    If `layer_types` is missing, the defaults of transformers' classes apply: Llama has no windows,
    Mistral has them in all layers, Qwen from layer `max_window_layers` on. Raises ModelError.
    """
    num_layers = fields.whole("num_hidden_layers", most=MOST_LAYERS) or 1
    window, is_on = fields.whole("sliding_window", least=1), fields.flag("use_sliding_window")
    max_window_layers, kind = fields.whole("max_window_layers"), fields.text("model_type")
    if types := fields.texts("layer_types"):
        if len(types) < num_layers or set(types) - _ATTENTION:
            fields.fail("layer_types", f"{' or '.join(sorted(_ATTENTION))} for {num_layers} layers")
        slides = [types[i] == SLIDING for i in range(num_layers)]
    elif kind == "mistral":
        slides = [bool(window)] * num_layers
    else:
        first = _FIRST_WINDOW if max_window_layers is None else max_window_layers
        slides = [kind in _QWEN and is_on is True and i >= first for i in range(num_layers)]
    if window is None and kind in _QWEN and is_on:
        window = _QWEN_WINDOW
    if any(slides) and window is None:
        fields.fail("sliding_window", f"a number of tokens, for layers of type {SLIDING}")
    return tuple(window if is_sliding else None for is_sliding in slides)


def refuse_unsupported_layers(config: Fields, layer: Fields) -> None:
    """Raise ModelError for layers that are stored quantized or keep latents instead of keys."""
    if config.has("quantization_config"):
        raise ModelError(
            f"{config.source}: its config has a quantization_config, and quantized heads are not "
            "read; choose a copy in plain weights"
        )
    if layer.has("kv_lora_rank"):
        raise ModelError(
            f"{config.source}: its layers have latent attention (kv_lora_rank), which heads cannot "
            "run; choose a head with plain attention"
        )


def _refuse_attention_head_sizes(fields: Fields) -> None:
    num_heads = fields.must("num_attention_heads")
    if num_heads % (fields.whole("num_key_value_heads") or num_heads):
        fields.fail("num_key_value_heads", f"a divisor of num_attention_heads, {num_heads}")
    if head_size(fields) % 2 or not head_size(fields):
        name = "head_dim" if fields.has("head_dim") else "hidden_size"
        fields.fail(name, "such that each attention head has an even number of elements")


def _refuse_positions(fields: Fields) -> None:
    rope = _rope(fields)
    if rope is None:
        return
    if rope_type(rope.values) == "dynamic":
        raise ModelError(
            f"{fields.source}: rope_type dynamic rescales positions by the current length; "
            "set it to default in the head's config"
        )
    if rope.number("partial_rotary_factor") not in (None, 1.0):
        _refuse_value(rope, "partial_rotary_factor", 1.0)


def _refuse_scales(fields: Fields) -> None:
    for name, neutral in _NEUTRAL.items():
        if fields.number(name) not in (None, neutral):
            _refuse_value(fields, name, neutral)
    size = head_size(fields)
    scalar = fields.number("query_pre_attn_scalar")
    if scalar is not None and scalar != size:
        _refuse_value(fields, "query_pre_attn_scalar", size)
    multiplier = fields.number("attention_multiplier")
    if multiplier is not None and not math.isclose(multiplier, size**-0.5, rel_tol=1e-3):
        _refuse_value(fields, "attention_multiplier", size**-0.5)


def _refuse_value(fields: Fields, name: str, neutral: float) -> None:
    raise ModelError(
        f"{fields.source}: {fields.path}{name} is {fields.values[name]!r}, which heads cannot run "
        f"({neutral:g} would change nothing); choose a head with plain attention"
    )
