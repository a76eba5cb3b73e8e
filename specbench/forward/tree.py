"""Token trees: the parents and ancestors of a round's nodes, and trees whose shape is known.

A chain is a tree without branches; rounds that draft chains do not use this module.
Shape suffixes: B rows, K drafts, N = K + 1 nodes (node 0 is the current token, node i is
draft i), T = depth + 1 nodes on a path, I nodes with children, W drafts of one level.
"""

from collections.abc import Callable, Sequence
from itertools import chain, zip_longest
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from specbench.topology import Topology


class Families(NamedTuple):
    """Parents and children in a tree whose shape is known before any round."""

    parents_I: Tensor  # nodes with children, those with the most children first
    widths: list[int]  # by rank among siblings: how many parents have a child of this rank
    drafts_K: Tensor  # rank by rank, the child of each parent that has one of this rank
    places_N: Tensor  # index of each node in `parents_I`; -1 if it has no children


class Tree(NamedTuple):
    """The shape of a round's draft tokens; the number of nodes is the same in every round.

    An active draft attends only to its ancestors and itself. Inactive nodes are computed but never
    accepted; the drafter decides what they attend to.
    """

    parents_BK: Tensor  # the node that each draft follows; its number is lower
    depths_BN: Tensor  # tokens after the current one; 0 for node 0
    seen_BNN: Tensor  # bool: node i attends to node j
    is_active_BK: Tensor  # bool
    depth: int  # of the deepest draft that may be accepted
    families: Families | None = None  # if all rows have the same shape

    def truncated_to(self, room_B: Tensor) -> "Tree":
        """The tree without drafts deeper than a row's remaining budget."""
        fits_BK = self.depths_BN[:, 1:] <= room_B[:, None]
        return self._replace(is_active_BK=self.is_active_BK & fits_BK)

    def reached(self, accepted_BN: Tensor) -> Tensor:
        """The accepted nodes whose ancestors are all accepted, bool [B, N]."""
        return (accepted_BN[:, None] | ~self.seen_BNN).all(-1) & accepted_BN

    def path_to(self, node_B: Tensor) -> Tensor:
        """The nodes from node 0 to the given one [B, T], by depth; 0 past its end."""
        index_B1N = node_B[:, None, None].expand(-1, 1, self.seen_BNN.shape[2])
        is_above_B1N = self.seen_BNN.gather(1, index_B1N)
        depths_T1 = torch.arange(self.depth + 1, device=node_B.device)[:, None]
        is_on_path_BTN = is_above_B1N & (self.depths_BN[:, None] == depths_T1)
        return is_on_path_BTN.int().argmax(-1)

    def depth_of(self, node_B: Tensor) -> Tensor:
        """The depth of one node per row: tokens after the current one [B]."""
        return self.depths_BN.gather(1, node_B[:, None])[:, 0]


class Branches(NamedTuple):
    """The mask of a forward over a tree, whose tokens do not always follow the one before.

    All tokens attend to the `base_B1` committed slots of their row. Among the next M slots,
    token t attends to those in `seen_BTM`, including its own. `positions_BM` has the positions of
    the tokens in these slots.
    """

    base_B1: Tensor
    slots_BT: Tensor  # the slot of each token's keys and values
    seen_BTM: Tensor
    positions_BM: Tensor


def branches_of(tree: Tree, length_B1: Tensor) -> tuple[Tensor, Branches]:
    """Positions [B, N] of a tree's nodes, and the branches of a forward over all of them."""
    N = tree.depths_BN.shape[1]
    positions_BN = length_B1 + tree.depths_BN
    slots_BN = length_B1 + torch.arange(N, device=length_B1.device)
    return positions_BN, Branches(length_B1, slots_BN, tree.seen_BNN, positions_BN)


def ancestors_of(parents_BK: Tensor, depth: int) -> tuple[Tensor, Tensor]:
    """`seen_BNN` and `depths_BN` of the tree with these parents; `depth` is at least its depth."""
    B, K = parents_BK.shape
    device = parents_BK.device
    root_B1 = torch.zeros(B, 1, dtype=parents_BK.dtype, device=device)
    above_BNN = torch.cat([root_B1, parents_BK], 1)[..., None].expand(-1, -1, K + 1)
    seen_BNN = torch.eye(K + 1, dtype=torch.bool, device=device).expand(B, -1, -1)
    for _ in range(depth):  # each iteration adds the ancestors one level further up
        seen_BNN = seen_BNN | seen_BNN.gather(1, above_BNN)
    return seen_BNN, seen_BNN.sum(-1) - 1


Made = TypeVar("Made")


class LevelOnDevice(NamedTuple):
    """A Level's indices as tensors."""

    parents_W: Tensor
    ranks_W: Tensor
    inner_I: Tensor
    inner_nodes_I: Tensor
    num_ranks: int


class StaticTree:
    """A topology on a device, made before any round, so that rounds copy nothing from the host."""

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
        # The rank of each parent by node number.
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
        """The same tree for every row; all drafts are active."""
        parents_BK = self._parents_1K.expand(num_rows, -1)
        return Tree(
            parents_BK=parents_BK,
            depths_BN=self._depths_1N.expand(num_rows, -1),
            seen_BNN=self._seen_1NN.expand(num_rows, -1, -1),
            is_active_BK=torch.ones_like(parents_BK, dtype=torch.bool),
            depth=self.topology.depth,
            families=self._families,
        )


class ByDepth(dict[int, Made]):
    """One value per depth, made when it is first used, which must not be during a round."""

    def __init__(self, made_for: Callable[[int], Made]) -> None:
        super().__init__()
        self._made_for = made_for

    def __missing__(self, depth: int) -> Made:
        self[depth] = self._made_for(depth)
        return self[depth]


class StaticTrees(ByDepth[StaticTree]):
    """The static tree of each depth."""

    def __init__(self, topology_of: Callable[[int], Topology], device: torch.device) -> None:
        super().__init__(lambda depth: StaticTree(topology_of(depth), device))
