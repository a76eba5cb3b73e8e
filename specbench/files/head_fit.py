"""Whether a head was made for a target: sizes that both configs state, for every kind of head."""

from collections.abc import Mapping
from typing import Protocol

from specbench.errors import ModelError
from specbench.files.head_files import HeadFiles, Shaped
from specbench.files.layer_config import layer_fields, layer_shapes

MISFIT = "made for another target; choose the head that its authors trained for this one"
Fit = Mapping[str, tuple[object, object]]  # field -> the head's value, the target's
Shapes = Mapping[str, tuple[int, ...]]

SPECULATORS = "speculators_model_type"
OLD_ROTARY = "rotary_emb.inv_freq"  # old transformers stored what follows from the config
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
    """An EAGLE head's fit, also for what speculators calls eagle. ModelError, also for tensors that
    do not fit, except of a pickle."""
    if files.fields.flag("layernorms"):
        raise ModelError(
            f"{files.source}: heads with layernorms: true are not supported; choose one "
            "of EAGLE's own layout"
        )
    layer, has_bias = layer_fields(files), eagle_has_bias(files)
    F, V = layer.must("hidden_size"), layer.must("vocab_size")
    fit = {"hidden_size": (F, target.hidden_size), "vocab_size": (V, target.vocab_size)}
    shapes = {"fc.weight": (F, 2 * F), **layer_shapes(layer, files.tensors.keys())}
    if has_bias:
        shapes["fc.bias"] = (F,)
    del shapes["layers.0.input_layernorm.weight"]  # the first layer's input is as fc made it
    if files.tensors and not misfits(fit):
        require_tensors(files, shapes, {"embed_tokens.weight": (V, F)})
    return fit


def require_tensors(files: HeadFiles[Shaped], shapes: Shapes, optional: Shapes) -> None:
    """ModelError unless a head has all these tensors, and beside them only `optional` ones."""
    files.without(OLD_ROTARY).require({**shapes, **optional}, frozenset(optional))


def table_shapes(D: int, V: int) -> dict[str, tuple[int, ...]]:
    """The tables beside a head's weights: d2t leads to the target's tokens, t2d marks them."""
    return {"d2t": (D,), "t2d": (V,)}


def token_ids(files: HeadFiles[Shaped], D: int, V: int) -> list[int] | None:
    """The target's id of each of a head's D tokens; None: all V. ModelError if d2t, which holds
    offsets, is missing or t2d differs from it."""
    d2t, t2d = (
        files.whole_numbers(name) if name in files.tensors else None for name in table_shapes(D, V)
    )
    if t2d is not None and D == V and not any(t2d):
        t2d = None  # of SafeAILab's heads that say all tokens: never filled in
    if d2t is None:
        if D != V:
            raise ModelError(
                f"{files.source} does not fit: missing: d2t, for draft_vocab_size is {D} and "
                f"vocab_size {V}"
            )
        if t2d is not None and not all(t2d):
            raise ModelError(f"{files.source}: t2d leaves tokens out, and there is no d2t")
        return None
    ids = [i + offset for i, offset in enumerate(d2t)]
    if min(ids) < 0 or max(ids) >= V or len(set(ids)) != D:
        is_ids = sorted(set(d2t)) == d2t and min(d2t) >= 0 and max(d2t) < V
        hint = "; it holds ids, and offsets are needed (d2t[i] = id - i)" if is_ids else ""
        raise ModelError(
            f"{files.source}: d2t does not lead to {D} different tokens of the target's {V}{hint}"
        )
    if t2d is not None and {i for i, is_said in enumerate(t2d) if is_said} != set(ids):
        raise ModelError(
            f"{files.source}: d2t and t2d name different tokens; one is of another head"
        )
    return ids


def eagle_has_bias(files: HeadFiles[Shaped]) -> bool:
    """Whether the product that joins a token with a state adds a bias; SafeAILab's does."""
    given = files.fields
    told = (given.flag(name) for name in ("fusion_bias", "bias"))
    return next((is_so for is_so in told if is_so is not None), not given.has(SPECULATORS))
