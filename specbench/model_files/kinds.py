"""What a folder holds: a model, a head of which method, or neither."""

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from specbench.errors import ModelError
from specbench.model_files.dflash_style import DFLASH_ARCHITECTURE
from specbench.model_files.eagle3_style import EAGLE3_NAMES
from specbench.model_files.head_files import new_name
from specbench.model_files.head_fit import EAGLE_NAMES
from specbench.model_files.model import ModelFiles

_CAUSAL = re.compile(r".*(ForCausalLM|LMHeadModel|ForConditionalGeneration)")
_SPECULATORS = ("eagle", "eagle3", "peagle", "dflash", "mtp")  # methods have the same names
_MEDUSA_NAME = re.compile(r"(medusa_heads?\.)?(\d+\.\d+\.linear|blocks\.\d+\.layers\.\d+)\.weight")


class Kind(NamedTuple):
    """The method that drafts with it; None and why where there is none."""

    method: str | None
    reason: str


def kind_of(files: ModelFiles) -> Kind:
    """By the config where it tells, else by the names of the tensors. ModelError."""
    config = files.config
    of_speculators = config.get("speculators_model_type")
    if of_speculators is not None:
        method = of_speculators if of_speculators in _SPECULATORS else None
        return Kind(method, f"speculators_model_type {of_speculators}")
    architecture = files.architecture or ""
    if config.get("parallel_drafting") or "peagle" in architecture.lower():
        said = "parallel_drafting" if config.get("parallel_drafting") else architecture
        return Kind("peagle", said)
    if architecture == DFLASH_ARCHITECTURE:
        return Kind("dflash", f"architecture {architecture}")
    if "eagle3" in architecture.lower() and not _is_peagle(_names(files)):
        return Kind("eagle3", f"architecture {architecture}")
    if "medusa_num_heads" in config or any(files.folder.glob("medusa_lm_head.*")):
        return Kind("medusa", "medusa_num_heads" if "medusa_num_heads" in config else "its files")
    names = _names(files)
    for method, is_such in _BY_TENSORS.items():
        if is_such(names):
            return Kind(method, "the names of its tensors")
    if "eagle" in architecture.lower():
        return Kind("eagle", f"architecture {architecture}")
    if config.get("is_encoder_decoder"):
        return Kind(None, f"architecture {architecture} has an encoder")
    if _CAUSAL.fullmatch(architecture):
        return Kind("draft_model", f"architecture {architecture}")
    what = (
        f"architecture {architecture} writes no text" if architecture else "names no architecture"
    )
    return Kind(None, what)


def _names(files: ModelFiles) -> frozenset[str]:
    """Names of the tensors, where they can be read without unpickling."""
    try:
        return frozenset(files.head.tensors)
    except ModelError:
        return frozenset()


def _is_peagle(names: frozenset[str]) -> bool:
    return "mask_hidden" in names


def _joins(rename: Mapping[str, str], layer: str, names: frozenset[str]) -> bool:
    """Whether a layer with that tensor follows what joins a token with a state."""
    return {"fc.weight", f"layers.0.{layer}.weight"} <= {new_name(name, rename) for name in names}


def _is_medusa(names: frozenset[str]) -> bool:
    return any(_MEDUSA_NAME.fullmatch(name) for name in names)


def _is_mtp(names: frozenset[str]) -> bool:
    """MTP layers alone; beside a whole model's tensors they are that model's own."""
    of_layers = ("mtp.", "mtp_layers.", "model.mtp_layers.")
    return bool(names) and all(name.startswith(of_layers) for name in names)


_BY_TENSORS: Mapping[str, Callable[[frozenset[str]], bool]] = {
    "mtp": _is_mtp,
    "peagle": _is_peagle,
    "eagle3": partial(_joins, EAGLE3_NAMES, "hidden_norm"),
    "eagle": partial(_joins, EAGLE_NAMES, "self_attn.q_proj"),
    "medusa": _is_medusa,
}
