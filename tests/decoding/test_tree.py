"""Trees by hand: shapes, masks, windows, the path that is kept and the slots it moves to."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.decode.drafter import Proposal
from specbench.decode.growth import Frontier, grow_static
from specbench.decode.sampling import Sampler
from specbench.decode.state import State
from specbench.decode.verifier import verify
from specbench.errors import UsageError
from specbench.forward.attention.masks import visible
from specbench.forward.fused_runner import FusedRunner
from specbench.forward.runner import StockRunner
from specbench.forward.tree import StaticTree, Tree, branches_of
from specbench.records import Sampling
from specbench.topology import Topology
from tests.decoding.models import exact_llama, plain_logits

CPU = torch.device("cpu")


# 0 - 1 - 3 - 5
#   \   \ 4
#    2 - 6  is written by depth: 1 2 | 3 4 6 -> 3 4 5 | 5 -> 6
PATHS = [(0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0)]
PARENTS = (0, 0, 1, 1, 2, 3)
SIBLING_SEEDS = (4, 5)


def tree_of(num_rows: int = 1) -> Tree:
    return StaticTree(Topology.of_paths(PATHS), CPU).of_rows(num_rows)


def test_nodes_are_numbered_level_by_level_parents_first() -> None:
    topology = Topology.of_paths(reversed(PATHS))

    assert topology.parents == PARENTS
    assert [len(level.ranks) for level in topology.levels] == [2, 3, 1]
    assert topology.levels[1].parents == (0, 0, 1)
    assert topology.levels[2].parents == (0,)
    assert topology.levels[1].inner_nodes == (3,)
    assert topology.cut(2).parents == PARENTS[:5]


def test_tree_widths_are_children_per_node_and_1_beyond_their_end() -> None:
    assert (
        Topology.of_widths((2, 2), 3).paths
        == Topology.of_paths(
            [(0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1), (0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0)]
        ).paths
    )


def test_a_tree_with_a_missing_sibling_is_not_gapless() -> None:
    assert Topology.of_paths(PATHS).is_gapless
    assert not Topology.of_paths([(0,), (2,)]).is_gapless


@pytest.mark.parametrize("paths", [[(0, 0)], [(0,), (0,)], [()], [(0,), (0, -1)]])
def test_an_invalid_tree_is_refused(paths: list[tuple[int, ...]]) -> None:
    with pytest.raises(UsageError, match="tree"):
        Topology.of_paths(paths)


def test_a_tree_node_attends_to_its_ancestors_and_itself() -> None:
    tree = tree_of()

    seen = [row.nonzero().flatten().tolist() for row in tree.seen_BNN[0]]
    assert seen == [[0], [0, 1], [0, 2], [0, 1, 3], [0, 1, 4], [0, 2, 5], [0, 1, 3, 6]]
    assert tree.depths_BN[0].tolist() == [0, 1, 1, 2, 2, 2, 3]
    assert tree.path_to(torch.tensor([5])).tolist() == [[0, 2, 5, 0]]


def seen_by(node: int, **limits: Any) -> list[int]:
    """The slots that a node sees after four committed tokens; its own is node slots later."""
    positions_BN, branches = branches_of(tree_of(), torch.tensor([[4]]))
    assert positions_BN[0].tolist() == [4, 5, 5, 6, 6, 6, 7]
    seen_1NS = visible(
        positions_BN, torch.arange(14), **{"window": None, **limits}, branches=branches
    )
    slots: list[int] = seen_1NS[0, node].nonzero().flatten().tolist()
    return slots


def test_a_tree_node_attends_to_committed_slots_and_its_branch() -> None:
    assert seen_by(5) == [0, 1, 2, 3, 4, 6, 9]


def test_a_window_counts_positions_not_slots() -> None:
    # Node 5 is at position 6 in slot 9: it sees positions 4 (the current), 5 (node 2) and its own.
    assert seen_by(5, window=3) == [4, 6, 9]
    assert seen_by(1, window=3) == [3, 4, 5]
    # Its parent is one position back, although its slot is at the node's own position.
    assert seen_by(5, window=1) == [9]


def test_a_chunk_counts_positions_not_slots() -> None:
    # Chunks begin at positions 3 and 6: node 1 is at 5, node 5 at 6 in slot 9.
    assert seen_by(1, chunk=3) == [3, 4, 5]
    assert seen_by(5, chunk=3) == [9]


@pytest.mark.parametrize("make", [StockRunner, FusedRunner])
@torch.no_grad()
def test_every_branch_has_the_logits_of_its_text_and_the_path_continues(make: Any) -> None:
    """Two ragged rows; afterwards the accepted path is in the slots of a chain."""
    model = exact_llama(seed=0)  # stays as it is: a runner changes its model's attention
    generator = torch.Generator().manual_seed(1)
    texts = [torch.randint(0, 90, (n,), generator=generator).tolist() for n in (7, 4)]
    drafts_BK = torch.randint(0, 90, (2, len(PARENTS)), generator=generator)
    plain = {
        (row, node): plain_logits(
            model, torch.tensor([texts[row] + [int(drafts_BK[row, n - 1]) for n in path]])
        )[0, -1]
        for row in range(2)
        for node, path in enumerate([[], [1], [2], [1, 3], [1, 4], [2, 5], [1, 3, 6]])
    }
    runner = make(exact_llama(seed=0))
    runner.allocate(2, 64)
    for row, text in enumerate(texts):
        places_1T = torch.arange(len(text) - 1)[None]
        runner.forward(torch.tensor([text[:-1]]), places_1T, 64, first_row=row)
    length_B1 = torch.tensor([[len(text) - 1] for text in texts])
    current_B1 = torch.tensor([[text[-1]] for text in texts])
    positions_BN, branches = branches_of(tree_of(2), length_B1)

    out = runner.forward(torch.cat([current_B1, drafts_BK], 1), positions_BN, 64, branches=branches)
    for (row, node), expected_V in plain.items():
        torch.testing.assert_close(out.logits[row, node], expected_V, atol=2e-4, rtol=1e-3)

    # Row 0 keeps nodes 1 3 6, row 1 keeps 2 5; then one more token each.
    path_BT = torch.tensor([[1, 3, 6], [2, 5, 0]])
    runner.move_slots(length_B1 + path_BT, length_B1 + torch.arange(1, 4))
    kept = [
        [int(drafts_BK[0, n - 1]) for n in (1, 3, 6)],
        [int(drafts_BK[1, n - 1]) for n in (2, 5)],
    ]
    next_B1 = torch.tensor([[11], [12]])
    places_B1 = length_B1 + torch.tensor([[4], [3]])
    logits_BTV = runner.forward(next_B1, places_B1, 64).logits
    for row, more in enumerate(kept):
        text_1T = torch.tensor([texts[row] + more + [int(next_B1[row])]])
        torch.testing.assert_close(
            logits_BTV[row, 0], plain_logits(model, text_1T)[0, -1], atol=2e-4, rtol=1e-3
        )


def verdict_of(drafts: list[int], says: dict[int, int], tree: Tree | None = None) -> Any:
    """Greedy; `says` is the target's token after each node, 9 for the other nodes."""
    tree = tree or tree_of()
    logits_1NV = torch.zeros(1, 7, 10)
    for node in range(7):
        logits_1NV[0, node, says.get(node, 9)] = 1.0
    proposal = Proposal(torch.tensor([drafts]), torch.tensor([6]), None, tree)
    places_1N = 5 + tree.depths_BN
    return verify(proposal, logits_1NV, Sampler(Sampling()), torch.tensor([0]), places_1N)


