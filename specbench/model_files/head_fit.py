"""Whether a head was made for a target: sizes that both configs state, for every kind of head."""

from collections.abc import Mapping
from typing import Protocol

from specbench.errors import ModelError
from specbench.model_files.head_files import HeadFiles, Shaped
from specbench.model_files.layer_config import layer_fields

Fit = Mapping[str, tuple[object, object]]  # field -> the head's value, the target's

SPECULATORS = "speculators_model_type"
# What checkpoints call an EAGLE head's tensors; the last two are those of speculators.
EAGLE_NAMES = {"model.": "", "fusion_fc.": "fc.", "transformer.": "layers.0."}


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


def eagle_fit(files: HeadFiles[Shaped], target: HeadTarget) -> Fit:
    """An EAGLE head's fit, also for what speculators calls eagle. ModelError."""
    if files.fields.flag("layernorms"):
        raise ModelError(
            f"{files.source}: heads with layernorms: true are not supported; choose one "
            "of EAGLE's own layout"
        )
    layer = layer_fields(files)
    eagle_has_bias(files)
    return {
        "hidden_size": (layer.must("hidden_size"), target.hidden_size),
        "vocab_size": (layer.must("vocab_size"), target.vocab_size),
    }


def eagle_has_bias(files: HeadFiles[Shaped]) -> bool:
    """Whether the product that joins a token with a state adds a bias; SafeAILab's does."""
    given = files.fields
    told = (given.flag(name) for name in ("fusion_bias", "bias"))
    return next((is_so for is_so in told if is_so is not None), not given.has(SPECULATORS))
