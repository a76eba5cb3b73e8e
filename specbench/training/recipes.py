"""How each kind of head is trained: what it starts from, its losses, its learning rates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from specbench.drafters.registry import drafter_class
from specbench.errors import UsageError
from specbench.forward.runner import Runner
from specbench.model_files.mtp_families import num_mtp_layers
from specbench.models.checkpoint import Checkpoint
from specbench.training.chain_student import ChainStudent, MtpStudent, Passes
from specbench.training.medusa_student import MedusaStudent, from_targets_head
from specbench.training.optimizer import Schedule
from specbench.training.student import Student
from specbench.training.teacher import head_rows
from specbench.training.texts import Text

_WIDTH = 128  # of the target that the rates were found on; wider ones take smaller steps
_MOST_SAID = 32_000  # tokens of a larger vocabulary that an EAGLE-3 head can say


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Learning rates of a target `_WIDTH` wide, and the passes of a head that has them."""

    muon_lr: float
    adamw_lr: float
    passes: Passes | None = None

    def schedule(self, steps: int, hidden_size: int) -> Schedule:
        """For a target of that width."""
        scale = min(1.0, _WIDTH / hidden_size)
        return Schedule(steps=steps, muon_lr=self.muon_lr * scale, adamw_lr=self.adamw_lr * scale)


RECIPES: Mapping[str, Recipe] = {
    # Trained on one pass alone, features drift: the second draft is accepted a third as often.
    "eagle": Recipe(
        muon_lr=4e-3,
        adamw_lr=2e-3,
        passes=Passes(count=3, feature_weight=0.5, is_noisy=True),
    ),
    # Without a loss on features, drafts deeper than the passes are lost.
    "eagle3": Recipe(muon_lr=4e-3, adamw_lr=4e-3, passes=Passes(count=5)),
    "mtp": Recipe(muon_lr=4e-3, adamw_lr=2e-3, passes=Passes(count=2)),
    "medusa": Recipe(muon_lr=8e-3, adamw_lr=4e-3),
}


def recipe_of(method: str) -> Recipe:
    """UsageError names the methods whose heads can be trained."""
    if method not in RECIPES:
        raise UsageError(f"no head of {method!r} can be trained; allowed: {', '.join(RECIPES)}")
    return RECIPES[method]


def new_student(
    method: str, target: Runner, config: Any, texts: Sequence[Text], seed: int, num_heads: int
) -> Student:
    """A head that knows nothing yet; `num_heads` of Medusa, or layers of MTP."""
    options: dict[str, Any] = {}
    if method == "eagle3":
        options["target_ids"] = _said(texts, target.vocab_size)
    elif method == "medusa":
        options["num_heads"] = num_heads
    elif method == "mtp":
        options["num_layers"] = num_heads
    start: Checkpoint = drafter_class(method).new_checkpoint(config, seed, **options)
    if method == "medusa":
        start = from_targets_head(start, target)
    elif method == "eagle3":
        start = _with_targets_head(start, target, options["target_ids"])
    return open_student(method, start, target)


def open_student(method: str, checkpoint: Checkpoint, target: Runner) -> Student:
    """A head that there is, to be trained further or measured."""
    if method == "medusa":
        return MedusaStudent(checkpoint, target)
    passes = recipe_of(method).passes
    assert passes is not None
    if method != "mtp":
        return ChainStudent(method, checkpoint, target, passes)
    num_layers = num_mtp_layers(checkpoint)
    if num_layers > 1:
        passes = Passes(count=num_layers)
    return MtpStudent(method, checkpoint, target, passes)


def _with_targets_head(checkpoint: Checkpoint, target: Runner, ids: tuple[int, ...]) -> Checkpoint:
    rows = head_rows(target)
    said = {"lm_head.weight": rows[list(ids)] if ids else rows}
    return replace(checkpoint, tensors={**checkpoint.tensors, **said})


def _said(texts: Sequence[Text], vocab_size: int) -> tuple[int, ...]:
    """The tokens that answers have most often, in rising order; none means all."""
    if vocab_size <= _MOST_SAID:
        return ()
    counts_V = token_counts(texts, vocab_size)
    chosen = counts_V.argsort(descending=True, stable=True)[:_MOST_SAID]
    return tuple(sorted(chosen.tolist()))


def token_counts(texts: Sequence[Text], vocab_size: int) -> Tensor:
    """How often each token is said in answers that are not held out."""
    said = [i for text in texts if not text.is_held_out for i in text.ids[text.num_prompt :]]
    return torch.tensor(said, dtype=torch.long).bincount(minlength=vocab_size)
