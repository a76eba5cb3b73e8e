"""Drafts the tokens that followed the same string earlier in the text or in other outputs.

A suffix tree of limited depth counts which token follows which string. A string that occurs once is
a leaf that points into its text, and gets children when it occurs again. So memory grows with the
texts and their repetitions, not with the depth.
Source: Oliaro et al. 2024, SuffixDecoding (arXiv:2411.04975).
Shape suffixes: B rows, T tokens, K draft tokens, R numbers per row that the host reads or writes.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from specbench.decode.drafter import Capabilities, Drafter, Outcome, Proposal
from specbench.decode.sampling import Sampler
from specbench.decode.state import State
from specbench.drafters.registry import Parts, drafter
from specbench.errors import UsageError


class Node:
    """A string that occurs in the texts; if it has no children, `text` has its continuation."""

    __slots__ = ("best", "children", "depth", "num_followed", "num_seen", "start", "text", "token")

    def __init__(self, token: int, depth: int, text: list[int] | None, start: int) -> None:
        self.token = token
        self.depth = depth
        self.text = text
        self.start = start
        self.num_seen = 1
        self.num_followed = 0  # occurrences that are not at the end of their text
        self.children: dict[int, Node] | None = None
        self.best: Node | None = None  # the child seen most, on ties the latest; None: unknown

    def likeliest(self) -> "Node | None":
        """The child seen most; None if every occurrence ends its text."""
        if self.best is None and self.children:
            self.best = max(self.children.values(), key=lambda child: child.num_seen)
        return self.best


class Continuation(NamedTuple):
    """Tokens that may come next; the score is the expected number of correct ones."""

    tokens: list[int]
    score: float


class SuffixTree:
    """Counts all strings of up to `max_depth` tokens in the texts that were added."""

    def __init__(self, max_depth: int) -> None:
        self.max_depth = max_depth
        self.root = Node(-1, 0, None, 0)
        self.root.children = {}
        self.version = 0  # incremented when a whole text is added or removed

    def add(self, tokens: Sequence[int]) -> list[int]:
        """Count a whole text; pass the result to `remove` to undo this."""
        growth = Growth(self)
        growth.extend(tokens)
        self.version += 1
        return growth.text

    def remove(self, text: list[int]) -> None:
        """Undo an `add`; takes the same time."""
        self.version += 1
        for start in range(len(text)):
            node = self.root
            for token in text[start : start + self.max_depth]:
                assert node.children is not None
                child = node.children[token]
                node.num_followed -= 1
                child.num_seen -= 1
                if node.best is child:
                    node.best = None
                if child.num_seen == 0:
                    del node.children[token]
                    break
                if child.text is text:  # a leaf at `max_depth` that also occurs in other texts
                    child.text = None
                node = child

    def after(self, node: Node, num_tokens: int, token: int) -> Node | None:
        """The node of a string with `token` appended; None if that does not occur.

        `node` is the node of the string, `num_tokens` its length.
        """
        if node.children is not None:
            return node.children.get(token)
        if node.text is None:
            return None
        at = node.start + num_tokens
        return node if at < len(node.text) and node.text[at] == token else None

    def draft(
        self, ends: Sequence[Node], max_tokens: Callable[[int], int], min_prob: float
    ) -> Continuation:
        """The continuation with the highest score of all matches; of the longest match if tied.

        `ends[m]` is the node of the last m tokens; `max_tokens(m)` is the limit on the tokens after
        them and must not fall with m. A draft ends before its probability is below `min_prob`.
        """
        best = Continuation([], 0.0)
        for num_matched in range(len(ends) - 1, 0, -1):
            limit = max_tokens(num_matched)
            if limit <= best.score:
                break
            draft = _likeliest_path(ends[num_matched], num_matched, limit, min_prob)
            if draft.score > best.score:
                best = draft
        return best


def _likeliest_path(node: Node, num_matched: int, limit: int, min_prob: float) -> Continuation:
    tokens: list[int] = []
    prob, score = 1.0, 0.0
    while len(tokens) < limit:
        if node.children is None:
            if node.text is not None:
                at = node.start + num_matched
                rest = node.text[at + len(tokens) : at + limit]
                tokens += rest
                score += prob * len(rest)
            break
        child = node.likeliest()
        if child is None:
            break
        prob *= child.num_seen / node.num_followed
        if prob < min_prob:
            break
        tokens.append(child.token)
        score += prob
        node = child
    return Continuation(tokens, score)


class Growth:
    """A growing text, added to a tree token by token in O(depth) time per token."""

    def __init__(self, tree: SuffixTree) -> None:
        self.tree = tree
        self.text: list[int] = []
        self._ends = [tree.root]

    @property
    def ends(self) -> list[Node]:
        """The nodes of the text's last 0, 1, 2 ... tokens."""
        for num_tokens in range(1, len(self._ends)):
            self._end(num_tokens, len(self.text))
        return self._ends

    def extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._append(token)

    def _append(self, token: int) -> None:
        ends, num_before = self._ends, len(self.text)
        self.text.append(token)
        if len(ends) <= self.tree.max_depth:
            ends.append(self.tree.root)
        # The longest string first: `_expand_leaf` for a shorter one may read the new token.
        for num_tokens in range(len(ends) - 2, -1, -1):
            node = self._end(num_tokens, num_before)
            if node.children is not None:
                node = self._follow(node, token, num_before - num_tokens)
            ends[num_tokens + 1] = node

    def _end(self, num_tokens: int, length: int) -> Node:
        """The node of the last `num_tokens` tokens; deeper than before if a leaf was expanded."""
        node = self._ends[num_tokens]
        while node.children is not None and node.depth < num_tokens:
            node = node.children[self.text[length - num_tokens + node.depth]]
        self._ends[num_tokens] = node
        return node

    def _follow(self, node: Node, token: int, start: int) -> Node:
        """Count `token` after the node's string, which starts at `start`; returns the child."""
        assert node.children is not None
        node.num_followed += 1
        child = node.children.get(token)
        if child is None:
            child = node.children[token] = Node(token, node.depth + 1, self.text, start)
        else:
            child.num_seen += 1
            if child.children is None:
                self._expand_leaf(child, start)
        is_best = node.best is not None and child.num_seen >= node.best.num_seen
        if is_best or len(node.children) == 1:
            node.best = child
        return child

    def _expand_leaf(self, leaf: Node, start: int) -> None:
        """Give a leaf the child that continues its first occurrence. At `max_depth`, store the text
        of one occurrence instead."""
        if leaf.depth == self.tree.max_depth:
            if leaf.text is None:
                leaf.text, leaf.start = self.text, start
            return
        assert leaf.text is not None
        text, at = leaf.text, leaf.start + leaf.depth
        leaf.children, leaf.text = {}, None
        if at < len(text):
            child = leaf.children[text[at]] = Node(text[at], leaf.depth + 1, text, leaf.start)
            leaf.num_followed, leaf.best = 1, child


