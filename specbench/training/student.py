"""A head while it is trained: its own code over weights that gradients reach.

Shape suffixes: N positions, V vocabulary, D positions of a draft.
"""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from specbench.models.checkpoint import Checkpoint
from specbench.training.teacher import Lesson


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
