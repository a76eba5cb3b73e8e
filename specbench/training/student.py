"""Heads while they are trained: their own code over weights that gradients reach.

A head that drafts token by token continues each pass from its own states. Each Medusa head is
taught the target's distribution one token further ahead.
Shape suffixes: B rows, T tokens, N positions, H heads, F hidden size, D positions of a draft or
tokens that a head can draft, V vocabulary, R ranks.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from specbench.drafters.medusa import MedusaHeads
from specbench.drafters.shared.feature_drafter import FeatureHead
from specbench.forward.runner import Runner
from specbench.methods import Recipe
from specbench.models.checkpoint import Checkpoint
from specbench.training.teacher import Lesson, head_rows


class Agreement(NamedTuple):
    """Greedy chains of D drafts after every token of an answer that D more tokens follow.

    `right_D` counts contexts in which the first drafts up to each position are all the target's
    own tokens; `ranks` of Medusa [heads, ranks] how often the token of each rank is right.
    """

    contexts_D: Tensor
    right_D: Tensor
    ranks: Tensor | None = None


class Student(Protocol):
    """One kind of head, as the training loop sees it."""

    parameters: Mapping[str, Tensor]  # float32 leaves, by the names of the head's own code
    features: tuple[int, ...]
    num_tokens: int  # that it can say

    def loss(self, lesson: Lesson, generator: torch.Generator) -> Tensor:
        """In nats; `generator` is the only source of chance."""
        ...

    def agreement(self, lesson: Lesson, depth: int) -> Agreement:
        """On the target's greedy answers."""
        ...

    def checkpoint(self) -> Checkpoint:
        """The head as its files will hold it, in float32."""
        ...


def put(module: nn.Module, parameters: Mapping[str, Tensor], dtype: torch.dtype) -> None:
    """Let a module run on these tensors, cast to what it computes in: gradients reach them."""
    for name, tensor in parameters.items():
        owner, _, last = name.rpartition(".")
        inner = module.get_submodule(owner)
        if last in inner._parameters:
            delattr(inner, last)
        setattr(inner, last, tensor.to(dtype))


def leaves(module: nn.Module) -> dict[str, Tensor]:
    """Float32 copies of a module's parameters, to be trained."""
    return {
        name: parameter.detach().float().clone().requires_grad_()
        for name, parameter in module.named_parameters()
    }


def distilled(logits_NV: Tensor, teacher_NV: Tensor) -> Tensor:
    """Mean cross-entropy to the teacher's whole distribution, in nats."""
    if not len(logits_NV):
        return logits_NV.sum()
    return nn.functional.cross_entropy(logits_NV.float(), teacher_NV.float().softmax(-1))


_PASS_DECAY = 0.8  # how much less each pass counts than the one before
_NOISE = 0.1  # of a feature's deviation; uniform. Li et al. 2024 (arXiv:2401.15077), section 4


class ChainHead(FeatureHead, Protocol):
    """A head of which every step can be trained."""

    num_depths: int  # steps that have their own layers; deeper ones use them again

    @property
    def module(self) -> nn.Module:
        """The head's own weights, which training replaces."""
        ...

    def files(self, checkpoint: Checkpoint, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Weights of `module` under the names that the checkpoint's files have for them."""
        ...


class _HeadPass(NamedTuple):
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
        for output in self._run(lesson, features, self._num_passes):
            weight = _PASS_DECAY**output.depth
            weight_sum += weight
            own_NF = output.states_BTF[output.is_answer_BT]
            teacher_NF = lesson.last[:, 1:-1][output.is_answer_BT]
            total = total + weight * self._distance(own_NF, teacher_NF, output.depth)
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
        is_chain_BT = is_answer_BT[:, 1:-1]  # a round begins at token t + 1
        is_right_BT = is_chain_BT
        for output in self._run(lesson, lesson.features, depth):
            if output.depth:  # the chain one token further on
                is_chain_BT, is_right_BT = _later(is_chain_BT), _later(is_right_BT)
            drafts_BT = self._head.logits(output.states_BTF, output.depth).argmax(-1)
            is_chain_BT = is_chain_BT & output.is_answer_BT
            is_right_BT = is_right_BT & is_chain_BT & (drafts_BT == ids_BT[:, 2:])
            contexts.append(is_chain_BT.sum())
            right.append(is_right_BT.sum())
        return Agreement(torch.stack(contexts), torch.stack(right))

    def checkpoint(self) -> Checkpoint:
        trained = {name: tensor.detach() for name, tensor in self.parameters.items()}
        files = self._head.files(self._initial, trained)
        return replace(self._initial, tensors={**self._initial.tensors, **files})

    def _run(self, lesson: Lesson, features: tuple[Tensor, ...], count: int) -> Iterator[_HeadPass]:
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
                yield _HeadPass(states_BTF, is_answer_BT & (positions_BT >= depth), depth)

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


# How much less each head counts than the one before. Source: Cai et al. 2024, section 2.2.1.
_HEAD_DECAY = 0.8
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
            weight = _HEAD_DECAY**i
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
        """States whose next token but one is of an answer [N, F]; for each head whether the token
        it predicts is also of an answer, and the rows and positions of the states."""
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
        """Made again from the parameters, so that gradients go through what it stacks of them."""
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