class Cursor:
    """Finds the end of a growing text in a tree that does not contain this text."""

    def __init__(self, tree: SuffixTree, text: Sequence[int]) -> None:
        self._tree = tree
        self._text = text
        self._num_read = 0
        self._version = tree.version
        self._ends = [tree.root]

    @property
    def ends(self) -> list[Node]:
        """The nodes of the text's last 0, 1, 2 ... tokens, up to the longest that occurs."""
        tree, text = self._tree, self._text
        if self._version != tree.version:
            self._version, self._ends, self._num_read = tree.version, [tree.root], 0
        begin = max(self._num_read, len(text) - tree.max_depth)
        if begin > self._num_read:
            self._ends = [tree.root]
        for i in range(begin, len(text)):
            ends = [tree.root]
            for num_tokens, node in enumerate(self._ends[: tree.max_depth]):
                next_node = tree.after(node, num_tokens, text[i])
                if next_node is None:  # then longer strings do not occur either
                    break
                ends.append(next_node)
            self._ends = ends
        self._num_read = len(text)
        return self._ends


@dataclass(slots=True, eq=False)
class _RowIndex:
    """A request's prompt, and a tree of the part of its text that was read so far."""

    prompt: tuple[int, ...]
    growth: Growth
    cursor: Cursor  # finds the end of the text in earlier outputs
    sample: Growth | None = None  # the output, in a tree that samples of the prompt share

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens to the text."""
        self.growth.extend(tokens)
        if self.sample is not None:
            self.sample.extend(tokens)

    @property
    def text(self) -> list[int]:
        return self.growth.text


@drafter("suffix")
class Suffix(Drafter):
    """Drafts from suffix trees of the row's text and of earlier outputs.

    The trees are on the host; `propose` reads the new tokens from the state. Earlier outputs are
    those of other prompts in the same pass. Samples of one prompt that start together share a tree.
    The continuation with the best score is drafted, up to `max_spec_factor` tokens per matched one.
    """

    capabilities = Capabilities(needs_host=True)

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
            raise UsageError(f"suffix: max_spec_factor {max_spec_factor}; it must be above 0")
        if not 0 <= min_token_prob <= 1:
            raise UsageError(f"suffix: min_token_prob {min_token_prob}; it must be 0 to 1")
        self._max_depth = max_depth
        self._max_cached = max_cached_requests
        self._factor = max_spec_factor
        self._min_prob = min_token_prob
        self.allocate(0, 0)

    def allocate(self, num_rows: int, max_len: int) -> None:  # noqa: ARG002
        self._outputs = OutputCache(self._max_cached, self._max_depth)
        self._rows: list[_RowIndex | None] = [None] * num_rows
        self._unread: set[int] = set()  # rows whose prompt has not been read
        self._samples: dict[int, SuffixTree] = {}  # trees that some of these rows will share

    def begin(self, state: State, predictions: Sequence[Sequence[int]]) -> None:  # noqa: ARG002
        """Store the outputs of the rows' previous requests, whose tokens are still in the state."""
        for i in range(state.num_rows):
            row = self._row_at(state, i)
            if row is not None:
                self._read(row, state, i)
                self._store_output(state.first_row + i)
            self._unread.add(state.first_row + i)

    def observe(self, state: State, outcome: Outcome) -> None:  # noqa: ARG002
        """Read the prompts after a prefill. Rounds, which graphs may replay, have none to read."""
        for i in range(state.num_rows):
            if state.first_row + i in self._unread:
                self._open(state, i)

    def copy_row(self, source: int, destination: int, num_tokens: int) -> None:  # noqa: ARG002
        """Move the tree, since a tree belongs to one text. The source is done, or is read again."""
        if source in self._unread:  # samples of one prompt; each of them reads it later
            shared = self._samples.setdefault(source, SuffixTree(self._max_depth))
            self._samples[destination] = shared
            return
        self._rows[destination], self._rows[source] = self._rows[source], None
        self._unread.discard(destination)

    def propose(self, state: State, k: int, span: int, sampler: Sampler) -> Proposal:  # noqa: ARG002
        drafts_BK = [self._draft(row, k) if row else [] for row in self._live_rows(state, k)]
        return Proposal.of_lists(drafts_BK, k, state.budget_B.device)

    def _draft(self, row: _RowIndex, k: int) -> list[int]:
        def max_tokens(num_matched: int) -> int:
            return min(k, int(self._factor * num_matched))

        matches = [
            (row.growth.tree, row.growth.ends),
            (self._outputs.tree, row.cursor.ends),
            *([(row.sample.tree, row.sample.ends)] if row.sample else []),
        ]
        drafts = [tree.draft(ends, max_tokens, self._min_prob) for tree, ends in matches]
        return max(drafts, key=lambda draft: draft.score).tokens

    def _live_rows(self, state: State, k: int) -> Iterator[_RowIndex | None]:
        """Every row, with its text read up to the current token; None for rows that are done."""
        last_BT = state.tokens_at(state.positions(-k, k + 1).clamp(min=0))
        numbers_BR = torch.cat([state.length_B1, state.budget_B[:, None], last_BT], 1)
        for i, (length, budget, *last) in enumerate(numbers_BR.tolist()):
            row = self._row_at(state, i)
            if row is None and budget:
                row = self._open(state, i)
            elif row is not None:
                num_new = length + 1 - len(row.text)
                if num_new > len(last):  # after rounds at K = 0 or at a larger K
                    self._read(row, state, i)
                elif num_new > 0:
                    row.extend(last[-num_new:])
            yield row if budget else None

    def _open(self, state: State, i: int) -> _RowIndex:
        """Read a row's whole text; a conversation that continues keeps its tree."""
        number = state.first_row + i
        self._unread.discard(number)
        length = int(state.length_B[i])
        tokens = state.tokens_BC[i, : length + 1].tolist()
        row = self._rows[number]
        if row is None or tokens[: len(row.text)] != row.text:
            growth = Growth(SuffixTree(self._max_depth))
            row = _RowIndex((), growth, Cursor(self._outputs.tree, growth.text))
            self._rows[number] = row
        row.prompt = tuple(tokens[:length])
        row.sample = None
        row.extend(tokens[len(row.text) : length])
        shared = self._samples.pop(number, None)
        if shared is not None:
            row.sample = Growth(shared)
        row.extend(tokens[len(row.text) :])
        self._outputs.forget(row.prompt)
        return row

    def _read(self, row: _RowIndex, state: State, i: int) -> None:
        """Read the tokens of the state's row that are new since the last read."""
        length = int(state.length_B[i])
        row.extend(state.tokens_BC[i, len(row.text) : length + 1].tolist())

    def _store_output(self, number: int) -> None:
        row = self._rows[number]
        if row is not None:
            prompts = [other.prompt for other in self._rows if other and other is not row]
            self._outputs.add(row.prompt, row.text[len(row.prompt) :], prompts)

    def _row_at(self, state: State, i: int) -> _RowIndex | None:
        return self._rows[state.first_row + i]


