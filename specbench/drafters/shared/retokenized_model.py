"""The common part of drafters whose draft model has another tokenizer than the target.

Shape suffixes: B rows, T tokens, D the draft model's vocabulary.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from specbench.decode.drafter import (
    Drafter,
    DrafterForward,
    Outcome,
    Proposal,
    Resources,
    RowBuffer,
)
from specbench.decode.growth import grow_chain
from specbench.decode.rows import num_shared
from specbench.decode.sampling import Sampler
from specbench.decode.state import State
from specbench.drafters.registry import Parts
from specbench.footprint import PREFILL_CHUNK, rounded_up
from specbench.models.retokenizer import RetokenizedText, Retokenizer


@dataclass(slots=True, eq=False)
class _DraftRow:
    """A row's text as it was read, and the draft model's tokens that are in its cache."""

    reading: RetokenizedText
    fed: list[int] = field(default_factory=list)


class DraftModelState(NamedTuple):
    """The draft model's state after the rows' texts."""

    logits_B1D: Tensor  # of the next token
    length_B1: Tensor  # in the draft model's tokens: the position of the next token
    span: int


class RetokenizedModel(Drafter):
    """Converts each row's text to the draft model's tokens, on the host.

    Positions differ from the target's, and the last tokens may change when the text grows. So each
    round the host reads the new tokens, encodes the last word again and feeds what has changed.
    """

    def __init__(self, parts: Parts) -> None:
        self.retokenizer = Retokenizer(*parts.tokenizers())
        self.runner = parts.draft_runner()
        self._rows: list[_DraftRow] = []
        self._unread: set[int] = set()  # rows whose prompt has not been read

    @cached_property
    def resources(self) -> Resources:
        def forwards(k: int) -> tuple[DrafterForward, ...]:
            return (DrafterForward(1),) * k

        return Resources(runner=self.runner, cached_layers=self.runner, forwards=forwards)

    @property
    def buffers(self) -> tuple[RowBuffer, ...]:
        return (self.runner.cache,)

    def allocate(self, num_rows: int, max_len: int) -> None:
        self.runner.allocate(num_rows, max_len)
        self._rows = [_DraftRow(self.retokenizer.read()) for _ in range(num_rows)]
        self._unread.clear()

    def begin(self, state: State, predictions: object) -> None:  # noqa: ARG002
        """Start new texts; the cache of a prefix shared with a row's last text is reused."""
        for number in self._numbers(state):
            self._rows[number].reading = self.retokenizer.read()
            self._unread.add(number)

    def observe(self, state: State, outcome: Outcome) -> None:  # noqa: ARG002
        """Read the prompts after a prefill. Rounds, which graphs may replay, have none to read."""
        if not self._unread.isdisjoint(self._numbers(state)):
            self.feed_texts(state, 0)

    def catch_up(self, state: State, num_tokens: int, span: int) -> None:  # noqa: ARG002
        self.feed_texts(state, 0)

    def copy_row(self, source: int, destination: int, num_tokens: int) -> None:  # noqa: ARG002
        """Copy the tokens and their cache. Samples of an unread prompt each read it themselves."""
        if source in self._unread:
            return
        fed = self._rows[source].fed
        self._rows[destination] = _DraftRow(self.retokenizer.read(), [*fed])
        self._unread.discard(destination)
        self.runner.cache.copy_row(source, destination, len(fed))

    def feed_texts(self, state: State, k: int) -> DraftModelState:
        """Feed the tokens of the rows' texts that the cache lacks; reserve slots for k drafts."""
        rows = [self._rows[number] for number in self._numbers(state)]
        self._unread.difference_update(self._numbers(state))
        self._read(state, rows)
        texts = [row.reading.ids or [0] for row in rows]  # the model needs at least one token
        longest = max(map(len, texts)) + k
        self._allocate(longest)
        span = min(rounded_up(longest), self.runner.cache.max_len)
        # The last token is always fed, because its logits are needed.
        num_new = max(
            len(ids) - min(num_shared(row.fed, ids), len(ids) - 1)
            for row, ids in zip(rows, texts, strict=True)
        )
        for begin in range(num_new, 0, -PREFILL_CHUNK):
            # The rows are aligned at their ends, so some tokens are fed again, unchanged.
            places_T = range(-begin, -max(begin - PREFILL_CHUNK, 0))
            at = [[max(len(ids) + place, 0) for place in places_T] for ids in texts]
            tokens = [[ids[i] for i in of_row] for ids, of_row in zip(texts, at, strict=True)]
            tokens_BT, positions_BT = torch.tensor([tokens, at], device=self.runner.device)
            last_1 = torch.full_like(tokens_BT[0, :1], tokens_BT.shape[1] - 1)
            out = self.runner.forward(
                tokens_BT, positions_BT, span, first_row=state.first_row, last_B=last_1
            )
        for row, ids in zip(rows, texts, strict=True):
            row.fed = ids
        return DraftModelState(out.logits, positions_BT[:, -1:] + 1, span)

    def guess(self, state: State, k: int, sampler: Sampler) -> Proposal:
        """A chain of K draft tokens after the rows' texts."""
        logits_B1D, length_B1, span = self.feed_texts(state, k)
        offset_B1 = length_B1 - state.length_B1 - 1

        def follow(tokens_B1: Tensor, positions_B1: Tensor) -> Tensor:
            tokens_B1, positions_B1 = self._own_ids(tokens_B1), positions_B1 + offset_B1
            out = self.runner.forward(tokens_B1, positions_B1, span, first_row=state.first_row)
            return self._draft_logits(out.logits)

        logits_BD = self._draft_logits(logits_B1D)[:, 0]
        return grow_chain(state, logits_BD, follow, k, sampler, self.p_min)

    def _own_ids(self, tokens: Tensor) -> Tensor:
        """The draft model's ids of tokens drawn from `_draft_logits`; here they are the same."""
        return tokens

    def _draft_logits(self, logits_BTD: Tensor) -> Tensor:
        """The logits that draft tokens are drawn from; here over the draft model's vocabulary."""
        return logits_BTD

    def word(self, state: State, i: int) -> bytes:
        """The last word of a row's text."""
        return self._rows[state.first_row + i].reading.word

    def _read(self, state: State, rows: list[_DraftRow]) -> None:
        """Extend the texts up to the current tokens."""
        lengths = [length + 1 for length in state.length_B.tolist()]
        for row, length in zip(rows, lengths, strict=True):
            if row.reading.num_read > length:  # copied from a row with a longer text
                row.reading = self.retokenizer.read()
        news = [length - row.reading.num_read for row, length in zip(rows, lengths, strict=True)]
        if most := max(news):
            offsets_T = torch.arange(1 - most, 1, device=state.length_B1.device)
            last_BT = state.tokens_at((state.length_B1 + offsets_T).clamp(min=0)).tolist()
            for row, new, tokens in zip(rows, news, last_BT, strict=True):
                row.reading.extend(tokens[most - new :])

    def _allocate(self, num_tokens: int) -> None:
        """Grow the cache, which empties it, if a text is longer in the draft model's tokens."""
        if num_tokens > self.runner.cache.max_len:
            self.runner.allocate(len(self._rows), rounded_up(2 * num_tokens))
            for row in self._rows:
                row.fed = []

    def _numbers(self, state: State) -> range:
        return range(state.first_row, state.first_row + state.num_rows)
