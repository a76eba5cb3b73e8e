"""Draft heads in training: a head's inference code with trainable float32 parameters.

New and existing heads are opened here and trained in trainer.py. Their measure is held-out
acceptance: how far a head's greedy chains match the target's greedy outputs. In training, a head
that drafts token by token continues each pass from its own states. Each further Medusa head learns
the target's distribution one token further ahead.
Shape suffixes: B rows, T tokens, N positions, H heads, F hidden size, D draft positions or tokens
that a head can draft, V vocabulary, R ranks.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from specbench.drafters.medusa import MedusaHeads
from specbench.drafters.registry import drafter_class
from specbench.drafters.shared.feature_drafter import FeatureHead
from specbench.forward.runner import Runner
from specbench.models.checkpoint import Checkpoint
from specbench.stats.rounds import mean_length_from_rates
from tools.training.settings import RECIPES, Recipe
from tools.training.teacher import Batch, Lesson, Teacher, head_rows
from tools.training.texts import TrainingText


class Agreement(NamedTuple):
    """How often greedy chains of D draft tokens match the target's text.

    A chain starts after each token of an output. At each draft position, `contexts_D` counts the
    chains whose text is long enough, and `correct_D` those that match up to this position. `ranks`
    (Medusa only, [heads, ranks]) counts matches of each head's token of each rank.
    """

    contexts_D: Tensor
    correct_D: Tensor
    ranks: Tensor | None = None


class Student(Protocol):
    """A head in training; one implementation per kind of head."""

    parameters: Mapping[str, Tensor]  # float32 and trainable, by parameter name
    features: tuple[int, ...]
    num_tokens: int  # tokens that it can draft

    def loss(self, lesson: Lesson, generator: torch.Generator) -> Tensor:
        """The loss of a batch in nats; all random numbers come from `generator`."""
        ...

    def agreement(self, lesson: Lesson, depth: int) -> Agreement:
        """Agreement with the target's greedy outputs, for up to `depth` draft tokens."""
        ...

    def checkpoint(self) -> Checkpoint:
        """The head's config and tensors to save, in float32."""
        ...


def set_parameters(module: nn.Module, parameters: Mapping[str, Tensor], dtype: torch.dtype) -> None:
    """Replace parameters of a module by these tensors, cast to `dtype`; gradients flow to them."""
    for name, tensor in parameters.items():
        owner, _, last = name.rpartition(".")
        inner = module.get_submodule(owner)
        if last in inner._parameters:
            delattr(inner, last)
        setattr(inner, last, tensor.to(dtype))


def trainable_copies(module: nn.Module) -> dict[str, Tensor]:
    """Trainable float32 copies of a module's parameters."""
    return {
        name: parameter.detach().float().clone().requires_grad_()
        for name, parameter in module.named_parameters()
    }


def distillation_loss(logits_NV: Tensor, teacher_NV: Tensor) -> Tensor:
    """Mean cross-entropy against the teacher's full distribution, in nats."""
    if not len(logits_NV):
        return logits_NV.sum()
    return nn.functional.cross_entropy(logits_NV.float(), teacher_NV.float().softmax(-1))


_PASS_DECAY = 0.8  # weight of each pass relative to the previous one
# Uniform, per standard deviation of a feature. Li et al. 2024 (arXiv:2401.15077), section 4.
_NOISE = 0.1