def test_the_path_of_target_tokens_is_accepted_with_a_bonus_token() -> None:
    verdict = verdict_of([1, 2, 3, 4, 5, 6], says={0: 2, 2: 5, 5: 7})

    assert verdict.num_accepted_B.tolist() == [2]
    assert verdict.tokens_BT[0, :3].tolist() == [2, 5, 7]
    assert verdict.path_BT[0, :3].tolist() == [0, 2, 5]


def test_a_match_below_a_mismatch_is_not_accepted() -> None:
    verdict = verdict_of([1, 2, 3, 4, 5, 6], says={0: 8, 1: 3, 3: 6})

    assert verdict.num_accepted_B.tolist() == [0]
    assert verdict.tokens_BT[0, 0].tolist() == 8


def test_the_longer_of_two_equal_branches_is_kept() -> None:
    verdict = verdict_of([2, 2, 3, 4, 5, 6], says={0: 2, 1: 3, 2: 3, 3: 6, 6: 8})

    assert verdict.num_accepted_B.tolist() == [3]
    assert verdict.tokens_BT[0].tolist() == [2, 3, 6, 8]


def test_an_inactive_node_of_a_tree_is_not_accepted() -> None:
    tree = tree_of()
    tree = tree._replace(is_active_BK=tree.is_active_BK & (torch.arange(6) != 4))

    verdict = verdict_of([1, 2, 3, 4, 5, 6], says={0: 2, 2: 5, 5: 7}, tree=tree)

    assert verdict.num_accepted_B.tolist() == [1]
    assert verdict.tokens_BT[0, :2].tolist() == [2, 5]


def test_a_tree_is_limited_to_the_remaining_budget() -> None:
    tree = tree_of(2).truncated_to(torch.tensor([2, 0]))

    assert tree.is_active_BK.tolist() == [[True] * 5 + [False], [False] * 6]


