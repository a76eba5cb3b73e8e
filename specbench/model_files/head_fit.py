"""Whether a head was made for a target: sizes that both configs state, for every kind of head."""

from collections.abc import Mapping
from typing import Any, Protocol

from specbench.errors import ModelError
from specbench.model_files.attention import rope_type
from specbench.model_files.head_files import HeadFiles, Shaped

Fit = Mapping[str, tuple[object, object]]  # field -> the head's value, the target's

DFLASH_ARCHITECTURE = "DFlashDraftModel"
LAYER_NEEDS = ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
# What checkpoints call an EAGLE head's tensors; the last two are those of speculators.
EAGLE_NAMES = {"model.": "", "fusion_fc.": "fc.", "transformer.": "layers.0."}
_DFLASH_NEEDS = ("target_layer_ids", "mask_token_id", "num_hidden_layers")


class HeadTarget(Protocol):
    """What heads have to fit."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def num_layers(self) -> int: ...


def misfits(fit: Fit) -> Fit:
    """The fields in which the head's value is not the target's."""
    return {name: pair for name, pair in fit.items() if pair[0] != pair[1]}


def layer_fields(files: HeadFiles[Shaped]) -> Mapping[str, Any]:
    """The config of a head's decoder layers, its own or that of a speculators checkpoint.

    ModelError where it lacks something or has what heads cannot run.
    """
    fields: Mapping[str, Any] = files.config.get("transformer_layer_config") or files.config
    if lacking := [name for name in LAYER_NEEDS if fields.get(name) is None]:
        raise ModelError(f"{files.source}: its config lacks {', '.join(lacking)}")
    if "sliding_attention" in (fields.get("layer_types") or ()):
        raise ModelError(
            f"{files.source}: layer_types has sliding_attention, which heads cannot run; "
            "choose a head whose layers attend to everything"
        )
    rope = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    if rope_type(rope) == "dynamic":
        raise ModelError(
            f"{files.source}: rope_type dynamic rescales positions by the current length; "
            "set it to default in the head's config"
        )
    return fields


def eagle_fit(files: HeadFiles[Shaped], target: HeadTarget) -> Fit:
    """Of a head of EAGLE, or of what speculators calls eagle. ModelError."""
    if files.config.get("layernorms"):
        raise ModelError(
            f"{files.source}: heads with layernorms: true are not supported; choose one "
            "of EAGLE's own layout"
        )
    layer = layer_fields(files)
    return {
        "hidden_size": (layer["hidden_size"], target.hidden_size),
        "vocab_size": (layer["vocab_size"], target.vocab_size),
    }


def dflash_fields(files: HeadFiles[Shaped]) -> Mapping[str, Any]:
    """The config of a DFlash head. ModelError for relatives that are not run and what it lacks."""
    given = {**files.config, **(files.config.get("dflash_config") or {})}
    if others := [n for n in given.get("architectures") or () if n != DFLASH_ARCHITECTURE]:
        raise ModelError(
            f"{files.source}: architecture {others[0]}; {DFLASH_ARCHITECTURE} is supported"
        )
    if lacking := [name for name in _DFLASH_NEEDS if given.get(name) is None]:
        raise ModelError(f"{files.source}: its config lacks {', '.join(lacking)}")
    if given.get("is_causal"):
        raise ModelError(
            f"{files.source}: is_causal is true; blocks that see themselves whole are run"
        )
    return given


def dflash_fit(files: HeadFiles[Shaped], target: HeadTarget) -> Fit:
    """Of a DFlash head; ModelError also where it names layers or tokens that the target lacks."""
    given = dflash_fields(files)
    ids, mask_id = list(map(int, given["target_layer_ids"])), int(given["mask_token_id"])
    fit: Fit = {
        "hidden_size": (given.get("hidden_size"), target.hidden_size),
        "vocab_size": (given.get("vocab_size"), target.vocab_size),
        "num_target_layers": (
            given.get("num_target_layers", target.num_layers),
            target.num_layers,
        ),
    }
    if not misfits(fit) and (max(ids) >= target.num_layers or mask_id >= target.vocab_size):
        raise ModelError(
            f"{files.source}: target_layer_ids {ids} and mask_token_id {mask_id} must lie within "
            f"the target's {target.num_layers} layers and {target.vocab_size} tokens"
        )
    return fit
