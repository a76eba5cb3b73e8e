"""What the target makes of texts: the states that a head reads, and those that it should expect.

Shape suffixes: B rows, T tokens, F hidden size, V vocabulary.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from specbench.forward.runner import Runner
from specbench.training.batches import Batch


class Lesson(NamedTuple):
    """A batch with the target's states [B, T, F]; `last` are those that its head reads."""

    batch: Batch
    features: tuple[Tensor, ...]
    last: Tensor


class Teacher:
    """Runs the target over batches, and keeps what it made of the first ones."""

    def __init__(self, runner: Runner, features: Sequence[int], keep_bytes: int) -> None:
        self.runner = runner
        self._features = tuple(features)
        self._left = keep_bytes
        self._kept: dict[int, Lesson] = {}

    def lesson(self, batch: Batch) -> Lesson:
        """The same for the same batch; batches are known by their numbers."""
        known = self._kept.get(batch.number)
        if known is not None:
            return known
        states = self._forward(batch.ids_BT)
        lesson = Lesson(batch, states[:-1], states[-1])
        size = sum({state.data_ptr(): state.nbytes for state in states}.values())
        if size <= self._left:
            self._left -= size
            self._kept[batch.number] = lesson
        return lesson

    def _forward(self, ids_BT: Tensor) -> tuple[Tensor, ...]:
        B, T = ids_BT.shape
        with torch.inference_mode():
            self.runner.allocate(B, T)
            positions_BT = torch.arange(T, device=ids_BT.device).expand(B, -1)
            last_1 = torch.tensor([T - 1], device=ids_BT.device)
            numbers = (*self._features, self.runner.num_layers)
            wanted = sorted(set(numbers))
            out = self.runner.forward(
                ids_BT, positions_BT, T, last_B=last_1, features=wanted, start=0
            )
        # Copies made outside of inference mode can be part of a graph.
        states = {i: state_BTF.clone() for i, state_BTF in zip(wanted, out.features, strict=True)}
        return tuple(states[i] for i in numbers)


@torch.no_grad()
def head_rows(runner: Runner) -> Tensor:
    """What the target's head multiplies states with [V, F], in float32 on the host."""
    unit_1FF = torch.eye(runner.hidden_size, dtype=runner.dtype, device=runner.device)[None]
    return runner.logits(unit_1FF)[0].T.float().cpu().contiguous()