def followed_probs(q_V: Tensor, p_V: Tensor, width: int, num_rows: int) -> Tensor:
    """The distribution of the first token if `grow_static` draws `width` siblings from q."""
    state = State.allocate(num_rows, 8, [], CPU)
    state.seed_B.copy_(torch.arange(num_rows))
    state.length_B1.fill_(4)
    sampler, V = Sampler(Sampling(temperature=1.0)), len(q_V)
    tree = StaticTree(Topology.of_widths((width,), 1), CPU)
    logits_BV = q_V.log().expand(num_rows, V)

    def feed(_: Frontier) -> Tensor:
        raise AssertionError("nothing follows the only level")

    proposal = grow_static(tree, state, logits_BV, feed, sampler)
    verdict = verify(
        proposal,
        p_V.log().expand(num_rows, width + 1, V),
        sampler,
        state.seed_B,
        state.length_B1 + 1 + tree.of_rows(num_rows).depths_BN,  # as a round has them
    )
    return torch.bincount(verdict.tokens_BT[:, 0], minlength=V).double() / num_rows


def assert_distribution(q_V: Tensor, p_V: Tensor, width: int) -> None:
    """A share of 100,000 rows differs from its probability by less than 5 standard errors.

    With 7 tokens a false alarm has a probability of 4e-6; seeds are fixed.
    """
    got_V = followed_probs(q_V, p_V, width, 100_000)
    error_V = (p_V.double() * (1 - p_V.double()) / 100_000).sqrt()
    assert float(((got_V - p_V.double()) / error_V).abs().max()) < 5


@pytest.mark.sampled(one_in=3, every=["width", "seed"])
@pytest.mark.slow
# Pairs of distributions differ in what they can show: those of seed 3 hide siblings that share a
# chance.
@pytest.mark.parametrize("seed", SIBLING_SEEDS)
@pytest.mark.parametrize("width", [2, 3, 7])
def test_siblings_rejected_in_turn_leave_the_targets_distribution(width: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    q_V, p_V = (torch.randn(2, 7, generator=generator) * 1.5).softmax(-1)

    assert_distribution(q_V, p_V, width)


def test_three_children_of_two_tokens_keep_the_target_distribution() -> None:
    """The third child was not drawn: it is a token of probability 0."""
    q_V = torch.tensor([0.5, 0.0, 0.0, 0.0, 0.5])
    p_V = torch.tensor([0.1, 0.2, 0.4, 0.2, 0.1])

    assert_distribution(q_V, p_V, 3)


def test_a_tree_takes_the_most_accurate_nodes_after_their_parents() -> None:
    rates = [[0.6, 0.2, 0.1], [0.5, 0.3]]
    # One after the other: 0.6, 0.6 * 0.5, 0.2, 0.6 * 0.3, 0.2 * 0.5 and 0.1
    taken = [(0,), (0, 0), (1,), (0, 1), (1, 0), (2,)]
    for n in range(1, len(taken) + 1):
        assert set(Topology.of_accuracies(rates, n).paths) == set(taken[:n])


def test_a_tree_of_accuracies_is_optimal_for_its_size() -> None:
    rates = [[0.5, 0.3], [0.6, 0.2], [0.7, 0.1]]
    nodes = [p for depth in (1, 2, 3) for p in itertools.product(range(2), repeat=depth)]

    def chance(paths: tuple[tuple[int, ...], ...]) -> float:
        total = 0.0
        for path in paths:
            product = 1.0
            for depth, rank in enumerate(path):
                product *= rates[depth][rank]
            total += product
        return total

    def is_tree(paths: tuple[tuple[int, ...], ...]) -> bool:
        return all(path[:-1] in {(), *paths} for path in paths)

    best = max(chance(paths) for paths in itertools.combinations(nodes, 5) if is_tree(paths))

    assert chance(Topology.of_accuracies(rates, 5).paths) == pytest.approx(best)


def test_a_tree_of_accuracies_may_prefer_a_lower_rank() -> None:
    assert Topology.of_accuracies([[0.1, 0.4]], 1).paths == ((1,),)


def test_a_tree_omits_ranks_with_accuracy_0() -> None:
    assert Topology.of_accuracies([[0.5, 0.0], [0.0]], 10).paths == ((0,),)
    with pytest.raises(UsageError, match="ever accepted"):
        Topology.of_accuracies([[0.0], [1.0]], 3)


def test_a_tree_of_widths_has_at_most_256_drafts() -> None:
    assert Topology.of_widths((16, 15), 2).num_drafts == 16 + 240
    with pytest.raises(UsageError, match=r"\[16, 15\].*496.*K=3"):
        Topology.of_widths((16, 15), 3)


@pytest.mark.parametrize("widths", [(0,), (2, -1), ("a",), (2.5,), (True,)])
def test_tree_widths_that_are_not_positive_integers_are_refused(widths: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match=r"tree: .*above 0"):
        Topology.of_widths(widths, 2)
