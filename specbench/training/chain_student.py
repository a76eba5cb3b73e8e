"""Heads that draft token by token as students: each pass continues from the head's own states.

Shape suffixes: B rows, T tokens, N positions, F the head's states, D the tokens it can say,
V vocabulary.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from specbench.drafters.heads.feature_drafter import FeatureHead
from specbench.forward.runner import Runner
from specbench.methods import Recipe
from specbench.models.checkpoint import Checkpoint
from specbench.training.student import Agreement, distilled, leaves, put
from specbench.training.teacher import Lesson

_LATER = 0.8  # how much less each pass counts than the one before
_NOISE = 0.1  # of a feature's deviation; uniform. Li et al. 2024 (arXiv:2401.15077), section 4


class ChainHead(FeatureHead, Protocol):
    """A head of which every step can be trained."""

    num_depths: int  # steps that have layers of their own; deeper ones have them again

    @property
    def module(self) -> nn.Module:
        """Its own weights, which training replaces."""
        ...

    def files(self, checkpoint: Checkpoint, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Weights of `module` under the names that the checkpoint's files have for them."""
        ...


class _Pass(NamedTuple):
    states_BTF: Tensor  # what the head made of the state after each token
    is_answer_BT: Tensor  # whether it is about a token of an answer
    depth: int


class ChainStudent:
    """Output t of a pass is about token t + 2, as the target's own state t + 1 is."""

    def __init__(
        self, head: ChainHead, checkpoint: Checkpoint, target: Runner, recipe: Recipe
    ) -> None:
        self._head, self._initial, self._target, self._recipe = head, checkpoint, target, recipe
        self._num_passes = recipe.passes if head.num_depths == 1 else head.num_depths
        self.features, self.num_tokens = head.features, head.num_tokens
        self.parameters: Mapping[str, Tensor] = leaves(head.module)
        d2t_D = checkpoint.tensors.get("d2t")
        self._ids_D: Tensor | None = None
        if d2t_D is not None:
            self._ids_D = (torch.arange(len(d2t_D)) + d2t_D).to(target.device)

    def loss(self, lesson: Lesson, generator: torch.Generator) -> Tensor:
        put(self._head.module, self.parameters, self._head.dtype)
        total = torch.zeros((), device=lesson.last.device)
        weight_sum = 0.0
        features = self._noisy(lesson.features, generator)
        for one in self._run(lesson, features, self._num_passes):
            weight = _LATER**one.depth
            weight_sum += weight
            own_NF = one.states_BTF[one.is_answer_BT]
            teacher_NF = lesson.last[:, 1:-1][one.is_answer_BT]
            total = total + weight * self._distance(own_NF, teacher_NF, one.depth)
        return total / weight_sum

    def _distance(self, own_NF: Tensor, teacher_NF: Tensor, depth: int) -> Tensor:
        with torch.no_grad():
            teacher_NV = self._target.logits(teacher_NF[None])[0]
        logits_NV = self._head.logits(own_NF[None], depth)[0]
        if self._ids_D is not None:  # among the tokens that it can say
            teacher_NV, logits_NV = teacher_NV[:, self._ids_D], logits_NV[:, self._ids_D]
        distance = distilled(logits_NV, teacher_NV)
        if self._recipe.feature_weight and len(own_NF):
            of_features = nn.functional.smooth_l1_loss(own_NF.float(), teacher_NF.float())
            distance = distance + self._recipe.feature_weight * of_features
        return distance

    @torch.no_grad()
    def agreement(self, lesson: Lesson, depth: int) -> Agreement:
        """Drafts are as deep as the layers, if there are several: deeper ones are not trained."""
        if self._head.num_depths > 1:
            depth = min(depth, self._head.num_depths)
        put(self._head.module, self.parameters, self._head.dtype)
        ids_BT, is_answer_BT = lesson.batch.ids_BT, lesson.batch.is_answer_BT
        contexts, right = [], []
        is_chain_BT = is_answer_BT[:, 1:-1]  # token t + 1 begins a round
        is_right_BT = is_chain_BT
        for one in self._run(lesson, lesson.features, depth):
            if one.depth:  # the chain one token further on
                is_chain_BT, is_right_BT = _later(is_chain_BT), _later(is_right_BT)
            drafts_BT = self._head.logits(one.states_BTF, one.depth).argmax(-1)
            is_chain_BT = is_chain_BT & one.is_answer_BT
            is_right_BT = is_right_BT & is_chain_BT & (drafts_BT == ids_BT[:, 2:])
            contexts.append(is_chain_BT.sum())
            right.append(is_right_BT.sum())
        return Agreement(torch.stack(contexts), torch.stack(right))

    def checkpoint(self) -> Checkpoint:
        trained = {name: tensor.detach() for name, tensor in self.parameters.items()}
        files = self._head.files(self._initial, trained)
        return replace(self._initial, tensors={**self._initial.tensors, **files})

    def _run(self, lesson: Lesson, features: tuple[Tensor, ...], count: int) -> Iterator[_Pass]:
        """Passes over all texts of a batch, drafts being the text's own tokens."""
        head, batch = self._head, lesson.batch
        tokens_BT, is_answer_BT = batch.ids_BT[:, 1:-1], batch.is_answer_BT[:, 2:]
        B, T = tokens_BT.shape
        positions_BT = torch.arange(T, device=tokens_BT.device).expand(B, -1)
        states_BTF = head.fuse(tuple(feature_BTF[:, :T] for feature_BTF in features))
        with head.layers.whole_texts():
            for depth in range(count):
                if depth:
                    states_BTF = nn.functional.pad(states_BTF[:, :-1], (0, 0, 1, 0))
                states_BTF = head.step(tokens_BT, states_BTF, positions_BT, T, depth=depth)
                yield _Pass(states_BTF, is_answer_BT & (positions_BT >= depth), depth)

    def _noisy(
        self, features: tuple[Tensor, ...], generator: torch.Generator
    ) -> tuple[Tensor, ...]:
        if not self._recipe.is_noisy:
            return features

        def noise(feature_BTF: Tensor) -> Tensor:
            # Drawn on the host: the same on every device.
            draw_BTF = torch.rand(feature_BTF.shape, generator=generator) * 2 - 1
            scale_F = feature_BTF.std((0, 1)) * _NOISE
            return draw_BTF.to(feature_BTF.device, feature_BTF.dtype) * scale_F

        return tuple(feature_BTF + noise(feature_BTF) for feature_BTF in features)


def _later(flags_BT: Tensor) -> Tensor:
    """Each flag one place further on."""
    return nn.functional.pad(flags_BT[:, :-1], (1, 0))
