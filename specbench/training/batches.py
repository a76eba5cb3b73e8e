"""Texts as rows of tokens: one text a row, grouped by length, never packed.

Shape suffixes: B rows, T tokens.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from specbench.demo.corpus.grammar import Dice
from specbench.training.texts import Text

_BUCKET = 32


class Batch(NamedTuple):
    """Rows of one length; a row is padded at its end with id 0 and no answer token."""

    number: int
    ids_BT: Tensor
    is_answer_BT: Tensor


def batches_of(
    texts: Sequence[Text], tokens_per_batch: int, most_tokens: int, seed: int, device: torch.device
) -> list[Batch]:
    """All texts once, those of like length together; longer ones are cut off."""
    buckets: dict[int, list[Text]] = {}
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
    """Numbers of batches from step `first` on: every batch once an epoch, in another order."""
    epoch, place = divmod(first, num_batches)
    while True:
        shuffled = Dice(seed, "epoch", epoch).some(range(num_batches), num_batches)
        yield from shuffled[place:]
        epoch, place = epoch + 1, 0


def _batch(number: int, rows: Sequence[Text], length: int, device: torch.device) -> Batch:
    ids_BT = torch.zeros(len(rows), length, dtype=torch.long)
    is_answer_BT = torch.zeros(len(rows), length, dtype=torch.bool)
    for row, text in enumerate(rows):
        ids = text.ids[:length]
        ids_BT[row, : len(ids)] = torch.tensor(ids)
        is_answer_BT[row, text.num_prompt : len(ids)] = True
    return Batch(number, ids_BT.to(device), is_answer_BT.to(device))
