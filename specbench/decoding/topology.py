"""Trees whose shape is known before any round: rank paths, as Medusa and EAGLE-1 publish them.

Shape suffixes: B rows, K drafts, N = K + 1 nodes, W drafts of one level.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from specbench.decoding.tree import Tree, ancestors_of
from specbench.errors import UsageError


@dataclass(frozen=True)
class Topology:
    """A static tree; a path (2, 0) is the best child of the third best child of the root."""

    paths: tuple[tuple[int, ...], ...]  # by length, then in order: parents before children

    @classmethod
    def of_paths(cls, paths: Iterable[Sequence[int]]) -> "Topology":
        """UsageError where a path's parent is missing or a path is given twice."""
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
        """Every node of level i has widths[i] children, one past the list's end."""
        level: list[tuple[int, ...]] = [()]
        paths: list[tuple[int, ...]] = []
        for i in range(depth):
            width = widths[i] if i < len(widths) else 1
            level = [(*path, rank) for path in level for rank in range(width)]
            paths += level
        return cls(tuple(paths))

    def cut(self, depth: int) -> "Topology":
        """Without what lies deeper."""
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
        """Of each draft, the node that it follows."""
        return tuple(self._nodes[path[:-1]] for path in self.paths)

    @cached_property
    def levels(self) -> tuple["Level", ...]:
        """The drafts by depth."""
        levels = []
        begin, frontier = 1, {(): 0}
        for depth in range(1, self.depth + 1):
            paths = [path for path in self.paths if len(path) == depth]
            levels.append(
                Level(
                    first=begin,
                    parents=tuple(frontier[path[:-1]] for path in paths),
                    ranks=tuple(path[-1] for path in paths),
                )
            )
            begin += len(paths)
            frontier = {path: i for i, path in enumerate(paths)}
        return tuple(levels)

    def on(self, device: torch.device, num_rows: int) -> Tree:
        """The tree of every row; all drafts are meant. Copies to the device: not for a round."""
        parents_BK = torch.tensor(self.parents, device=device).expand(num_rows, -1)
        seen_BNN, depths_BN = ancestors_of(parents_BK[:1], self.depth)
        return Tree(
            parents_BK=parents_BK,
            depths_BN=depths_BN.expand(num_rows, -1),
            seen_BNN=seen_BNN.expand(num_rows, -1, -1),
            is_meant_BK=torch.ones_like(parents_BK, dtype=torch.bool),
            depth=self.depth,
        )


@dataclass(frozen=True)
class Level:
    """The drafts of one depth: nodes first .. first + W - 1."""

    first: int
    parents: tuple[int, ...]  # place of each one's parent within the level above
    ranks: tuple[int, ...]  # which child of it: 0 is the likeliest

    @property
    def width(self) -> int:
        return len(self.ranks)

    @property
    def num_ranks(self) -> int:
        return max(self.ranks) + 1
