"""Facts about an EAGLE or EAGLE-3 head from its files, in all known layouts; whether it fits."""

from dataclasses import dataclass

from specbench.errors import ModelError
from specbench.files.config import Fields, layer_fields, layer_shapes
from specbench.files.head_files import (
    SPECULATORS,
    Fit,
    HeadFiles,
    HeadTarget,
    Shaped,
    misfits,
    require_tensors,
    table_shapes,
    token_ids,
)

# Prefixes of SafeAILab and SpecForge, speculators, and early heads with a norm per captured state.
EAGLE3_NAMES = {
    "model.midlayer.": "layers.0.",
    "midlayer.": "layers.0.",
    "model.": "",
    "aux_norm_low.": "fc_norm.0.",
    "aux_norm_mid.": "fc_norm.1.",
    "aux_norm_high.": "fc_norm.2.",
}
# Prefixes of an EAGLE head's tensors in checkpoints, with ours; speculators uses the last two.
EAGLE_NAMES = {"model.": "", "fusion_fc.": "fc.", "transformer.": "layers.0."}
MASK_IDS = ("mask_token_id", "pard_token", "ptd_token_id")
_IDS = "eagle_aux_hidden_state_layer_ids"


def default_layer_ids(num_layers: int) -> tuple[int, ...]:
    """The states that a head fuses if its config lists none; state i is the input of layer i."""
    ids = (2, num_layers // 2, num_layers - 3)
    return tuple(sorted(min(max(i, 0), num_layers - 1) for i in ids))


@dataclass(frozen=True, kw_only=True, slots=True)
class Style:
    """Properties that differ between heads, from their configs."""

    num_tokens: int
    layer_ids: tuple[int, ...]  # numbers of states; state i is the input of layer i
    norm_before_residual: bool  # the residual is the normalized state
    norm_before_fc: bool  # one norm over all captured states
    fc_norm: bool  # one norm per captured state
    norm_output: bool  # the last norm is applied to the state that is fed back (EAGLE-3.1)
    logit_scale: float
    mask_id: int | None = None  # of a head that drafts all tokens in one forward pass (P-EAGLE)

    @classmethod
    def of(cls, files: HeadFiles[Shaped], num_layers: int, *, is_parallel: bool = False) -> "Style":
        """Read a config; ModelError for another kind of head, or layers that the target lacks."""
        config, source = files.fields, files.source
        inner = config.section("eagle_config")
        _refuse_other_kinds(config, inner, is_parallel=is_parallel)
        layer_ids = _layer_ids(config, inner) or default_layer_ids(num_layers)
        count = config.whole("num_aux_hidden_states") or len(layer_ids)
        if count != len(layer_ids):
            raise ModelError(
                f"{source}: num_aux_hidden_states is {count}, and {_IDS} are {list(layer_ids)}"
            )
        if not all(0 <= i <= num_layers for i in layer_ids):
            raise ModelError(
                f"{source} was not made for this target: {_IDS} are {list(layer_ids)}, the "
                f"inputs of the target's layers go from 0 to {num_layers - 1}, and {num_layers} is "
                "the last one's output"
            )
        layer = config.section("transformer_layer_config") or config
        scale = config.number("logit_scale")
        return cls(
            num_tokens=config.whole("draft_vocab_size") or layer.must("vocab_size", least=1),
            layer_ids=layer_ids,
            norm_before_residual=bool(config.flag("norm_before_residual")),
            norm_before_fc=bool(config.flag("norm_before_fc")),
            fc_norm=bool(config.flag("fc_norm")),
            norm_output=bool(config.flag("norm_output")),
            logit_scale=scale or 1.0,
            mask_id=_mask_id(config) if is_parallel else None,
        )


def _layer_ids(config: Fields, inner: Fields | None) -> tuple[int, ...] | None:
    """Numbers of states. SpecForge and modelopt write the numbers of the layers that output them.

    The first number in `eagle_config` shows which: no head reads the embedding, so 0 and 1 are
    layers. Source: sgl-project/sglang, pull request 25454; NVIDIA's modelopt, hf_eagle.py.
    """
    if given := inner and inner.ids(_IDS):
        return tuple(i + 1 for i in given) if given[0] <= 1 else given
    return config.ids(_IDS) or None


def _refuse_other_kinds(config: Fields, inner: Fields | None, *, is_parallel: bool) -> None:
    source, wanted = config.source, "peagle" if is_parallel else "eagle3"
    kind = config.text(SPECULATORS) or wanted
    if kind != wanted:
        raise ModelError(f"{source}: {SPECULATORS} is {kind}, and {wanted} reads {wanted}")
    if inner and inner.flag("use_aux_hidden_state") is False:
        raise ModelError(
            f"{source} is not an EAGLE-3 head: use_aux_hidden_state is false, and no layers' "
            "states are fused"
        )
    steps = (inner and inner.whole("parallel_draft_step")) or 1
    if steps > 1:
        raise ModelError(
            f"{source}: parallel_draft_step is {steps} (modelopt's parallel heads over one "
            "EAGLE-3 layer), which is not supported; choose a head that drafts one token after "
            "the other, or P-EAGLE"
        )
    if config.flag("parallel_drafting") and not is_parallel:
        raise ModelError(
            f"{source}: parallel_drafting is true, as in P-EAGLE; write `method: peagle`"
        )


def _mask_id(config: Fields) -> int:
    """The mask token's id under speculators' name, or vLLM's for others; ModelError if missing."""
    mask_ids = (config.whole(name) for name in MASK_IDS)
    mask_id = next((i for i in mask_ids if i is not None), None)
    if mask_id is None:
        raise ModelError(
            f"{config.source}: its config lacks {MASK_IDS[0]}, the placeholder for tokens that are "
            "not known yet; SpecForge does not write it: add the one that the head was trained "
            f"with ({', '.join(MASK_IDS[1:])} are also read)"
        )
    return mask_id


def eagle3_fit(files: HeadFiles[Shaped], target: HeadTarget, *, is_parallel: bool = False) -> Fit:
    """The sizes of an EAGLE-3 head that must equal the target's; tensors must have their current
    names. ModelError, also if tensors or id tables do not fit."""
    names, layer = files.tensors.keys(), layer_fields(files.fields)
    F, V = layer.must("hidden_size"), target.vocab_size
    style = Style.of(files, target.num_layers, is_parallel=is_parallel)
    D, size, count = style.num_tokens, target.hidden_size, len(style.layer_ids)
    needs_targets = not {"embed_tokens.weight", "lm_head.weight"} <= names
    fit: Fit = {
        "vocab_size": (layer.must("vocab_size"), V),
        "target_hidden_size": (files.fields.whole("target_hidden_size") or F, size),
        "hidden_size": (F if needs_targets else size, size),
        "draft_vocab_size": (D if "lm_head.weight" not in names else V, V),
    }
    if misfits(fit):
        return fit
    if style.mask_id is not None and style.mask_id >= V:
        raise ModelError(
            f"{files.source}: mask_token_id {style.mask_id} must be one of the target's {V} tokens"
        )
    if "d2t" in names and not files.fields.has("draft_vocab_size"):
        (rows,) = files.shape("d2t")
        raise ModelError(
            f"{files.source}: d2t is for {rows} tokens, and config.json has no draft_vocab_size; "
            f"set draft_vocab_size to {rows}"
        )
    shapes = {
        "fc.weight": (F, count * size),
        "norm.weight": (F,),
        "layers.0.hidden_norm.weight": (F,),
        **layer_shapes(layer, names, width=2 * F),
    }
    if "fc.bias" in names:
        shapes["fc.bias"] = (F,)
    if style.norm_before_fc:
        shapes["input_norm.weight"] = (count * size,)
    if style.fc_norm:
        shapes |= {f"fc_norm.{i}.weight": (size,) for i in range(count)}
    if style.mask_id is not None:
        shapes["mask_hidden"] = (1, 1, count * size)
    if names:
        optional = {"embed_tokens.weight": (V, F), "lm_head.weight": (D, F), **table_shapes(D, V)}
        require_tensors(files, shapes, optional)
        token_ids(files, D, V)
    return fit


def eagle_fit(files: HeadFiles[Shaped], target: HeadTarget) -> Fit:
    """The sizes of an EAGLE head, or of speculators' `eagle`, that must equal the target's.
    ModelError, also if tensors do not fit; a pickle's tensors are not checked."""
    if files.fields.flag("layernorms"):
        raise ModelError(
            f"{files.source}: heads with layernorms: true are not supported; choose one "
            "of EAGLE's own layout"
        )
    layer, has_bias = layer_fields(files.fields), eagle_has_bias(files)
    F, V = layer.must("hidden_size"), layer.must("vocab_size")
    fit = {"hidden_size": (F, target.hidden_size), "vocab_size": (V, target.vocab_size)}
    shapes = {"fc.weight": (F, 2 * F), **layer_shapes(layer, files.tensors.keys())}
    if has_bias:
        shapes["fc.bias"] = (F,)
    del shapes["layers.0.input_layernorm.weight"]  # the first layer reads the output of fc
    if files.tensors and not misfits(fit):
        require_tensors(files, shapes, {"embed_tokens.weight": (V, F)})
    return fit


def eagle_has_bias(files: HeadFiles[Shaped]) -> bool:
    """Whether the projection that joins token and state has a bias; SafeAILab's has."""
    given = files.fields
    flags = (given.flag(name) for name in ("fusion_bias", "bias"))
    return next((is_so for is_so in flags if is_so is not None), not given.has(SPECULATORS))
