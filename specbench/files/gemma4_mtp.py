"""Facts about an assistant of Gemma 4 from its files, and whether it fits.

An assistant has queries but no keys and values: each layer attends to those of the target's last
layer of the same type. Source: models/gemma4_assistant of transformers 5.24.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from specbench.errors import ModelError
from specbench.files.config import (
    FULL,
    MOST_LAYERS,
    SLIDING,
    Fields,
    ReadField,
    refuse_unsupported_layers,
    require_layers,
    rope_type,
)
from specbench.files.head_files import (
    TOKEN_ORDERING,
    Fit,
    HeadFiles,
    HeadTarget,
    Shaped,
    misfits,
    require_tensors,
)

# Classes in transformers; the second is that of the 12B model, which also reads pictures as tokens.
_ARCHITECTURES = ("Gemma4AssistantForCausalLM", "Gemma4UnifiedAssistantForCausalLM")
_FULL_HEAD_SIZE = 512  # of Gemma 4's layers with full attention, if the config has no other
_ROPES = ("default", "proportional")
_NEEDS = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")


class KvHeads(NamedTuple):
    """The keys of a layer, as many as its values."""

    layer: int
    num: int
    size: int

    @property
    def words(self) -> str:
        return f"{self.num} of size {self.size}"


def kv_heads(field: ReadField) -> dict[str, KvHeads]:
    """By type of attention, the last layer of a model that stores keys and values, and its heads.

    Empty if the config does not show them, or if layers store something else.
    """
    sizes = [field(name) for name in (*_NEEDS, "num_key_value_heads", "head_dim")]
    hidden, _, count, heads, num, size = (n if type(n) is int and n > 0 else None for n in sizes)
    if not (hidden and count and heads) or field("kv_lora_rank") or count > MOST_LAYERS:
        return {}
    kinds, shared = field("layer_types") or [FULL] * count, field("num_kv_shared_layers") or 0
    by_layer = field("per_layer_config")
    exceptions = {
        int(i): of
        for i, of in (by_layer.items() if isinstance(by_layer, Mapping) else ())
        if str(i).isdecimal() and len(str(i)) < 5 and isinstance(of, Mapping)
    }
    of_full = {
        "num_key_value_heads": field("num_global_key_value_heads"),
        "head_dim": field("global_head_dim"),
    }
    if not field("attention_k_eq_v"):
        of_full["num_key_value_heads"] = None
    is_gemma = str(field("model_type")).startswith("gemma4")
    if is_gemma and field("per_layer_config") is None and of_full["head_dim"] is None:
        of_full["head_dim"] = _FULL_HEAD_SIZE
    by_kind = {}
    if isinstance(kinds, list) and type(shared) is int:
        for i, kind in enumerate(kinds[: count - shared]):
            known = {"num_key_value_heads": num or heads, "head_dim": size or hidden // heads}
            for given in (of_full if kind == FULL else {}, exceptions.get(i, {})):
                known |= {n: v for n, v in given.items() if type(v) is int}
            by_kind[str(kind)] = KvHeads(i, known["num_key_value_heads"], known["head_dim"])
    return by_kind


@dataclass(frozen=True, kw_only=True, slots=True)
class AssistantStyle:
    """The sizes of an assistant; its layers' keys are those of the target."""

    backbone_size: int  # of the target's hidden states
    hidden_size: int
    vocab_size: int
    kinds: tuple[str, ...]  # the attention of each layer
    heads: Mapping[str, KvHeads]  # the target's, by kind
    num_heads: int  # of queries
    window: int  # tokens
    num_centroids: int  # 0: logits of all tokens are computed
    num_chosen: int  # of these centroids' tokens, logits are computed
    text: Fields  # the config of its layers

    @classmethod
    def of(cls, files: HeadFiles[Shaped]) -> "AssistantStyle":
        """Read a config; ModelError for missing or wrong fields, and for unsupported variants."""
        given, text = files.fields, files.fields.section("text_config")
        given.require("backbone_hidden_size", "text_config")
        assert text is not None
        text.require(*_NEEDS, "vocab_size")
        for name in (*_NEEDS, "vocab_size", "num_key_value_heads", "head_dim", "global_head_dim"):
            text.whole(name, least=1)
        count = text.whole("num_hidden_layers", most=MOST_LAYERS) or 1
        refuse_unsupported_layers(given, text)
        kinds = text.texts("layer_types")
        if len(kinds) != count or set(kinds) - {FULL, SLIDING} or kinds[-1] != FULL:
            text.fail("layer_types", f"{SLIDING} or {FULL} for {count} layers, the last one {FULL}")
        for name, value in (("hidden_size_per_layer_input", 0), ("enable_moe_block", False)):
            if text.values.get(name, value) not in (value, None):
                text.fail(name, str(value).lower())
        _require_positions(text, kinds)
        # Sharing counts for the target: an assistant's own layers store nothing.
        heads = kv_heads(lambda n: None if n == "num_kv_shared_layers" else text.values.get(n))
        num_heads = text.must("num_attention_heads")
        for kind, of_kind in heads.items():
            if min(of_kind) < 0 or not of_kind.num or num_heads % of_kind.num or of_kind.size % 2:
                wanted = f"a divisor of {num_heads}, and heads of an even size, for {kind}"
                text.fail("num_key_value_heads", wanted)
        num_centroids, chosen, vocab_size = 0, 0, text.must("vocab_size")
        if given.flag("use_ordered_embeddings"):
            num_centroids = given.whole("num_centroids", least=1) or 2048
            chosen = given.whole("centroid_intermediate_top_k", least=1) or 32
            if vocab_size % num_centroids or chosen > num_centroids:
                given.fail("num_centroids", f"a divisor of vocab_size, {vocab_size}, from {chosen}")
        return cls(
            backbone_size=given.must("backbone_hidden_size", least=1),
            hidden_size=text.must("hidden_size"),
            vocab_size=vocab_size,
            kinds=kinds,
            heads=heads,
            num_heads=num_heads,
            window=text.whole("sliding_window", least=1) or 512,
            num_centroids=num_centroids,
            num_chosen=chosen,
            text=text,
        )

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of its tensors; its output matrix is the embedding, which it does not embed
        tokens with."""
        F, inner, target = self.hidden_size, self.text.must("intermediate_size"), self.backbone_size
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocab_size, F),
            "model.norm.weight": (F,),
            "pre_projection.weight": (F, 2 * target),
            "post_projection.weight": (target, F),
        }
        if self.num_centroids:
            shapes["masked_embedding.centroids.weight"] = (self.num_centroids, F)
        for i, kind in enumerate(self.kinds):
            size = self.heads[kind].size
            layer = {
                "self_attn.q_proj.weight": (self.num_heads * size, F),
                "self_attn.q_norm.weight": (size,),
                "self_attn.o_proj.weight": (F, self.num_heads * size),
                "mlp.gate_proj.weight": (inner, F),
                "mlp.up_proj.weight": (inner, F),
                "mlp.down_proj.weight": (F, inner),
                "layer_scalar": (1,),
            }
            norms = ("input", "post_attention", "pre_feedforward", "post_feedforward")
            layer |= {f"{name}_layernorm.weight": (F,) for name in norms}
            shapes |= {f"model.layers.{i}.{name}": shape for name, shape in layer.items()}
        return shapes

    @property
    def num_unread(self) -> int:
        """Numbers of the output matrix that a step does not read."""
        if not self.num_centroids:
            return 0
        of_centroid = self.vocab_size // self.num_centroids
        return (self.num_centroids - self.num_chosen) * of_centroid * self.hidden_size


def assistant_reason(architecture: str | None) -> str | None:
    """Why a model of this class is an assistant; None if it is not."""
    return f"architecture {architecture}" if architecture in _ARCHITECTURES else None


def assistant_shapes(files: HeadFiles[Shaped], _: HeadTarget) -> Mapping[str, tuple[int, ...]]:
    """The shapes of the weights that stay loaded."""
    return AssistantStyle.of(files).shapes


def gemma4_mtp_fit(files: HeadFiles[Shaped], target: HeadTarget) -> Fit:
    """The sizes of an assistant that must equal the target's, and the target's keys that it
    attends to. ModelError, also if its tensors do not fit."""
    style, of_target = AssistantStyle.of(files), kv_heads(target.field)
    fit: dict[str, tuple[object, object]] = {
        "hidden_size": (style.backbone_size, target.hidden_size),
        "vocab_size": (style.vocab_size, target.vocab_size),
    }
    for kind in dict.fromkeys(style.kinds):
        stored = of_target.get(kind)
        fit[kind] = (style.heads[kind].words, stored.words if stored else "none")
    if files.tensors and not misfits(fit):
        tied = {"lm_head.weight": (style.vocab_size, style.hidden_size)}
        ordering = {TOKEN_ORDERING: (style.vocab_size,)} if style.num_centroids else {}
        require_tensors(files, {**style.shapes, **ordering}, tied)
        if ordering and not all(
            0 <= i < style.vocab_size for i in files.whole_numbers(TOKEN_ORDERING)
        ):
            raise ModelError(f"{files.source}: {TOKEN_ORDERING} must contain ids of tokens")
    return fit


def _require_positions(text: Fields, kinds: tuple[str, ...]) -> None:
    """Raise ModelError for values of which transformers cannot build layers of these kinds."""
    rope = text.section("rope_parameters")
    for kind in set(kinds):
        of_kind = rope.section(kind) if rope and rope.values else None
        if rope and rope.values and of_kind is None:
            rope.fail_missing(f"rope_parameters.{kind}")
        values = {**text.values, "rope_parameters": dict(of_kind.values) if of_kind else None}
        values["hidden_act"] = text.values.get("hidden_activation")
        require_layers(replace(text, values=values))
        if of_kind and (rope_type(of_kind.values) or "default") not in _ROPES:
            of_kind.fail("rope_type", f"one of {', '.join(_ROPES)}")
        share = of_kind.number("partial_rotary_factor") if of_kind else None
        if of_kind and share is not None and share > 1:
            of_kind.fail("partial_rotary_factor", "a share of at most 1")
