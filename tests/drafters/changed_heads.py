"""A head's checkpoint with other tensors or another config."""

from dataclasses import replace
from typing import Any

from torch import Tensor

from specbench.models.checkpoint import Checkpoint


def with_tensors(checkpoint: Checkpoint, **changes: Tensor | None) -> Checkpoint:
    """With other tensors: dots are written as two underscores, and None removes a tensor."""
    changed = {name.replace("__", "."): tensor for name, tensor in changes.items()}
    tensors = {**checkpoint.tensors, **changed}
    return replace(checkpoint, tensors={n: t for n, t in tensors.items() if t is not None})


def with_config(checkpoint: Checkpoint, **changes: Any) -> Checkpoint:
    return replace(checkpoint, config={**checkpoint.config, **changes})
