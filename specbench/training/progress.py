"""How far a training is, on disk: weights, optimiser, step. Chance follows from the step alone.

The file is read as tensors and plain values; anything else in it is refused, never run.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specbench.errors import StoreError, first_line
from specbench.models.checkpoint import UNREADABLE
from specbench.training.optimizer import MuonAdamW
from specbench.training.replacing import replaced


@dataclass(kw_only=True)
class Progress:
    """What is done; `losses` are means over each 100 steps, `steps` may be fewer than asked."""

    steps: int
    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    losses: list[float] = field(default_factory=list)
    recent: list[float] = field(default_factory=list)


def save_progress(
    path: Path,
    progress: Progress,
    parameters: Mapping[str, Tensor],
    optimizer: MuonAdamW,
    settings: Mapping[str, Any],
) -> None:
    """Replaces the file at once, so that a killed run leaves a whole one."""
    content = {
        "settings": dict(settings),
        "progress": dict(vars(progress)),
        "parameters": {name: tensor.detach() for name, tensor in parameters.items()},
        "optimizer": optimizer.state(),
    }
    with replaced(path) as stream:
        torch.save(content, stream)


def load_progress(
    path: Path,
    parameters: Mapping[str, Tensor],
    optimizer: MuonAdamW,
    settings: Mapping[str, Any],
) -> Progress:
    """Put the weights back in place; StoreError where the file is another training's, or none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of unusual pickles, which are refused below
            content = torch.load(path, map_location="cpu", weights_only=True)
        stored = content["settings"]
        if differing := [k for k, v in settings.items() if stored.get(k) != v]:
            what = ", ".join(f"{k} {stored.get(k)!r}, not {settings[k]!r}" for k in differing)
            raise StoreError(
                f"{path} was started with {what}; use the same, or choose another --output"
            )
        progress = _checked(content["progress"])
        weights = content["parameters"]
        if weights.keys() != parameters.keys():
            raise ValueError("it belongs to other tensors")
        with torch.no_grad():
            for name, tensor in parameters.items():
                if weights[name].shape != tensor.shape:
                    raise ValueError(f"{name} has another shape")
                tensor.copy_(weights[name])
        optimizer.load(content["optimizer"])
    except UNREADABLE as error:
        first = first_line(error)
        raise StoreError(f"{path} cannot be resumed: {first}; remove it to start again") from error
    return progress


def _checked(content: dict[str, Any]) -> Progress:
    progress = Progress(**content)
    for name in ("steps", "step", "tokens"):
        if type(getattr(progress, name)) is not int:
            raise ValueError(f"{name} is not a whole number")
    if not 0 <= progress.step <= progress.steps:
        raise ValueError(f"it is at step {progress.step} of {progress.steps}")
    progress.losses = [float(loss) for loss in progress.losses]
    progress.recent = [float(loss) for loss in progress.recent]
    progress.seconds = float(progress.seconds)
    return progress