PromptIds = tuple[int, ...]


class OutputCache:
    """Up to `max_outputs` outputs, one for each prompt.

    An output is never used to draft for its own prompt. Benchmarks repeat prompts, so they would
    measure how well the cache reproduces outputs.
    """

    def __init__(self, max_outputs: int, max_depth: int) -> None:
        self.tree = SuffixTree(max_depth)
        self._max_outputs = max_outputs
        self._texts: dict[PromptIds, list[int]] = {}  # the oldest first

    def add(
        self, prompt: PromptIds, output: Sequence[int], active_prompts: Iterable[PromptIds]
    ) -> None:
        """Store an output, unless an active prompt is its prompt or the beginning of it."""
        if not self._max_outputs or not output:
            return
        if any(_leads_to(other, prompt) for other in active_prompts):
            return
        self._drop(prompt)
        if len(self._texts) == self._max_outputs:
            self._drop(next(iter(self._texts)))
        self._texts[prompt] = self.tree.add(output)

    def forget(self, prompt: PromptIds) -> None:
        """Remove the outputs of a repeated prompt and of prompts that continue it."""
        for known in [known for known in self._texts if _leads_to(prompt, known)]:
            self._drop(known)

    def _drop(self, prompt: PromptIds) -> None:
        text = self._texts.pop(prompt, None)
        if text is not None:
            self.tree.remove(text)


def _leads_to(prompt: PromptIds, later: PromptIds) -> bool:
    """Whether `later` is the prompt itself or continues it."""
    return later[: len(prompt)] == prompt
