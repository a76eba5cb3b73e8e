"""Static trees, whose shape is known before any round: published, fitted or computed.

A tree is a set of paths of ranks, as published for Medusa and EAGLE-1.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush

from specbench.errors import UsageError
from specbench.footprint import MOST_DRAFTS, num_static_drafts


@dataclass(frozen=True)
class Topology:
    """A static tree; a path (2, 0) is the best child of the third best child of the root."""

    paths: tuple[tuple[int, ...], ...]  # by length, then in order: parents before children

    @classmethod
    def of_paths(cls, paths: Iterable[Sequence[int]]) -> "Topology":
        """The tree of these paths; UsageError if one is given twice, or its parent is missing."""
        ordered = sorted((tuple(path) for path in paths), key=lambda path: (len(path), path))
        known = {(), *ordered}
        if len(known) != len(ordered) + 1:
            raise UsageError("tree: a path is given twice or empty")
        for path in ordered:
            if path[:-1] not in known or min(path) < 0:
                raise UsageError(f"tree: path {list(path)} needs {list(path[:-1])} in the tree")
        return cls(tuple(ordered))

    @classmethod
    def of_widths(cls, widths: Sequence[int], depth: int) -> "Topology":
        """Every node of level i has widths[i] children, one past the list's end.

        UsageError if a width is not a whole number above 0, and for too many drafts.
        """
        if not all(type(width) is int and width > 0 for width in widths):
            raise UsageError(f"tree: {list(widths)}; expected whole numbers above 0")
        if (num_drafts := num_static_drafts(widths, depth)) > MOST_DRAFTS:
            raise UsageError(
                f"tree: {list(widths)} makes {num_drafts} drafts at K={depth}; at most "
                f"{MOST_DRAFTS} are allowed: choose smaller widths or a smaller K"
            )
        level: list[tuple[int, ...]] = [()]
        paths: list[tuple[int, ...]] = []
        for i in range(depth):
            width = widths[i] if i < len(widths) else 1
            level = [(*path, rank) for path in level for rank in range(width)]
            paths += level
        return cls(tuple(paths))

    @classmethod
    def of_accuracies(cls, rates: Sequence[Sequence[float]], num_drafts: int) -> "Topology":
        """The `num_drafts` paths that are accepted most often if depths are independent.

        `rates[i][r]` is how often the draft of rank r is accepted at depth i + 1. Paths are added
        one by one, the likeliest extension of the tree first (Cai et al. 2024, Medusa,
        arXiv:2401.10774, section 2.3.3). Paths that are never accepted are omitted; UsageError if
        all are.
        """
        # The ranks that are ever right at each depth, the best first.
        ranks = [
            [rank for minus, rank in sorted((-rate, rank) for rank, rate in enumerate(at)) if minus]
            for at in rates
        ]
        paths: list[tuple[int, ...]] = []
        nearest: list[tuple[float, tuple[int, ...], int, float]] = []

        def offer(parent: tuple[int, ...], parent_rate: float, index: int) -> None:
            depth = len(parent)
            if depth < len(ranks) and index < len(ranks[depth]):
                rank = ranks[depth][index]
                rate = parent_rate * rates[depth][rank]
                heappush(nearest, (-rate, (*parent, rank), index, parent_rate))

        offer((), 1.0, 0)
        while nearest and len(paths) < num_drafts:
            minus_rate, path, index, parent_rate = heappop(nearest)
            paths.append(path)
            offer(path[:-1], parent_rate, index + 1)
            offer(path, -minus_rate, 0)
        if not paths:
            raise UsageError("tree: with these accuracies no draft is ever accepted")
        return cls.of_paths(paths)

    def cut(self, depth: int) -> "Topology":
        """The topology without deeper paths."""
        return Topology(tuple(path for path in self.paths if len(path) <= depth))

    @property
    def depth(self) -> int:
        return len(self.paths[-1]) if self.paths else 0

    @property
    def num_drafts(self) -> int:
        return len(self.paths)

    @cached_property
    def _nodes(self) -> dict[tuple[int, ...], int]:
        return {(): 0} | {path: i for i, path in enumerate(self.paths, 1)}

    @property
    def parents(self) -> tuple[int, ...]:
        """The node that each draft follows."""
        return tuple(self._nodes[path[:-1]] for path in self.paths)

    @property
    def families(self) -> dict[int, tuple[int, ...]]:
        """The nodes with children, those with the most first, each with its children in order."""
        children: dict[int, tuple[int, ...]] = {}
        for node, parent in enumerate(self.parents, 1):
            children[parent] = (*children.get(parent, ()), node)
        return dict(sorted(children.items(), key=lambda family: -len(family[1])))

    @property
    def inner_widths(self) -> tuple[int, ...]:
        """The number of draft tokens with children, for each level but the last."""
        return tuple(len(level.inner) for level in self.levels[:-1])

    @cached_property
    def levels(self) -> tuple["Level", ...]:
        """The drafts by depth."""
        inner = {path[:-1] for path in self.paths}
        levels = []
        above: dict[tuple[int, ...], int] = {(): 0}
        for depth in range(1, self.depth + 1):
            paths = [path for path in self.paths if len(path) == depth]
            levels.append(
                Level(
                    parents=tuple(above[path[:-1]] for path in paths),
                    ranks=tuple(path[-1] for path in paths),
                    inner=tuple(i for i, path in enumerate(paths) if path in inner),
                    inner_nodes=tuple(self._nodes[path] for path in paths if path in inner),
                )
            )
            above = {paths[index]: i for i, index in enumerate(levels[-1].inner)}
        return tuple(levels)

    @property
    def is_gapless(self) -> bool:
        """Whether every node's children are its best ones, without gaps in their ranks."""
        return all(not path[-1] or (*path[:-1], path[-1] - 1) in self._nodes for path in self.paths)


