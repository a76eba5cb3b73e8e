"""Trees made from how often drafts of each rank and depth are right."""

import itertools

import pytest

from specbench.errors import UsageError
from specbench.topology import Topology


def test_a_tree_takes_the_most_accurate_nodes_after_their_parents() -> None:
    rates = [[0.6, 0.2, 0.1], [0.5, 0.3]]
    # In turn: 0.6, 0.6 * 0.5, 0.2, 0.6 * 0.3, 0.2 * 0.5 and 0.1
    taken = [(0,), (0, 0), (1,), (0, 1), (1, 0), (2,)]
    for n in range(1, len(taken) + 1):
        assert set(Topology.of_accuracies(rates, n).paths) == set(taken[:n])


def test_a_tree_of_accuracies_is_optimal_for_its_size() -> None:
    rates = [[0.5, 0.3], [0.6, 0.2], [0.7, 0.1]]
    nodes = [p for depth in (1, 2, 3) for p in itertools.product(range(2), repeat=depth)]

    def worth(paths: tuple[tuple[int, ...], ...]) -> float:
        total = 0.0
        for path in paths:
            product = 1.0
            for depth, rank in enumerate(path):
                product *= rates[depth][rank]
            total += product
        return total

    def is_tree(paths: tuple[tuple[int, ...], ...]) -> bool:
        return all(path[:-1] in {(), *paths} for path in paths)

    best = max(worth(paths) for paths in itertools.combinations(nodes, 5) if is_tree(paths))

    assert worth(Topology.of_accuracies(rates, 5).paths) == pytest.approx(best)


def test_a_tree_of_accuracies_may_prefer_a_lower_rank() -> None:
    assert Topology.of_accuracies([[0.1, 0.4]], 1).paths == ((1,),)


def test_a_tree_omits_ranks_with_accuracy_0() -> None:
    assert Topology.of_accuracies([[0.5, 0.0], [0.0]], 10).paths == ((0,),)
    with pytest.raises(UsageError, match="ever right"):
        Topology.of_accuracies([[0.0], [1.0]], 3)


def test_a_tree_of_widths_has_at_most_256_drafts() -> None:
    assert Topology.of_widths((16, 15), 2).num_drafts == 16 + 240
    with pytest.raises(UsageError, match=r"\[16, 15\].*496.*K=3"):
        Topology.of_widths((16, 15), 3)


@pytest.mark.parametrize("widths", [(0,), (2, -1), ("a",), (2.5,), (True,)])
def test_tree_widths_that_are_not_positive_integers_are_refused(widths: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match=r"tree: .*above 0"):
        Topology.of_widths(widths, 2)
