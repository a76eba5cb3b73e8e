"""Continues the text as it went on after the same tokens before, here or in other answers.

Shape suffixes: B rows, T tokens, K drafts, R numbers a row that are read to the host.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from specbench.decode.drafter import Outcome, PlainDrafter, Proposal, Traits
from specbench.decode.sampling import Sampler
from specbench.decode.state import State
from specbench.drafters.registry import Parts, drafter
from specbench.drafters.shared.suffix_tree import Cursor, Growth, SuffixTree
from specbench.errors import UsageError


@dataclass(slots=True, eq=False)
class _Row:
    """A request's prompt and its whole text as far as it was read, alone in a tree."""

    prompt: tuple[int, ...]
    growth: Growth
    cursor: Cursor  # of the same text among earlier answers
    sample: Growth | None = None  # its answer, in one tree with the prompt's other samples

    def extend(self, tokens: Sequence[int]) -> None:
        """Read on: these come after the text, and belong to the answer."""
        self.growth.extend(tokens)
        if self.sample is not None:
            self.sample.extend(tokens)

    @property
    def text(self) -> list[int]:
        return self.growth.text


@drafter("suffix")
class Suffix(PlainDrafter):
    """Drafts from suffix trees of the text and of earlier answers.

    The trees are on the host: `propose` reads what the state holds that it has not seen. Earlier
    answers are those of the same pass to other prompts; samples of one prompt that start together
    see each other's as they grow. Of all matches the one whose continuation the counts trust most
    is drafted, `max_spec_factor` tokens a token matched.
    """

    traits = Traits(needs_host=True)

    def __init__(
        self,
        parts: Parts,  # noqa: ARG002
        *,
        max_depth: int,
        max_cached_requests: int,
        max_spec_factor: float,
        min_token_prob: float,
    ) -> None:
        if max_spec_factor <= 0:
            raise UsageError(f"suffix: max_spec_factor {max_spec_factor}; above 0 is allowed")
        if not 0 <= min_token_prob <= 1:
            raise UsageError(f"suffix: min_token_prob {min_token_prob}; 0 to 1 is allowed")
        self._max_depth = max_depth
        self._max_cached = max_cached_requests
        self._factor = max_spec_factor
        self._min_prob = min_token_prob
        self.allocate(0, 0)

    def allocate(self, num_rows: int, max_len: int) -> None:  # noqa: ARG002
        self._answers = AnswerCache(self._max_cached, self._max_depth)
        self._rows: list[_Row | None] = [None] * num_rows
        self._filled: set[int] = set()  # rows whose prompt is to be read
        self._samples: dict[int, SuffixTree] = {}  # the tree they will share, of some of those

    def begin(self, state: State, predictions: Sequence[Sequence[int]]) -> None:  # noqa: ARG002
        """The last tokens of the answers that were given in these rows are still there."""
        for i in range(state.num_rows):
            row = self._held(state, i)
            if row is not None:
                self._read(row, state, i)
                self._keep_answer(state.first_row + i)
            self._filled.add(state.first_row + i)

    def observe(self, state: State, outcome: Outcome) -> None:  # noqa: ARG002
        """Read prompts that were just prefilled; rounds, which may be replayed, find none."""
        for i in range(state.num_rows):
            if state.first_row + i in self._filled:
                self._open(state, i)

    def copy_row(self, source: int, destination: int, num_tokens: int) -> None:  # noqa: ARG002
        """The source is done, or reads its text anew: a tree has one text that grows."""
        if source in self._filled:  # samples of one prompt, which each of them will read
            shared = self._samples.setdefault(source, SuffixTree(self._max_depth))
            self._samples[destination] = shared
            return
        self._rows[destination], self._rows[source] = self._rows[source], None
        self._filled.discard(destination)

    def propose(self, state: State, k: int, span: int, sampler: Sampler) -> Proposal:  # noqa: ARG002
        drafts_BK = [self._draft(row, k) if row else [] for row in self._live_rows(state, k)]
        padded_BR = [[len(drafts), *drafts, *[0] * (k - len(drafts))] for drafts in drafts_BK]
        numbers_BR = torch.tensor(padded_BR, dtype=torch.long, device=state.budget_B.device)
        return Proposal(numbers_BR[:, 1:], numbers_BR[:, 0])

    def _draft(self, row: _Row, k: int) -> list[int]:
        def max_tokens(num_matched: int) -> int:
            return min(k, int(self._factor * num_matched))

        matches = [
            (row.growth.tree, row.growth.ends),
            (self._answers.tree, row.cursor.ends),
            *([(row.sample.tree, row.sample.ends)] if row.sample else []),
        ]
        drafts = [tree.draft(ends, max_tokens, self._min_prob) for tree, ends in matches]
        return max(drafts, key=lambda draft: draft.score).tokens

    def _live_rows(self, state: State, k: int) -> Iterator[_Row | None]:
        """Every row with its text read up to the current token; None for those that are done."""
        last_BT = state.tokens_at(state.positions(-k, k + 1).clamp(min=0))
        numbers_BR = torch.cat([state.length_B1, state.budget_B[:, None], last_BT], 1)
        for i, (length, budget, *last) in enumerate(numbers_BR.tolist()):
            row = self._held(state, i)
            if row is None and budget:
                row = self._open(state, i)
            elif row is not None:
                num_new = length + 1 - len(row.text)
                if num_new > len(last):  # rounds at K = 0, or at a greater K
                    self._read(row, state, i)
                elif num_new > 0:
                    row.extend(last[-num_new:])
            yield row if budget else None

    def _open(self, state: State, i: int) -> _Row:
        """Read a row's whole text; a conversation that goes on keeps its tree."""
        number = state.first_row + i
        self._filled.discard(number)
        length = int(state.length_B[i])
        tokens = state.tokens_BC[i, : length + 1].tolist()
        row = self._rows[number]
        if row is None or tokens[: len(row.text)] != row.text:
            growth = Growth(SuffixTree(self._max_depth))
            row = _Row((), growth, Cursor(self._answers.tree, growth.text))
            self._rows[number] = row
        row.prompt = tuple(tokens[:length])
        row.sample = None
        row.extend(tokens[len(row.text) : length])
        shared = self._samples.pop(number, None)
        if shared is not None:
            row.sample = Growth(shared)
        row.extend(tokens[len(row.text) :])
        self._answers.forget(row.prompt)
        return row

    def _read(self, row: _Row, state: State, i: int) -> None:
        """What the state's row holds beyond the text that was read."""
        length = int(state.length_B[i])
        row.extend(state.tokens_BC[i, len(row.text) : length + 1].tolist())

    def _keep_answer(self, number: int) -> None:
        row = self._rows[number]
        if row is not None:
            others = [other.prompt for other in self._rows if other and other is not row]
            self._answers.add(row.prompt, row.text[len(row.prompt) :], others)

    def _held(self, state: State, i: int) -> _Row | None:
        return self._rows[state.first_row + i]