@dataclass(frozen=True)
class Level:
    """The draft tokens of one depth, in order; `inner` ones have children."""

    parents: tuple[int, ...]  # index of each one's parent among the inner ones of the level above
    ranks: tuple[int, ...]  # which child of it: 0 is the likeliest
    inner: tuple[int, ...]  # their indices within this level
    inner_nodes: tuple[int, ...]  # their node numbers within the tree

    @property
    def num_ranks(self) -> int:
        return max(self.ranks) + 1


def _paths(words: str) -> tuple[tuple[int, ...], ...]:
    """Read the published form: a word is a path, a digit a rank; "20" is node 2's best child.

    Medusa's likeliest paths come first, so every prefix of its lists is a tree. Facts from
    FasterDecoding/Medusa medusa/model/medusa_choices.py, and the `mc_sim_7b_63` of
    SafeAILab/EAGLE eagle/model/choices.py.
    """
    return tuple(tuple(map(int, word)) for word in words.split())


# For heads trained next to a frozen target; Medusa's default.
MC_SIM_7B_63 = _paths(
    """
    0 00 1 01 2 000 10 02 3 03 4 04 20 05 001 5 06 6 07 010 11 7 08 002 30 09 8 9 100 020 12
    003 40 21 004 005 0000 011 006 030 50 13 007 008 009 60 040 14 70 012 200 31 22 80 050 15
    101 021 90 060 0001 16 070
    """
)

# For heads trained together with their target, measured on Vicuna 7B.
VICUNA_7B_STAGE2 = _paths(
    """
    0 00 1 01 000 10 2 02 001 03 3 010 20 4 002 04 11 100 0000 5 003 05 020 30 011 06 6 07 004
    40 12 08 7 030 0001 005 21 006 101 0010 200 50 09 012 8 040 021 13 007 0002 008 110 0100 60
    9 013 0003 102 050 31 0020 70 14
    """
)

EAGLE_STATIC = Topology.of_paths(
    _paths(
        """
    0 1 2 3 00 01 02 10 11 20 21 30 000 001 002 010 011 020 021 100
    0000 0001 0002 00000 00001
    """
    )
)

# The probability that the next token is the one with this rank at the last occurrence. They only
# determine the shape of the tree.
RANK_PROBS = (0.45, 0.14, 0.08, 0.05, 0.04, 0.03, 0.025, 0.02)


def recycling_tree(max_drafts: int, vocab_size: int | None) -> Topology:
    """The tree that token recycling drafts, with at most `vocab_size` children per node."""
    return likeliest_tree(RANK_PROBS[:vocab_size], max_drafts)


def likeliest_tree(rank_probs: Sequence[float], num_drafts: int) -> Topology:
    """The `num_drafts` paths whose ranks' probabilities have the largest products."""
    waiting: list[tuple[float, tuple[int, ...]]] = [(-1.0, ())]
    paths: list[tuple[int, ...]] = []
    while len(paths) <= num_drafts:  # the first is the current token's, not a draft
        chance, path = heappop(waiting)
        paths.append(path)
        for rank, prob in enumerate(rank_probs):
            heappush(waiting, (chance * prob, (*path, rank)))
    return Topology.of_paths(paths[1:])
