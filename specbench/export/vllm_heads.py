"""What vLLM does not take of a head, by its files where they are on this machine.

Facts: vLLM 0.32, models/llama_eagle.py, llama_eagle3.py and medusa.py, config/speculative.py.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping

from specbench.errors import ModelError
from specbench.model_files.head_files import HeadFiles, Shaped
from specbench.model_files.head_fit import eagle_has_bias
from specbench.model_files.medusa_layout import medusa_fields, medusa_tensors
from specbench.model_files.model import ModelFiles, open_model
from specbench.model_files.model_spec import ModelSpec

# What configs of vLLM's own call a field; it also takes the number of heads from K.
_SYNONYMS = {"medusa_num_heads": "num_heads", "medusa_num_layers": "num_hidden_layers"}
_NO_BIAS = "`specbench train eagle` makes heads without one"


def head_lost(method: str, spec: ModelSpec) -> list[str]:
    """In words; nothing of a head that is not on this machine, or that cannot be read."""
    try:
        return list(_LOST[method](open_model(spec))) if method in _LOST else []
    except ModelError:
        return []  # whoever loads it says what is wrong


def _of_eagle(files: ModelFiles) -> Iterator[str]:
    yield from _without_class(files)
    head: HeadFiles[Shaped] = HeadFiles(source=files.spec.source, config=files.config, tensors={})
    if not eagle_has_bias(head):
        return
    if files.config.get("bias"):
        yield (
            f'{head.source}/config.json has "bias": true, which vLLM takes for biases of the '
            "attention: those it leaves to chance, fc.bias it drops, and next to nothing is "
            f'accepted. With "bias": false in a copy only fc.bias is lost; {_NO_BIAS}'
        )
    else:
        yield f"fc.bias of {head.source}: vLLM drops it, and accepts fewer drafts; {_NO_BIAS}"


def _of_eagle3(files: ModelFiles) -> Iterator[str]:
    yield from _without_class(files)
    if "fc.bias" in _names(files):
        yield f"fc.bias of {files.spec.source}: vLLM drops it, and accepts fewer drafts"


def _of_medusa(files: ModelFiles) -> Iterator[str]:
    needed = medusa_fields(medusa_tensors(files.head))
    lacking = {name: value for name, value in needed.items() if not _says(files, name, value)}
    if lacking:
        fields = ", ".join(f'"{name}": {json.dumps(value)}' for name, value in lacking.items())
        yield (
            f"{files.spec.source}/config.json lacks what vLLM reads there, and without it takes "
            f"sizes of another model or drops tensors: add {fields}"
        )


def _says(files: ModelFiles, name: str, value: object) -> bool:
    return value in (files.config.get(name), files.config.get(_SYNONYMS.get(name, name)))


def _without_class(files: ModelFiles) -> Iterator[str]:
    if not files.architecture:
        yield (
            f"{files.spec.source}/config.json names no class, which vLLM asks for: add "
            '"architectures": ["LlamaForCausalLM"] to it'
        )


def _names(files: ModelFiles) -> Collection[str]:
    """Of its tensors; none where only loading would tell."""
    try:
        return files.head.tensors
    except ModelError:
        return ()


_LOST: Mapping[str, Callable[[ModelFiles], Iterator[str]]] = {
    "eagle": _of_eagle,
    "eagle3": _of_eagle3,
    "peagle": _of_eagle3,
    "medusa": _of_medusa,
}
