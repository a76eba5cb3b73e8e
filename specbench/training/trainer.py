"""The training loop: one batch a step, resumable to the bit."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

from specbench.errors import ModelError
from specbench.training.batches import Batch, order
from specbench.training.optimizer import MuonAdamW, Schedule
from specbench.training.progress import Progress, load_progress, save_progress
from specbench.training.student import Student
from specbench.training.teacher import Teacher

_TRIED = 20  # steps after which a budget says how many there will be
_WINDOW = 100  # steps over which losses are averaged


class Told(Protocol):
    """Hears how a training goes."""

    def __call__(self, step: int, steps: int, loss: float) -> None: ...


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
    told: Told,
) -> Progress:
    """In place, to the end of the plan; goes on from `path` where that is there."""
    optimizer = MuonAdamW(student.parameters, student.num_tokens)
    progress = Progress(steps=plan.schedule.steps)
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
        told(progress.step, progress.steps, loss)
    return progress


def _step(
    student: Student, teacher: Teacher, batch: Batch, plan: Plan, progress: Progress
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


def _note(progress: Progress, loss: float, batch: Batch) -> None:
    progress.step += 1
    progress.tokens += int(batch.is_answer_BT.sum())
    progress.recent.append(loss)
    if len(progress.recent) == _WINDOW or progress.step >= progress.steps:
        progress.losses.append(sum(progress.recent) / len(progress.recent))
        progress.recent.clear()
