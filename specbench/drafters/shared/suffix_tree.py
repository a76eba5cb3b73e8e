"""Counts of what follows what in some texts: a suffix tree, cut off at a depth.

A string that occurs once is a leaf that points into its text, and becomes a node with children
only when it occurs again: memory grows with the texts and their repetitions, not with the depth.
Source: Oliaro et al. 2024, SuffixDecoding (arXiv:2411.04975).
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple


class Node:
    """A string that occurs in the texts; without children it goes on as `text` does."""

    __slots__ = ("best", "children", "depth", "num_followed", "num_seen", "start", "text", "token")

    def __init__(self, token: int, depth: int, text: list[int] | None, start: int) -> None:
        self.token = token
        self.depth = depth
        self.text = text
        self.start = start
        self.num_seen = 1
        self.num_followed = 0  # occurrences after which their text goes on
        self.children: dict[int, Node] | None = None
        self.best: Node | None = None  # the child seen most, lately of equals; None: not known

    def likeliest(self) -> "Node | None":
        """The child seen most; None where no text goes on."""
        if self.best is None and self.children:
            self.best = max(self.children.values(), key=lambda child: child.num_seen)
        return self.best


class Draft(NamedTuple):
    """Tokens that may come next, and how many of them the counts expect to be right."""

    tokens: list[int]
    score: float


class SuffixTree:
    """All strings of up to `max_depth` tokens of the texts in it, counted."""

    def __init__(self, max_depth: int) -> None:
        self.max_depth = max_depth
        self.root = Node(-1, 0, None, 0)
        self.root.children = {}
        self.version = 0  # of what whole texts were added and removed

    def add(self, tokens: Sequence[int]) -> list[int]:
        """Count a whole text; what is returned stands for it in `remove`."""
        growth = Growth(self)
        growth.extend(tokens)
        self.version += 1
        return growth.text

    def remove(self, text: list[int]) -> None:
        """Take back what `add` counted, in the same time."""
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
                if child.text is text:  # at the greatest depth, seen in others, too
                    child.text = None
                node = child

    def after(self, node: Node, num_tokens: int, token: int) -> Node | None:
        """Where a string of `num_tokens` that ends in `node` leads; None: it never occurred."""
        if node.children is not None:
            return node.children.get(token)
        if node.text is None:
            return None
        at = node.start + num_tokens
        return node if at < len(node.text) and node.text[at] == token else None

    def draft(
        self, ends: Sequence[Node], max_tokens: Callable[[int], int], min_prob: float
    ) -> Draft:
        """The continuation that promises most, over all matches; of equals the longest match.

        `ends[m]` is the node of the last m tokens, `max_tokens(m)` how many may follow them: not
        fewer for a longer match. A draft ends where its probability falls below `min_prob`.
        """
        best = Draft([], 0.0)
        for num_matched in range(len(ends) - 1, 0, -1):
            limit = max_tokens(num_matched)
            if limit <= best.score:
                break
            draft = _likeliest_path(ends[num_matched], num_matched, limit, min_prob)
            if draft.score > best.score:
                best = draft
        return best


def _likeliest_path(node: Node, num_matched: int, limit: int, min_prob: float) -> Draft:
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
    return Draft(tokens, score)


class Growth:
    """A text that grows in a tree token by token, each in time of the depth at most."""

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
        # The longest string first: it has the token by the time a shorter one needs its text.
        for num_tokens in range(len(ends) - 2, -1, -1):
            node = self._end(num_tokens, num_before)
            if node.children is not None:
                node = self._follow(node, token, num_before - num_tokens)
            ends[num_tokens + 1] = node

    def _end(self, num_tokens: int, length: int) -> Node:
        """The node of the last tokens, which may have been a leaf when it was last looked at."""
        node = self._ends[num_tokens]
        while node.children is not None and node.depth < num_tokens:
            node = node.children[self.text[length - num_tokens + node.depth]]
        self._ends[num_tokens] = node
        return node

    def _follow(self, node: Node, token: int, start: int) -> Node:
        """Count that the token follows the node's string, which began at `start`."""
        assert node.children is not None
        node.num_followed += 1
        child = node.children.get(token)
        if child is None:
            child = node.children[token] = Node(token, node.depth + 1, self.text, start)
        else:
            child.num_seen += 1
            if child.children is None:
                self._seen_again(child, start)
        is_best = node.best is not None and child.num_seen >= node.best.num_seen
        if is_best or len(node.children) == 1:
            node.best = child
        return child

    def _seen_again(self, leaf: Node, start: int) -> None:
        """Give a leaf the child that its first occurrence goes on to; at the depth's end, keep
        one occurrence to go on as."""
        if leaf.depth == self.tree.max_depth:
            if leaf.text is None:
                leaf.text, leaf.start = self.text, start
            return
        assert leaf.text is not None
        text, at = leaf.text, leaf.start + leaf.depth
        leaf.children, leaf.text = {}, None
        if at < len(text):
            only = leaf.children[text[at]] = Node(text[at], leaf.depth + 1, text, leaf.start)
            leaf.num_followed, leaf.best = 1, only


class Cursor:
    """Follows a text through a tree that the text is not in."""

    def __init__(self, tree: SuffixTree, text: Sequence[int]) -> None:
        self._tree = tree
        self._text = text
        self._num_read = 0
        self._version = tree.version
        self._ends = [tree.root]

    @property
    def ends(self) -> list[Node]:
        """The nodes of the text's last 0, 1, 2 ... tokens, as far as they occur."""
        tree, text = self._tree, self._text
        if self._version != tree.version:
            self._version, self._ends, self._num_read = tree.version, [tree.root], 0
        begin = max(self._num_read, len(text) - tree.max_depth)
        if begin > self._num_read:
            self._ends = [tree.root]
        for i in range(begin, len(text)):
            ends = [tree.root]
            for num_tokens, node in enumerate(self._ends[: tree.max_depth]):
                after = tree.after(node, num_tokens, text[i])
                if after is None:  # nor do longer strings occur
                    break
                ends.append(after)
            self._ends = ends
        self._num_read = len(text)
        return self._ends