PromptIds = tuple[int, ...]


class AnswerCache:
    """Up to `max_answers` answers, one a prompt.

    An answer never helps to answer its own prompt again: a benchmark asks a prompt many times,
    and would measure how well answers are remembered.
    """

    def __init__(self, max_answers: int, max_depth: int) -> None:
        self.tree = SuffixTree(max_depth)
        self._max_answers = max_answers
        self._texts: dict[PromptIds, list[int]] = {}  # the oldest first

    def add(
        self, prompt: PromptIds, answer: Sequence[int], being_answered: Iterable[PromptIds]
    ) -> None:
        """Keep an answer, unless one of the other prompts is its own or led to it."""
        if not self._max_answers or not answer:
            return
        if any(_leads_to(other, prompt) for other in being_answered):
            return
        self._drop(prompt)
        if len(self._texts) == self._max_answers:
            self._drop(next(iter(self._texts)))
        self._texts[prompt] = self.tree.add(answer)

    def forget(self, prompt: PromptIds) -> None:
        """Drop the answers to a prompt that is asked again, and to later turns of it."""
        for known in [known for known in self._texts if _leads_to(prompt, known)]:
            self._drop(known)

    def _drop(self, prompt: PromptIds) -> None:
        text = self._texts.pop(prompt, None)
        if text is not None:
            self.tree.remove(text)


def _leads_to(prompt: PromptIds, later: PromptIds) -> bool:
    """Whether the later one is the prompt itself or goes on from it."""
    return later[: len(prompt)] == prompt
