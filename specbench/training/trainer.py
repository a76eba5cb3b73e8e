"""The training loop: one batch per step, resumable to the bit from its progress on disk.

Progress is weights, optimizer and step; random numbers follow from the step. The file is read as
tensors and plain values; anything else in it is refused, never run.
"""

import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specbench.errors import ModelError, StoreError, first_line
from specbench.models.checkpoint import PICKLE_ERRORS
from specbench.training.optimizer import MuonAdamW, Schedule
from specbench.training.replacing import replaced
from specbench.training.student import Student
from specbench.training.teacher import Batch, Teacher, order


@dataclass(kw_only=True)
class TrainingProgress:
    """Steps done so far; `losses` are means over 100 steps, `steps` may be fewer than requested."""

    steps: int
    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    losses: list[float] = field(default_factory=list)
    recent: list[float] = field(default_factory=list)


def save_progress(
    path: Path,
    progress: TrainingProgress,
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
) -> TrainingProgress:
    """Put the weights back in place; StoreError if the file is another training's, or none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of unusual pickles, which are refused below
            content = torch.load(path, map_location="cpu", weights_only=True)
        stored = content["settings"]
        if differing := [k for k, v in settings.items() if stored.get(k) != v]:
            differences = ", ".join(
                f"{k} {stored.get(k)!r}, not {settings[k]!r}" for k in differing
            )
            raise StoreError(
                f"{path} was started with {differences}; use the same, or choose another --output"
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
    except PICKLE_ERRORS as error:
        first = first_line(error)
        raise StoreError(f"{path} cannot be resumed: {first}; remove it to start again") from error
    return progress


def _checked(content: dict[str, Any]) -> TrainingProgress:
    progress = TrainingProgress(**content)
    for name in ("steps", "step", "tokens"):
        if type(getattr(progress, name)) is not int:
            raise ValueError(f"{name} is not a whole number")
    if not 0 <= progress.step <= progress.steps:
        raise ValueError(f"it is at step {progress.step} of {progress.steps}")
    progress.losses = [float(loss) for loss in progress.losses]
    progress.recent = [float(loss) for loss in progress.recent]
    progress.seconds = float(progress.seconds)
    return progress


_TRIED = 20  # steps after which a budget says how many there will be
_WINDOW = 100  # steps over which losses are averaged


StepCallback = Callable[[int, int, float], None]  # step, number of steps, loss


class Plan(NamedTuple):
    """`seconds`: what is left of a budget when training begins; None for none."""

    schedule: Schedule
    seed: int
    seconds: float | None = None
    save_every: int = 100  # steps


def train(
    student: Student,
    teacher: Teacher,
    batches: Sequence[Batch],
    plan: Plan,
    path: Path,
    settings: Mapping[str, Any],
    report: StepCallback,
) -> TrainingProgress:
    """Train in place, to the end of the plan; resumes from `path` if it exists."""
    optimizer = MuonAdamW(student.parameters, student.num_tokens)
    progress = TrainingProgress(steps=plan.schedule.steps)
    if path.exists():
        progress = load_progress(path, student.parameters, optimizer, settings)
    began, before, first = time.monotonic(), progress.seconds, progress.step
    tensors = list(student.parameters.values())
    for number in order(len(batches), plan.seed, progress.step):
        if progress.step >= progress.steps:
            break
        loss = _step(student, teacher, batches[number], plan, progress)
        torch.nn.utils.clip_grad_norm_(tensors, 1.0)
        schedule = replace(plan.schedule, steps=progress.steps)
        factor = schedule.factor(progress.step)
        optimizer.step(schedule.muon_lr * factor, schedule.adamw_lr * factor)
        for tensor in tensors:
            tensor.grad = None
        _note(progress, loss, batches[number])
        progress.seconds = before + time.monotonic() - began
        if plan.seconds is not None and progress.step == first + _TRIED:
            possible = int(plan.seconds / (time.monotonic() - began) * _TRIED)
            progress.steps = min(progress.steps, first + max(possible, _TRIED))
        if progress.step % plan.save_every == 0 or progress.step >= progress.steps:
            save_progress(path, progress, student.parameters, optimizer, settings)
        report(progress.step, progress.steps, loss)
    return progress


def _step(
    student: Student, teacher: Teacher, batch: Batch, plan: Plan, progress: TrainingProgress
) -> float:
    generator = torch.Generator().manual_seed(plan.seed * 1_000_003 + progress.step)
    loss = student.loss(teacher.lesson(batch), generator)
    value = float(loss.detach())
    if not math.isfinite(value):
        raise ModelError(
            f"the loss is not a number at step {progress.step + 1}; try --dtype float32"
        )
    loss.backward()  # type: ignore[no-untyped-call]
    return value


def _note(progress: TrainingProgress, loss: float, batch: Batch) -> None:
    progress.step += 1
    progress.tokens += int(batch.is_answer_BT.sum())
    progress.recent.append(loss)
    if len(progress.recent) == _WINDOW or progress.step >= progress.steps:
        progress.losses.append(sum(progress.recent) / len(progress.recent))
        progress.recent.clear()
