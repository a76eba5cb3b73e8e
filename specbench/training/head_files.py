"""Writes a head as the loader reads it: config.json and model.safetensors, each at once."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from specbench.models.checkpoint import Checkpoint
from specbench.training.replacing import replaced

CARD = "training.json"


def write_head(folder: Path, checkpoint: Checkpoint, dtype: torch.dtype = torch.bfloat16) -> None:
    """Whole numbers and flags stay as they are."""
    folder.mkdir(parents=True, exist_ok=True)

    def stored(tensor: Tensor) -> Tensor:
        kept = tensor.to(dtype) if tensor.is_floating_point() else tensor
        return kept.detach().cpu().contiguous()

    tensors = {name: stored(tensor) for name, tensor in checkpoint.tensors.items()}
    with replaced(folder / "model.safetensors") as stream:
        stream.write(save(tensors, metadata={"format": "pt"}))
    write_json(folder / "config.json", dict(checkpoint.config))


def write_json(path: Path, content: dict[str, Any]) -> None:
    with replaced(path) as stream:
        stream.write(f"{json.dumps(content, indent=2)}\n".encode())