class ChainHead(FeatureHead, Protocol):
    """A head that drafts token by token, and whose steps can all be trained."""

    num_depths: int  # steps with separate layers; deeper steps reuse them

    @property
    def module(self) -> nn.Module:
        """The module whose weights are trained."""
        ...

    def files(self, checkpoint: Checkpoint, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The weights under their names in the checkpoint's files."""
        ...


class _HeadPass(NamedTuple):
    states_BTF: Tensor  # output of the head after each token
    is_answer_BT: Tensor  # whether the predicted token is part of an output
    depth: int


class ChainStudent:
    """Trains a `ChainHead`: output t predicts token t + 2, as the target's state t + 1 does."""

    def __init__(
        self, head: ChainHead, checkpoint: Checkpoint, target: Runner, recipe: Recipe
    ) -> None:
        self._head, self._initial, self._target, self._recipe = head, checkpoint, target, recipe
        self._num_passes = recipe.passes if head.num_depths == 1 else head.num_depths
        self.features, self.num_tokens = head.features, head.num_tokens
        self.parameters: Mapping[str, Tensor] = trainable_copies(head.module)
        d2t_D = checkpoint.tensors.get("d2t")
        self._ids_D: Tensor | None = None
        if d2t_D is not None:
            self._ids_D = (torch.arange(len(d2t_D)) + d2t_D).to(target.device)

    def loss(self, lesson: Lesson, generator: torch.Generator) -> Tensor:
        set_parameters(self._head.module, self.parameters, self._head.dtype)
        total = torch.zeros((), device=lesson.last.device)
        weight_sum = 0.0
        features = self._noisy(lesson.features, generator)
        for output in self._run(lesson, features, self._num_passes):
            weight = _PASS_DECAY**output.depth
            weight_sum += weight
            states_NF = output.states_BTF[output.is_answer_BT]
            teacher_NF = lesson.last[:, 1:-1][output.is_answer_BT]
            total = total + weight * self._distance(states_NF, teacher_NF, output.depth)
        return total / weight_sum

    def _distance(self, states_NF: Tensor, teacher_NF: Tensor, depth: int) -> Tensor:
        with torch.no_grad():
            teacher_NV = self._target.logits(teacher_NF[None])[0]
        logits_NV = self._head.logits(states_NF[None], depth)[0]
        if self._ids_D is not None:  # compare only the tokens that the head can draft
            teacher_NV, logits_NV = teacher_NV[:, self._ids_D], logits_NV[:, self._ids_D]
        distance = distillation_loss(logits_NV, teacher_NV)
        if self._recipe.feature_weight and len(states_NF):
            feature_loss = nn.functional.smooth_l1_loss(states_NF.float(), teacher_NF.float())
            distance = distance + self._recipe.feature_weight * feature_loss
        return distance

    @torch.no_grad()
    def agreement(self, lesson: Lesson, depth: int) -> Agreement:
        """Agreement for at most one draft token per separate layer: deeper steps are untrained."""
        if self._head.num_depths > 1:
            depth = min(depth, self._head.num_depths)
        set_parameters(self._head.module, self.parameters, self._head.dtype)
        ids_BT, is_answer_BT = lesson.batch.ids_BT, lesson.batch.is_answer_BT
        contexts, correct = [], []
        is_chain_BT = is_answer_BT[:, 1:-1]  # a chain starts after token t + 1
        is_correct_BT = is_chain_BT
        for output in self._run(lesson, lesson.features, depth):
            if output.depth:  # the same chain, one token later
                is_chain_BT, is_correct_BT = _shift_right(is_chain_BT), _shift_right(is_correct_BT)
            drafts_BT = self._head.logits(output.states_BTF, output.depth).argmax(-1)
            is_chain_BT = is_chain_BT & output.is_answer_BT
            is_correct_BT = is_correct_BT & is_chain_BT & (drafts_BT == ids_BT[:, 2:])
            contexts.append(is_chain_BT.sum())
            correct.append(is_correct_BT.sum())
        return Agreement(torch.stack(contexts), torch.stack(correct))

    def checkpoint(self) -> Checkpoint:
        trained = {name: tensor.detach() for name, tensor in self.parameters.items()}
        files = self._head.files(self._initial, trained)
        return replace(self._initial, tensors={**self._initial.tensors, **files})

    def _run(self, lesson: Lesson, features: tuple[Tensor, ...], count: int) -> Iterator[_HeadPass]:
        """Run `count` passes over a batch, with the tokens of its texts as draft tokens."""
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
            # Drawn on the host, so that it is the same on every device.
            draw_BTF = torch.rand(feature_BTF.shape, generator=generator) * 2 - 1
            scale_F = feature_BTF.std((0, 1)) * _NOISE
            return draw_BTF.to(feature_BTF.device, feature_BTF.dtype) * scale_F

        return tuple(feature_BTF + noise(feature_BTF) for feature_BTF in features)


def _shift_right(flags_BT: Tensor) -> Tensor:
    return nn.functional.pad(flags_BT[:, :-1], (1, 0))


# Weight of each head relative to the previous one. Source: Cai et al. 2024, section 2.2.1.
_HEAD_DECAY = 0.8
_RANKS = 10
_START_SCALE = 0.1  # of the target's head: unscaled, it strongly predicts the previous token


class MedusaStudent:
    """Trains Medusa: head i at t predicts token t + 2 + i, as the target's state t + 1 + i does."""

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
        rows_N, positions_N, is_answer_HN = self._positions(lesson)
        logits_HNV = self._heads().logits(lesson.last[rows_N, positions_N], self._num_heads)
        total, weight_sum = torch.zeros((), device=lesson.last.device), 0.0
        for i, (logits_NV, is_answer_N) in enumerate(zip(logits_HNV, is_answer_HN, strict=True)):
            teacher_NF = lesson.last[rows_N[is_answer_N], positions_N[is_answer_N] + 1 + i]
            with torch.no_grad():
                teacher_NV = self._target.logits(teacher_NF[None])[0]
            weight = _HEAD_DECAY**i
            weight_sum += weight
            total = total + weight * distillation_loss(logits_NV[is_answer_N], teacher_NV)
        return total / weight_sum

    @torch.no_grad()
    def agreement(self, lesson: Lesson, depth: int) -> Agreement:
        heads, batch = self._heads(), lesson.batch
        rows_N, positions_N, is_answer_HN = self._positions(lesson)
        states_NF = lesson.last[rows_N, positions_N]
        num_ranks = min(_RANKS, heads.vocab_size)
        best_HNR = heads.logits(states_NF, self._num_heads).topk(num_ranks, dim=-1).indices
        contexts, correct, ranks = [], [], []
        is_correct_N = is_chain_N = batch.is_answer_BT[rows_N, positions_N + 1]
        for i, (best_NR, is_answer_N) in enumerate(zip(best_HNR, is_answer_HN, strict=True)):
            last = batch.ids_BT.shape[1] - 1
            ids_N = batch.ids_BT[rows_N, (positions_N + 2 + i).clamp(max=last)]
            is_chain_N = is_chain_N & is_answer_N
            is_hit_NR = (heads.target_ids(best_NR) == ids_N[:, None]) & is_chain_N[:, None]
            is_correct_N = is_correct_N & is_hit_NR[:, 0]
            contexts.append(is_chain_N.sum())
            correct.append(is_correct_N.sum())
            ranks.append(is_hit_NR.sum(0))
        return Agreement(
            torch.stack(contexts)[:depth], torch.stack(correct)[:depth], torch.stack(ranks)[:depth]
        )

    def _positions(self, lesson: Lesson) -> tuple[Tensor, Tensor, Tensor]:
        """Rows and positions [N] of the states t whose token t + 2 is part of an output, and for
        each head whether the token that it predicts there is also one, bool [H, N]."""
        is_answer_BT = lesson.batch.is_answer_BT
        rows_N, positions_N = is_answer_BT[:, 2:].nonzero(as_tuple=True)
        last = is_answer_BT.shape[1] - 1
        heads_H1 = torch.arange(self._num_heads, device=positions_N.device)[:, None]
        predicted_HN = positions_N + 2 + heads_H1
        is_answer_HN = is_answer_BT[rows_N, predicted_HN.clamp(max=last)] & (predicted_HN <= last)
        return rows_N, positions_N, is_answer_HN

    def checkpoint(self) -> Checkpoint:
        trained = {name: tensor.detach() for name, tensor in self.parameters.items()}
        return replace(self._initial, tensors=trained)

    def _heads(self) -> MedusaHeads:
        """The heads, rebuilt so that gradients flow through the stacked weights."""
        return MedusaHeads(replace(self._initial, tensors=self.parameters), self._target)


def initial_medusa_heads(checkpoint: Checkpoint, target: Runner) -> Checkpoint:
    """New heads: scaled-down copies of the target's head, with zeroed residual layers."""
    head_VF = head_rows(target) * _START_SCALE
    return replace(
        checkpoint,
        tensors={
            name: torch.zeros_like(tensor) if ".linear." in name else head_VF.clone()
            for name, tensor in checkpoint.tensors.items()
        },
    )


DEPTH = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class Acceptance:
    """The acceptance of a head's chains on held-out texts.

    `per_position[d]`: fraction of contexts whose first d + 1 drafts, each continuing the earlier
    ones, are all accepted. Contexts are the output tokens with at least d + 1 tokens after them; a
    position without contexts is left out.
    `ranks` (Medusa): for each head, how often the token of each rank is right.
    """

    per_position: tuple[float, ...]
    contexts: int
    ranks: tuple[tuple[float, ...], ...] = ()

    @property
    def mean_length(self) -> float:
        """Tokens per round of a chain: 1 + the sum over its positions."""
        return mean_length_from_rates(self.per_position)


def measure_acceptance(
    student: Student, teacher: Teacher, batches: Sequence[Batch], depth: int = DEPTH
) -> Acceptance:
    """The acceptance over all batches; every context has equal weight."""
    agreements = [student.agreement(teacher.lesson(batch), depth) for batch in batches]
    contexts_D = torch.stack([agreement.contexts_D for agreement in agreements]).sum(0)
    correct_D = torch.stack([agreement.correct_D for agreement in agreements]).sum(0)
    rates_D = (correct_D / contexts_D)[contexts_D > 0]
    counts = [agreement.ranks for agreement in agreements if agreement.ranks is not None]
    ranks: tuple[tuple[float, ...], ...] = ()
    if counts:
        rates = torch.stack(counts).sum(0) / contexts_D.clamp(min=1)[:, None]
        ranks = tuple(tuple(round(rate, 4) for rate in head) for head in rates.tolist())
    return Acceptance(
        per_position=tuple(round(rate, 4) for rate in rates_D.tolist()),
        contexts=int(contexts_D[0]),
        ranks=ranks,
    )


_MAX_DRAFT_VOCABULARY = 32_000  # tokens that a new EAGLE-3 head can draft


def new_student(
    method: str, target: Runner, config: Any, texts: Sequence[TrainingText], seed: int, size: int
) -> Student:
    """A new head; `size` is its number of Medusa heads or MTP layers."""
    recipe = RECIPES[method]
    options: dict[str, Any] = {recipe.size: size} if recipe.size else {}
    if recipe.has_vocabulary:
        options["target_ids"] = _frequent_ids(texts, target.vocab_size)
    start: Checkpoint = drafter_class(method).new_checkpoint(config, seed, **options)
    if recipe.has_vocabulary:
        start = _with_targets_head(start, target, options["target_ids"])
    elif not recipe.passes:
        start = initial_medusa_heads(start, target)
    return open_student(method, start, target)


def open_student(method: str, checkpoint: Checkpoint, target: Runner) -> Student:
    """An existing head, to be trained further or measured."""
    recipe = RECIPES[method]
    if not recipe.passes:
        return MedusaStudent(checkpoint, target)
    head = drafter_class(method).open_head(checkpoint, target)
    return ChainStudent(head, checkpoint, target, recipe)


def _with_targets_head(checkpoint: Checkpoint, target: Runner, ids: tuple[int, ...]) -> Checkpoint:
    rows = head_rows(target)
    head = {"lm_head.weight": rows[list(ids)] if ids else rows}
    return replace(checkpoint, tensors={**checkpoint.tensors, **head})


def _frequent_ids(texts: Sequence[TrainingText], vocab_size: int) -> tuple[int, ...]:
    """The ids of the most frequent tokens in outputs, ascending; empty: all tokens."""
    if vocab_size <= _MAX_DRAFT_VOCABULARY:
        return ()
    counts_V = token_counts(texts, vocab_size)
    chosen = counts_V.argsort(descending=True, stable=True)[:_MAX_DRAFT_VOCABULARY]
    return tuple(sorted(chosen.tolist()))


def token_counts(texts: Sequence[TrainingText], vocab_size: int) -> Tensor:
    """The count of each token in outputs that are not held out, int64 [V]."""
    tokens = [i for text in texts if not text.is_held_out for i in text.ids[text.num_prompt :]]
    return torch.tensor(tokens, dtype=torch.long).bincount(minlength=vocab_size)
