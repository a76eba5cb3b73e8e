"""The target as a teacher: batches of texts, and the target's states over them.

Texts are rows of tokens, one text per row, grouped by length, never packed.
Shape suffixes: B rows, T tokens, F hidden size, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from specbench.forward.runner import Runner
from tools.demo.corpus.grammar import Dice
from tools.training.texts import TrainingText

_BUCKET = 32


class Batch(NamedTuple):
    """Rows of one length; a row is padded at its end with id 0, which is not an answer token."""

    number: int
    ids_BT: Tensor
    is_answer_BT: Tensor


def batches_of(
    texts: Sequence[TrainingText],
    tokens_per_batch: int,
    most_tokens: int,
    seed: int,
    device: torch.device,
) -> list[Batch]:
    """Batches of all texts, grouped by similar length and cut at `most_tokens`."""
    buckets: dict[int, list[TrainingText]] = {}
    dice = Dice(seed, "rows")
    for text in dice.some(texts, len(texts)):
        length = -(-min(len(text.ids), most_tokens) // _BUCKET) * _BUCKET
        buckets.setdefault(length, []).append(text)
    batches: list[Batch] = []
    for length, rows in sorted(buckets.items()):
        height = max(1, tokens_per_batch // length)
        for start in range(0, len(rows), height):
            batches.append(_batch(len(batches), rows[start : start + height], length, device))
    return batches


def order(num_batches: int, seed: int, first: int = 0) -> Iterator[int]:
    """The batch numbers from step `first` on. Each epoch has every batch once, in a new order."""
    epoch, offset = divmod(first, num_batches)
    while True:
        shuffled = Dice(seed, "epoch", epoch).some(range(num_batches), num_batches)
        yield from shuffled[offset:]
        epoch, offset = epoch + 1, 0


def _batch(number: int, rows: Sequence[TrainingText], length: int, device: torch.device) -> Batch:
    ids_BT = torch.zeros(len(rows), length, dtype=torch.long)
    is_answer_BT = torch.zeros(len(rows), length, dtype=torch.bool)
    for row, text in enumerate(rows):
        ids = text.ids[:length]
        ids_BT[row, : len(ids)] = torch.tensor(ids)
        is_answer_BT[row, text.num_prompt : len(ids)] = True
    return Batch(number, ids_BT.to(device), is_answer_BT.to(device))


class Lesson(NamedTuple):
    """A batch with the target's states [B, T, F]; `last` is the input of the target's head."""

    batch: Batch
    features: tuple[Tensor, ...]
    last: Tensor


class Teacher:
    """Runs the target over batches, and caches up to `keep_bytes` of the resulting lessons."""

    def __init__(self, runner: Runner, features: Sequence[int], keep_bytes: int) -> None:
        self.runner = runner
        self._features = tuple(features)
        self._left = keep_bytes
        self._cached: dict[int, Lesson] = {}

    def lesson(self, batch: Batch) -> Lesson:
        """The lesson of a batch, which is identified by its number."""
        cached = self._cached.get(batch.number)
        if cached is not None:
            return cached
        states = self._forward(batch.ids_BT)
        lesson = Lesson(batch, states[:-1], states[-1])
        size = sum({state.data_ptr(): state.nbytes for state in states}.values())
        if size <= self._left:
            self._left -= size
            self._cached[batch.number] = lesson
        return lesson

    def _forward(self, ids_BT: Tensor) -> tuple[Tensor, ...]:
        B, T = ids_BT.shape
        with torch.inference_mode():
            self.runner.allocate(B, T)
            positions_BT = torch.arange(T, device=ids_BT.device).expand(B, -1)
            last_1 = torch.tensor([T - 1], device=ids_BT.device)
            numbers = (*self._features, self.runner.num_layers)
            distinct = sorted(set(numbers))
            out = self.runner.forward(
                ids_BT, positions_BT, T, last_B=last_1, features=distinct, start=0
            )
        # Copies that are made outside of inference mode can be part of an autograd graph.
        states = {i: state_BTF.clone() for i, state_BTF in zip(distinct, out.features, strict=True)}
        return tuple(states[i] for i in numbers)


@torch.no_grad()
def head_rows(runner: Runner) -> Tensor:
    """The matrix of the target's output head [V, F], in float32 on the host."""
    unit_1FF = torch.eye(runner.hidden_size, dtype=runner.dtype, device=runner.device)[None]
    return runner.logits(unit_1FF)[0].T.float().cpu().contiguous()
