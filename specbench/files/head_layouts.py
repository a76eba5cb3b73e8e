"""Whose layout a head's files have, and whether a head by its author was ever met.

`tests/foreign_heads` holds heads that libraries wrote against their own forwards; of the rest
only the source was read. docs/heads.md has the same as a table.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from specbench.files.head_files import HeadFiles
from specbench.files.head_fit import SPECULATORS

Files = HeadFiles[Any]


class Layout(NamedTuple):
    """`release` is the one whose heads were met; None: its source alone was read."""

    author: str
    source: str
    release: str | None = None
    is_ours: bool = False  # `specbench train` writes it as well

    @property
    def note(self) -> str:
        if self.release is not None:
            return f"as {self.author} writes it: logits are those of {self.release}'s own forward"
        ours = " (`specbench train` has it too)" if self.is_ours else ""
        read = f"{self.author}'s layout{ours}, read in {self.source}"
        return f"{read}; never tested with a published head"


Layouts = tuple[tuple[Callable[[Files], bool], Layout], ...]  # of a kind of head, the first counts


def layout_of(files: Files, layouts: Layouts) -> Layout | None:
    """The first of these layouts that the files have. Pickled tensors have no names here."""
    return next((layout for is_such, layout in layouts if is_such(files)), None)


def _says(name: str, section: str | None = None) -> Callable[[Files], bool]:
    def says(files: Files) -> bool:
        values = files.config if section is None else files.config.get(section)
        return isinstance(values, dict) and values.get(name) is not None

    return says


def _holds(*prefixes: str) -> Callable[[Files], bool]:
    return lambda files: any(name.startswith(prefixes) for name in files.tensors)


def _is_specforge_eagle3(files: Files) -> bool:
    """SafeAILab's heads have the same tensors, and the class of a Llama."""
    return _holds("midlayer.")(files) and "LlamaForCausalLMEagle3" in files.fields.texts(
        "architectures"
    )


def _any(_: Files) -> bool:
    return True


_SPECULATORS = Layout("speculators", "speculators 0.9.0", "speculators 0.9.0")
_SPECFORGE = Layout("SpecForge", "SpecForge 0.2.0", "SpecForge 0.2.0")
_MODELOPT = Layout("NVIDIA's modelopt", "modelopt 0.47.0", "modelopt 0.47.0")
_EAGLE = "SafeAILab/EAGLE at cb7e084, eagle/model"
_VLLM = "vllm-project/vllm"
_MEDUSA = f"{_VLLM} at 01dbb08, models/medusa.py"
_OF_SPECULATORS = (_says(SPECULATORS), _SPECULATORS)
EAGLE_LAYOUTS: Layouts = (
    (
        _says(SPECULATORS),
        Layout("speculators", "vllm-project/speculators at 8a49095, models/eagle.py"),
    ),
    (_any, Layout("SafeAILab", f"{_EAGLE}/cnets1.py", is_ours=True)),
)
EAGLE3_LAYOUTS: Layouts = (
    _OF_SPECULATORS,
    (_says("next_layer_regular", "eagle_config"), _MODELOPT),
    (_is_specforge_eagle3, _SPECFORGE),
    (_any, Layout("SafeAILab", f"{_EAGLE}/cnets.py", is_ours=True)),
)
PEAGLE_LAYOUTS: Layouts = (
    _OF_SPECULATORS,
    (_says("mask_token_id"), _SPECFORGE),
    (_any, Layout("Amazon", f"{_VLLM} at 00bd149, models/llama_eagle3.py")),
)
DFLASH_LAYOUTS: Layouts = (
    _OF_SPECULATORS,
    (_says("causal", "dflash_config"), _MODELOPT),
    (_says("num_target_layers"), _SPECFORGE),
    (_any, Layout("z-lab", "z-lab/dflash at 1012959, dflash/model.py")),
)
MEDUSA_LAYOUTS: Layouts = (
    (_holds("medusa_heads."), _MODELOPT),
    (_holds("blocks."), Layout("vLLM", _MEDUSA)),
    (
        _any,
        Layout(
            "FasterDecoding",
            "FasterDecoding/Medusa at e2a5d20, medusa/model/medusa_model.py",
            is_ours=True,
        ),
    ),
)
MTP_LAYOUTS: Layouts = (
    _OF_SPECULATORS,
    (
        _any,
        Layout(
            "its model",
            f"{_VLLM} at 4f7c144, 028aedf, 98debc2, ffdc985 and 01d9980, models/*_mtp.py",
            is_ours=True,
        ),
    ),
)
