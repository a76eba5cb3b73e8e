"""The heads that can be trained: new ones and existing ones."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from specbench.drafters.registry import drafter_class
from specbench.errors import UsageError
from specbench.forward.runner import Runner
from specbench.methods import Recipe, all_methods, find_method
from specbench.models.checkpoint import Checkpoint
from specbench.training.optimizer import Schedule
from specbench.training.student import ChainStudent, MedusaStudent, Student, initial_medusa_heads
from specbench.training.teacher import head_rows
from specbench.training.texts import TrainingText

_WIDTH = 128  # of the target that the rates were found on; wider ones take smaller steps
_MOST_DRAFTED = 32_000  # tokens of a larger vocabulary that an EAGLE-3 head can draft


def recipe_of(method: str) -> Recipe:
    """UsageError names the methods whose heads can be trained."""
    head = find_method(method).head
    if head is None or head.recipe is None:
        trained = [m.name for m in all_methods() if m.head and m.head.recipe]
        raise UsageError(f"no head of {method!r} can be trained; allowed: {', '.join(trained)}")
    return head.recipe


def schedule(recipe: Recipe, steps: int, hidden_size: int) -> Schedule:
    """Learning rates for a target of that width."""
    scale = min(1.0, _WIDTH / hidden_size)
    return Schedule(steps=steps, muon_lr=recipe.muon_lr * scale, adamw_lr=recipe.adamw_lr * scale)


def new_student(
    method: str, target: Runner, config: Any, texts: Sequence[TrainingText], seed: int, size: int
) -> Student:
    """A head with random weights, with that many heads or layers."""
    recipe = recipe_of(method)
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
    recipe = recipe_of(method)
    if not recipe.passes:
        return MedusaStudent(checkpoint, target)
    head = drafter_class(method).open_head(checkpoint, target)
    return ChainStudent(head, checkpoint, target, recipe)


def _with_targets_head(checkpoint: Checkpoint, target: Runner, ids: tuple[int, ...]) -> Checkpoint:
    rows = head_rows(target)
    head = {"lm_head.weight": rows[list(ids)] if ids else rows}
    return replace(checkpoint, tensors={**checkpoint.tensors, **head})


def _frequent_ids(texts: Sequence[TrainingText], vocab_size: int) -> tuple[int, ...]:
    """The tokens that answers have most often, in rising order; none means all."""
    if vocab_size <= _MOST_DRAFTED:
        return ()
    counts_V = token_counts(texts, vocab_size)
    chosen = counts_V.argsort(descending=True, stable=True)[:_MOST_DRAFTED]
    return tuple(sorted(chosen.tolist()))


def token_counts(texts: Sequence[TrainingText], vocab_size: int) -> Tensor:
    """How often each token is said in answers that are not held out."""
    tokens = [i for text in texts if not text.is_held_out for i in text.ids[text.num_prompt :]]
    return torch.tensor(tokens, dtype=torch.long).bincount(minlength=vocab_size)
