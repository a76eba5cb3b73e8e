"""Trees of known shape on a device, made before any round.

Shape suffixes: B rows, K drafts, N = K + 1 nodes, W drafts of one level, I of them with children.
"""

from collections.abc import Callable, Sequence
from itertools import chain, zip_longest
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from specbench.forward.tree import Families, Tree, ancestors_of
from specbench.topology import Topology

T = TypeVar("T")


class LevelOnDevice(NamedTuple):
    """A Level's indices as tensors."""

    parents_W: Tensor
    ranks_W: Tensor
    inner_I: Tensor
    inner_nodes_I: Tensor
    num_ranks: int


class StaticTree:
    """A topology on a device, made before any round: a round copies nothing from the host."""

    def __init__(self, topology: Topology, device: torch.device) -> None:
        self.topology = topology

        def on_device(values: Sequence[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.long, device=device)

        families = topology.families
        places = {parent: place for place, parent in enumerate(families)}
        ranks = [
            [child - 1 for child in children if child]
            for children in zip_longest(*families.values(), fillvalue=0)  # without a parent
        ]
        self._families = Families(
            parents_I=on_device(list(families)),
            widths=[len(children) for children in ranks],
            drafts_K=on_device(list(chain.from_iterable(ranks))),
            places_N=on_device([places.get(i, -1) for i in range(topology.num_drafts + 1)]),
        )
        # Where the parents, those of most children first, lie by number.
        self.order_I = self._families.parents_I.argsort().argsort()
        self._parents_1K = on_device(topology.parents)[None]
        self._seen_1NN, self._depths_1N = ancestors_of(self._parents_1K, topology.depth)
        self.levels = [
            LevelOnDevice(
                parents_W=on_device(level.parents),
                ranks_W=on_device(level.ranks),
                inner_I=on_device(level.inner),
                inner_nodes_I=on_device(level.inner_nodes),
                num_ranks=level.num_ranks,
            )
            for level in topology.levels
        ]

    def of_rows(self, num_rows: int) -> Tree:
        """The tree of every row; all drafts are meant."""
        parents_BK = self._parents_1K.expand(num_rows, -1)
        return Tree(
            parents_BK=parents_BK,
            depths_BN=self._depths_1N.expand(num_rows, -1),
            seen_BNN=self._seen_1NN.expand(num_rows, -1, -1),
            is_active_BK=torch.ones_like(parents_BK, dtype=torch.bool),
            depth=self.topology.depth,
            families=self._families,
        )


class ByDepth(dict[int, T]):
    """One value per depth, made at its first use; the first use must not be in a round."""

    def __init__(self, made_for: Callable[[int], T]) -> None:
        super().__init__()
        self._made_for = made_for

    def __missing__(self, depth: int) -> T:
        self[depth] = self._made_for(depth)
        return self[depth]


class StaticTrees(ByDepth[StaticTree]):
    """The tree of each depth."""

    def __init__(self, topology_of: Callable[[int], Topology], device: torch.device) -> None:
        super().__init__(lambda depth: StaticTree(topology_of(depth), device))
