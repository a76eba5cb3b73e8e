"""Medusa's heads as students: each is taught what the target says one token further ahead.

Shape suffixes: B rows, T tokens, N positions, H heads, F hidden size, V vocabulary, R ranks.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from specbench.drafters.heads.medusa import MedusaHeads
from specbench.forward.runner import Runner
from specbench.models.checkpoint import Checkpoint
from specbench.training.student import Agreement, distilled
from specbench.training.teacher import Lesson, head_rows

_LATER = 0.8  # how much less each head counts than the one before: Cai et al. 2024, section 2.2.1
_RANKS = 10
_START_SCALE = 0.1  # of the target's head: at full size it insists on the token of one place back


class MedusaStudent:
    """Head i at state t is about token t + 2 + i, as the target's own state t + 1 + i is."""

    def __init__(self, checkpoint: Checkpoint, target: Runner) -> None:
        self._initial, self._target = checkpoint, target
        self.features: tuple[int, ...] = (target.num_layers,)
        self.num_tokens = target.vocab_size
        self.parameters: Mapping[str, Tensor] = {
            name: tensor.to(target.device, torch.float32).clone().requires_grad_()
            for name, tensor in checkpoint.tensors.items()
        }
        self._num_heads = MedusaHeads(checkpoint, target).num_heads

    def loss(self, lesson: Lesson, generator: torch.Generator) -> Tensor:  # noqa: ARG002
        own_NF, places = self._places(lesson)
        logits_HNV = self._heads().logits(own_NF, self._num_heads)
        total, weight_sum = torch.zeros((), device=own_NF.device), 0.0
        for i, (logits_NV, (is_answer_N, rows_N, at_N)) in enumerate(
            zip(logits_HNV, places, strict=True)
        ):
            teacher_NF = lesson.last[rows_N[is_answer_N], at_N[is_answer_N] + 1 + i]
            with torch.no_grad():
                teacher_NV = self._target.logits(teacher_NF[None])[0]
            weight = _LATER**i
            weight_sum += weight
            total = total + weight * distilled(logits_NV[is_answer_N], teacher_NV)
        return total / weight_sum

    @torch.no_grad()
    def agreement(self, lesson: Lesson, depth: int) -> Agreement:
        heads, batch = self._heads(), lesson.batch
        own_NF, places = self._places(lesson)
        num_ranks = min(_RANKS, heads.vocab_size)
        best_HNR = heads.logits(own_NF, self._num_heads).topk(num_ranks, dim=-1).indices
        contexts, right, ranks = [], [], []
        _, rows_N, at_N = places[0]
        is_right_N = is_chain_N = batch.is_answer_BT[rows_N, at_N + 1]
        for i, (best_NR, (is_answer_N, _, _)) in enumerate(zip(best_HNR, places, strict=True)):
            last = batch.ids_BT.shape[1] - 1
            ids_N = batch.ids_BT[rows_N, (at_N + 2 + i).clamp(max=last)]
            is_chain_N = is_chain_N & is_answer_N
            is_hit_NR = (heads.target_ids(best_NR) == ids_N[:, None]) & is_chain_N[:, None]
            is_right_N = is_right_N & is_hit_NR[:, 0]
            contexts.append(is_chain_N.sum())
            right.append(is_right_N.sum())
            ranks.append(is_hit_NR.sum(0))
        few = slice(depth)
        return Agreement(
            torch.stack(contexts)[few], torch.stack(right)[few], torch.stack(ranks)[few]
        )

    def _places(self, lesson: Lesson) -> tuple[Tensor, list[tuple[Tensor, Tensor, Tensor]]]:
        """States whose next token but one is of an answer [N, F]; for each head whether what it
        is about is so, too, and the rows and positions of the states."""
        is_answer_BT = lesson.batch.is_answer_BT
        rows_N, at_N = is_answer_BT[:, 2:].nonzero(as_tuple=True)
        last = is_answer_BT.shape[1] - 1
        places = []
        for i in range(self._num_heads):
            about_N = at_N + 2 + i
            is_answer_N = is_answer_BT[rows_N, about_N.clamp(max=last)] & (about_N <= last)
            places.append((is_answer_N, rows_N, at_N))
        return lesson.last[rows_N, at_N], places

    def checkpoint(self) -> Checkpoint:
        trained = {name: tensor.detach() for name, tensor in self.parameters.items()}
        return replace(self._initial, tensors=trained)

    def _heads(self) -> MedusaHeads:
        """Made anew of the parameters: what it stacks of them, gradients go through."""
        return MedusaHeads(replace(self._initial, tensors=self.parameters), self._target)


def from_targets_head(checkpoint: Checkpoint, target: Runner) -> Checkpoint:
    """Heads that begin as the target's own, scaled down, with residual layers that do nothing."""
    own_VF = head_rows(target) * _START_SCALE
    return replace(
        checkpoint,
        tensors={
            name: torch.zeros_like(tensor) if ".linear." in name else own_VF.clone()
            for name, tensor in checkpoint.tensors.items()
        },
    )
