"""Muon for the matrices of the layers and AdamW for the rest, in float32.

Matrices of one shape go through one batched product, and each process does its share.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn

from specbench.training.optimizer import orthogonalised


class MuonAdamW:
    """One step for a whole model; the caller sets the learning rate each time."""

    def __init__(self, model: nn.Module, *, momentum: float = 0.95, decay: float = 0.01) -> None:
        self.momentum, self.decay = momentum, decay
        self.groups: dict[tuple[int, ...], list[nn.Parameter]] = {}
        others = []
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2 and "layers." in name:
                self.groups.setdefault(tuple(parameter.shape), []).append(parameter)
            else:
                others.append(parameter)
        self.velocity = {s: torch.zeros(len(g), *s) for s, g in self.groups.items()}
        self.adamw = torch.optim.AdamW(others, betas=(0.9, 0.98), weight_decay=0.0)

    @torch.no_grad()
    def step(self, muon_lr: float, adamw_lr: float) -> None:
        for shape, parameters in self.groups.items():
            gradient = torch.stack([p.grad for p in parameters if p.grad is not None])
            velocity = self.velocity[shape].lerp_(gradient, 1 - self.momentum)
            update = _shared(torch.lerp(gradient, velocity, self.momentum))
            # The root-mean-square of an AdamW step: Liu et al. 2025 (arXiv:2502.16982), eq. 4.
            scale = 0.2 * max(shape) ** 0.5
            for parameter, change in zip(parameters, update, strict=True):
                parameter.mul_(1 - muon_lr * self.decay).add_(change, alpha=-muon_lr * scale)
        for group in self.adamw.param_groups:
            group["lr"] = adamw_lr
        self.adamw.step()

    def state(self) -> dict[str, object]:
        return {"velocity": self.velocity, "adamw": self.adamw.state_dict()}

    def load(self, state: dict[str, dict]) -> None:  # type: ignore[type-arg]
        self.velocity = state["velocity"]
        self.adamw.load_state_dict(state["adamw"])


def _shared(stack_NRC: Tensor) -> Tensor:
    """Orthogonalise a stack, a part in each process; the count must divide by the processes."""
    world = dist.get_world_size()
    parts = list(stack_NRC.chunk(world))
    mine = orthogonalised(parts[dist.get_rank()]).contiguous()
    gathered = [torch.empty_like(mine) for _ in range(world)]
    dist.all_gather(gathered, mine)
    return torch.cat(gathered)
