"""The tree that token recycling drafts."""

import heapq
from collections.abc import Sequence

from specbench.drafting.topology import Topology

# How often the token that follows is the one of that rank the last time: shapes the tree alone.
RANK_PROBS = (0.45, 0.14, 0.08, 0.05, 0.04, 0.03, 0.025, 0.02)


def recycling_tree(max_drafts: int, vocab_size: int | None) -> Topology:
    """The tree for a target that has so many tokens; None: more than there are ranks."""
    return likeliest_tree(RANK_PROBS[:vocab_size], max_drafts)


def likeliest_tree(rank_probs: Sequence[float], num_drafts: int) -> Topology:
    """The `num_drafts` paths whose ranks' probabilities have the largest products."""
    waiting: list[tuple[float, tuple[int, ...]]] = [(-1.0, ())]
    paths: list[tuple[int, ...]] = []
    while len(paths) <= num_drafts:  # the first is the current token's, which is no draft
        chance, path = heapq.heappop(waiting)
        paths.append(path)
        for rank, prob in enumerate(rank_probs):
            heapq.heappush(waiting, (chance * prob, (*path, rank)))
    return Topology.of_paths(paths[1:])
