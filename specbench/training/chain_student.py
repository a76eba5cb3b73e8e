"""EAGLE and EAGLE-3 as students: each pass goes on from the head's own states.

Shape suffixes: B rows, T tokens, N positions, F the head's states, D the tokens it can say,
V vocabulary.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from specbench.drafters.heads.eagle import EagleHead
from specbench.drafters.heads.eagle3 import Eagle3Head
from specbench.drafters.heads.feature_drafter import FeatureHead
from specbench.drafters.heads.mtp import MtpHead
from specbench.drafters.heads.mtp_layouts import split_experts
from specbench.forward.runner import Runner
from specbench.model_files.mtp_families import file_name
from specbench.models.checkpoint import Checkpoint
from specbench.training.student import Agreement, distilled, leaves, put
from specbench.training.teacher import Lesson

_LATER = 0.8  # how much less each pass counts than the one before
_NOISE = 0.1  # of a feature's deviation; uniform. Li et al. 2024 (arXiv:2401.15077), section 4
_HEADS: Mapping[str, Callable[[Checkpoint, Runner], EagleHead | Eagle3Head]] = {
    "eagle": EagleHead,
    "eagle3": Eagle3Head,
}


@dataclass(frozen=True, kw_only=True)
class Passes:
    """How many passes are trained, and whether states are to be like the target's, too."""

    count: int
    feature_weight: float = 0.0
    is_noisy: bool = False


class _Pass(NamedTuple):
    states_BTF: Tensor  # what the head made of the state after each token
    is_answer_BT: Tensor  # whether it is about a token of an answer
    depth: int


class ChainStudent:
    """Output t of a pass is about token t + 2, as the target's own state t + 1 is."""

    def __init__(self, method: str, checkpoint: Checkpoint, target: Runner, passes: Passes) -> None:
        self._method = method
        self._initial, self._target, self._passes = checkpoint, target, passes
        self._head, self._module = self._open(checkpoint, target)
        self.features, self.num_tokens = self._head.features, self._head.num_tokens
        self.parameters: Mapping[str, Tensor] = leaves(self._module)
        d2t_D = checkpoint.tensors.get("d2t")
        self._ids_D: Tensor | None = None
        if d2t_D is not None:
            self._ids_D = (torch.arange(len(d2t_D)) + d2t_D).to(target.device)

    def loss(self, lesson: Lesson, generator: torch.Generator) -> Tensor:
        put(self._module, self.parameters, self._head.dtype)
        total = torch.zeros((), device=lesson.last.device)
        weight_sum = 0.0
        features = self._noisy(lesson.features, generator)
        for one in self._run(lesson, features, self._passes.count):
            weight = _LATER**one.depth
            weight_sum += weight
            own_NF = one.states_BTF[one.is_answer_BT]
            teacher_NF = lesson.last[:, 1:-1][one.is_answer_BT]
            total = total + weight * self._distance(own_NF, teacher_NF, one.depth)
        return total / weight_sum

    def _distance(self, own_NF: Tensor, teacher_NF: Tensor, depth: int) -> Tensor:
        with torch.no_grad():
            teacher_NV = self._target.logits(teacher_NF[None])[0]
        logits_NV = self._logits(own_NF[None], depth)[0]
        if self._ids_D is not None:  # among the tokens that it can say
            teacher_NV, logits_NV = teacher_NV[:, self._ids_D], logits_NV[:, self._ids_D]
        distance = distilled(logits_NV, teacher_NV)
        if self._passes.feature_weight and len(own_NF):
            of_features = nn.functional.smooth_l1_loss(own_NF.float(), teacher_NF.float())
            distance = distance + self._passes.feature_weight * of_features
        return distance

    @torch.no_grad()
    def agreement(self, lesson: Lesson, depth: int) -> Agreement:
        put(self._module, self.parameters, self._head.dtype)
        ids_BT, is_answer_BT = lesson.batch.ids_BT, lesson.batch.is_answer_BT
        contexts, right = [], []
        is_chain_BT = is_answer_BT[:, 1:-1]  # token t + 1 begins a round
        is_right_BT = is_chain_BT
        for one in self._run(lesson, lesson.features, depth):
            if one.depth:  # the chain one token further on
                is_chain_BT, is_right_BT = _later(is_chain_BT), _later(is_right_BT)
            drafts_BT = self._logits(one.states_BTF, one.depth).argmax(-1)
            is_chain_BT = is_chain_BT & one.is_answer_BT
            is_right_BT = is_right_BT & is_chain_BT & (drafts_BT == ids_BT[:, 2:])
            contexts.append(is_chain_BT.sum())
            right.append(is_right_BT.sum())
        return Agreement(torch.stack(contexts), torch.stack(right))

    def checkpoint(self) -> Checkpoint:
        trained = self._files({name: t.detach() for name, t in self.parameters.items()})
        return replace(self._initial, tensors={**self._initial.tensors, **trained})

    def _open(self, checkpoint: Checkpoint, target: Runner) -> tuple[FeatureHead, nn.Module]:
        """The head, and the module that has all of its weights."""
        head = _HEADS[self._method](checkpoint, target)
        return head, head.module

    def _files(self, trained: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Under the names of the head's files."""
        return trained

    def _logits(self, states_BTF: Tensor, depth: int) -> Tensor:  # noqa: ARG002
        return self._head.logits(states_BTF)

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
        if not self._passes.is_noisy:
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


class MtpStudent(ChainStudent):
    """As DeepSeek-AI 2024 (arXiv:2412.19437), 2.2, beside a target that stays as it is."""

    def agreement(self, lesson: Lesson, depth: int) -> Agreement:
        """To the depth of the layers: of several, drafts deeper than that are not trained."""
        layers = self._mtp.num_layers
        return super().agreement(lesson, depth if layers == 1 else min(depth, layers))

    def _open(self, checkpoint: Checkpoint, target: Runner) -> tuple[FeatureHead, nn.Module]:
        self._mtp = MtpHead(checkpoint, target)
        return self._mtp, self._mtp.modules

    def _files(self, trained: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        files: dict[str, Tensor] = {}
        for name, tensor in trained.items():
            files |= split_experts(file_name(self._initial, name), tensor)
        return files

    def _logits(self, states_BTF: Tensor, depth: int) -> Tensor:
        return self._mtp.logits(states_BTF, depth)
