"""How the files of MTP layers hold the experts of a mixture, and copies of the target's tensors.

Shape suffixes: E experts, I width of an expert, F hidden size.
"""

from collections.abc import Container, Mapping
from typing import Literal

import torch
from torch import Tensor

from specbench.files.mtp_families import prefixes
from specbench.models.checkpoint import Checkpoint


def copies(checkpoint: Checkpoint, kind: Literal["embedding", "head"]) -> list[str]:
    """What the files call each layer's own copy of the target's, if the family has such."""
    named = prefixes(checkpoint).items()
    return [f"{old}weight" for old, new in named if new.endswith(f".{kind}.")]


_JOINED = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}


def by_expert(
    name: str, shape: tuple[int, ...], joined: Container[str] = ()
) -> dict[str, tuple[int, ...]]:
    """In most files every expert has matrices of its own; transformers holds all in one tensor.

    `joined` are the tensors that files have as transformers holds them.
    """
    before, _, last = name.rpartition(".")
    if not before.endswith(".experts") or name in joined:
        return {name: shape}
    parts, (E, IF, F) = _JOINED[last], shape
    rows = IF // len(parts)
    return {f"{before}.{e}.{part}.weight": (rows, F) for e in range(E) for part in parts}


def joined_experts(name: str, shape: tuple[int, ...], files: Mapping[str, Tensor]) -> Tensor:
    """A tensor as transformers holds it, from those of the files."""
    names = list(by_expert(name, shape, files))
    if names == [name]:
        return files[name]
    return torch.cat([files[of_expert] for of_expert in names]).view(shape)


def split_experts(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """The inverse of `joined_experts`."""
    shapes = by_expert(name, tuple(tensor.shape))
    if list(shapes) == [name]:
        return {name: tensor}
    pieces = torch.split(tensor.flatten(0, 1), [shape[0] for shape in shapes.values()])
    return dict(zip(shapes, pieces, strict=True))
