"""Orthogonalises matrices together: those of one shape in one product, a part in each process."""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor

from tools.training.trainer import orthogonalized


def together(updates: Iterable[Tensor]) -> list[Tensor]:
    """As `one_by_one`; the matrices of one shape must divide by the processes."""
    found = list(updates)
    places: dict[torch.Size, list[int]] = {}
    for place, update in enumerate(found):
        places.setdefault(update.shape, []).append(place)
    for alike in places.values():
        stack_NRC = _shared(torch.stack([found[place] for place in alike]))
        for place, change in zip(alike, stack_NRC, strict=True):
            found[place] = change
    return found


def _shared(stack_NRC: Tensor) -> Tensor:
    world = dist.get_world_size()
    parts = list(stack_NRC.chunk(world))
    mine = orthogonalized(parts[dist.get_rank()]).contiguous()
    gathered = [torch.empty_like(mine) for _ in range(world)]
    dist.all_gather(gathered, mine)
    return torch.cat(gathered)
