"""Conversations as token rows: one document a row, grouped by length, never packed."""

from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from tools.demo.corpus.conversation import CorpusConversation
from tools.demo.corpus.grammar import Dice
from tools.demo.tokenizer import TURN_END, TURN_START

MAX_TOKENS = 512
_BUCKET = 32


class Document(NamedTuple):
    """Token ids, and for each whether the model is trained to predict it."""

    ids: list[int]
    is_answer: list[bool]


class Batch(NamedTuple):
    """Rows of one length; a row is padded at its end with id 0 and no answer token."""

    ids_BT: Tensor
    is_answer_BT: Tensor


def encode(conversation: CorpusConversation, tokenizer: PreTrainedTokenizerFast) -> Document:
    """The conversation under the chat template; answers and their end marks are learned."""
    ids: list[int] = []
    is_answer: list[bool] = []
    for message in conversation.messages():
        learned = message["role"] == "assistant"
        for text, flag in (
            (f"{TURN_START}{message['role']}\n", False),
            (f"{message['content']}{TURN_END}", learned),
            ("\n", False),
        ):
            tokens = tokenizer.encode(text, add_special_tokens=False)
            ids += tokens
            is_answer += [flag] * len(tokens)
    return Document(ids, is_answer)


def batches(documents: list[Document], tokens_per_batch: int, dice: Dice) -> list[Batch]:
    """Full batches of about `tokens_per_batch`, in random order, without documents that are longer
    than MAX_TOKENS or left over."""
    buckets: dict[int, list[Document]] = {}
    for document in dice.some(documents, len(documents)):
        if len(document.ids) <= MAX_TOKENS:
            length = -(-len(document.ids) // _BUCKET) * _BUCKET
            buckets.setdefault(length, []).append(document)
    result = []
    for length, rows in sorted(buckets.items()):
        height = max(1, tokens_per_batch // length)
        for start in range(0, len(rows) - height + 1, height):
            result.append(_batch(rows[start : start + height], length))
    return dice.some(result, len(result))


def _batch(rows: list[Document], length: int) -> Batch:
    ids_BT = torch.zeros(len(rows), length, dtype=torch.long)
    is_answer_BT = torch.zeros(len(rows), length, dtype=torch.bool)
    for row, document in enumerate(rows):
        ids_BT[row, : len(document.ids)] = torch.tensor(document.ids)
        is_answer_BT[row, : len(document.ids)] = torch.tensor(document.is_answer)
    return Batch(ids_BT, is_answer_BT)
