"""Muon for matrices and AdamW for the rest, over named tensors on any device.

torch.optim.Muon orthogonalizes in bfloat16, which is thirty times slower on a CPU without bfloat16
instructions.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# Newton-Schulz coefficients of Jordan et al. 2024, "Muon".
_A, _B, _C = 3.4445, -4.7750, 2.0315
_NEWTON_SCHULZ_STEPS = 5
_MOMENTUM, _DECAY = 0.95, 0.01


def orthogonalized(stack_NRC: Tensor) -> Tensor:
    """Each matrix with its singular values pushed to about 1."""
    tall = stack_NRC.shape[1] > stack_NRC.shape[2]
    x: Tensor = stack_NRC.mT if tall else stack_NRC
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(_NEWTON_SCHULZ_STEPS):
        gram = x @ x.mT
        x = _A * x + (_B * gram + _C * gram @ gram) @ x
    return x.mT if tall else x


def one_by_one(updates: Iterable[Tensor]) -> Iterator[Tensor]:
    """Each matrix orthogonalized by itself."""
    return (orthogonalized(update[None])[0] for update in updates)


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """Learning rates: a linear warm-up, then constant, then a linear decay to 2 %."""

    steps: int
    muon_lr: float
    adamw_lr: float
    warm_up: int = 30
    decay_part: float = 0.6

    def factor(self, step: int) -> float:
        """The factor of both learning rates at a step, counted from 0."""
        left = (self.steps - step) / (self.steps * self.decay_part)
        return min(1.0, (step + 1) / self.warm_up, 0.02 + 0.98 * left)


class MuonAdamW:
    """`rows_of_tokens`: matrices with that number of rows are vocabularies, which AdamW takes.

    `orthogonalize` gets the updates of all other matrices, and gives them in the same order.
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
        """Once over everything that has a gradient."""
        changes = self._orthogonalize(self._updates())
        moving = (matrix for matrix in self._matrices.values() if matrix.grad is not None)
        for matrix, change in zip(moving, changes, strict=True):
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
        """The state that `load` resumes from."""
        return {"velocity": dict(self._velocity), "adamw": self._adamw.state_dict()}

    def load(self, state: Mapping[str, Any]) -> None:
        """KeyError, ValueError, TypeError, RuntimeError if it is of other tensors."""
        if state["velocity"].keys() != self._velocity.keys():
            raise ValueError("it belongs to other tensors")
        for name, velocity in self._velocity.items():
            velocity.copy_(state["velocity"][name])
        self._adamw.load_state_dict(state["adamw"])
