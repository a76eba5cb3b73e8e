"""The training loop: one batch per step. A resumed training gives bitwise the same result.

The optimizer is Muon for matrices and AdamW for the rest. torch.optim.Muon is not used because it
orthogonalizes in bfloat16, thirty times slower on a CPU without bfloat16 instructions.

The saved progress is weights, optimizer and step; random numbers follow from the step. The file may
contain only tensors and plain values; other content is refused and never run.
"""

import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specbench.errors import ModelError, StoreError, first_line
from specbench.models.checkpoint import PICKLE_ERRORS
from tools.training.settings import Recipe, replaced
from tools.training.student import Student
from tools.training.teacher import Batch, Teacher, order

# Newton-Schulz coefficients of Jordan et al. 2024, "Muon".
_A, _B, _C = 3.4445, -4.7750, 2.0315
_NEWTON_SCHULZ_STEPS = 5
_MOMENTUM, _DECAY = 0.95, 0.01


def orthogonalized(stack_NRC: Tensor) -> Tensor:
    """The matrices with their singular values changed to about 1."""
    tall = stack_NRC.shape[1] > stack_NRC.shape[2]
    x: Tensor = stack_NRC.mT if tall else stack_NRC
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(_NEWTON_SCHULZ_STEPS):
        gram = x @ x.mT
        x = _A * x + (_B * gram + _C * gram @ gram) @ x
    return x.mT if tall else x


def one_by_one(updates: Iterable[Tensor]) -> Iterator[Tensor]:
    """Each matrix, orthogonalized separately."""
    return (orthogonalized(update[None])[0] for update in updates)


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """Learning rates: a linear warm-up, then constant, then a linear decay to 2%."""

    steps: int
    muon_lr: float
    adamw_lr: float
    warm_up: int = 30
    decay_part: float = 0.6

    def factor(self, step: int) -> float:
        """The factor for both learning rates at a step, counted from 0."""
        left = (self.steps - step) / (self.steps * self.decay_part)
        return min(1.0, (step + 1) / self.warm_up, 0.02 + 0.98 * left)


_TUNED_WIDTH = 128  # of the target that the rates were tuned on; wider ones need smaller steps


def schedule(recipe: Recipe, steps: int, hidden_size: int) -> Schedule:
    scale = min(1.0, _TUNED_WIDTH / hidden_size)
    return Schedule(steps=steps, muon_lr=recipe.muon_lr * scale, adamw_lr=recipe.adamw_lr * scale)


class MuonAdamW:
    """Muon for matrices, and AdamW for vectors and for matrices with `rows_of_tokens` rows, which
    have one row per token of a vocabulary.

    `orthogonalize` gets the updates for Muon, and returns them in the same order.
    Source: Jordan et al. 2024, "Muon"; Liu et al. 2025 (arXiv:2502.16982), eq. 4.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        rows_of_tokens: int,
        *,
        orthogonalize: Callable[[Iterable[Tensor]], Iterable[Tensor]] = one_by_one,
    ) -> None:
        self._orthogonalize = orthogonalize
        self._matrices = {
            name: tensor
            for name, tensor in parameters.items()
            if tensor.ndim == 2 and tensor.shape[0] != rows_of_tokens
        }
        self._velocity = {name: torch.zeros_like(m) for name, m in self._matrices.items()}
        vectors = [tensor for name, tensor in parameters.items() if name not in self._matrices]
        self._adamw = torch.optim.AdamW(
            vectors or [torch.zeros(1)], betas=(0.9, 0.98), weight_decay=0.0
        )

    @torch.no_grad()
    def step(self, muon_lr: float, adamw_lr: float) -> None:
        """Update all parameters that have a gradient."""
        changes = self._orthogonalize(self._updates())
        updated = (matrix for matrix in self._matrices.values() if matrix.grad is not None)
        for matrix, change in zip(updated, changes, strict=True):
            scale = 0.2 * max(matrix.shape) ** 0.5  # the size of an AdamW step
            matrix.mul_(1 - muon_lr * _DECAY).add_(change, alpha=-muon_lr * scale)
        for group in self._adamw.param_groups:
            group["lr"] = adamw_lr
        self._adamw.step()

    def _updates(self) -> Iterator[Tensor]:
        for name, matrix in self._matrices.items():
            if matrix.grad is not None:
                velocity = self._velocity[name].lerp_(matrix.grad, 1 - _MOMENTUM)
                yield torch.lerp(matrix.grad, velocity, _MOMENTUM)

    def state(self) -> dict[str, Any]:
        return {"velocity": dict(self._velocity), "adamw": self._adamw.state_dict()}

    def load(self, state: Mapping[str, Any]) -> None:
        """KeyError, ValueError, TypeError or RuntimeError if the state belongs to other tensors."""
        if state["velocity"].keys() != self._velocity.keys():
            raise ValueError("it belongs to other tensors")
        for name, velocity in self._velocity.items():
            velocity.copy_(state["velocity"][name])
        self._adamw.load_state_dict(state["adamw"])


@dataclass(kw_only=True)
class TrainingProgress:
    """The finished steps; `losses` are means over 100 steps, and a budget may reduce `steps`."""

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
    """Replace the file atomically, so that a killed run leaves a complete one."""
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
    """Restore weights and optimizer; StoreError if the file is invalid or of another training."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about unusual pickles, which are refused below
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


_TIMED_STEPS = 20  # steps that are timed to set the number of steps within a budget
_WINDOW = 100  # steps over which losses are averaged


StepCallback = Callable[[int, int, float], None]  # step, number of steps, loss


class Plan(NamedTuple):
    """The plan of a training; `seconds` is the rest of the time budget, None: no budget."""

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
    """Train the student in place to the end of the plan; resumes from `path` if it exists."""
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
        if plan.seconds is not None and progress.step == first + _TIMED_STEPS:
            possible = int(plan.seconds / (time.monotonic() - began) * _TIMED_STEPS)
            progress.steps = min(progress.steps, first + max(possible, _TIMED_STEPS))
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
