"""Trees broken on purpose are found by the greedy text or the distribution of sampled texts."""

from functools import partial
from typing import Any

import pytest

from specbench.decode import growth, verifier
from specbench.decode import round as one_round
from specbench.forward import tree
from specbench.forward.attention import masks
from tests.decoding import test_tree as by_hand
from tests.decoding import test_tree_rejection
from tests.decoding.conftest import Plant
from tests.decoding.lossless import NUM_SAMPLES
from tests.decoding.planted_checks import greedy_check, sampled_p

pytestmark = pytest.mark.slow

greedy = partial(greedy_check, tree=(2, 2))
judged_one_by_one = partial(
    test_tree_rejection.test_texts_are_those_of_siblings_judged_one_after_the_other, "warm"
)
# Siblings are rejected in turn.
p_of_sampled = partial(sampled_p, k=3, num_samples=NUM_SAMPLES // 2, tree=(3, 2))


def test_sound_trees_pass_both_checks() -> None:
    greedy()
    assert p_of_sampled() > 1e-3


GREEDY_BUGS = {
    "compaction skipped": (one_round.finish_round, "target.move_slots(", "(lambda *_: None)("),
    "compaction from one node too early": (
        one_round.finish_round,
        "state.length_B1 + verdict.path_BT[:, 1:]",
        "state.length_B1 + verdict.path_BT[:, :-1]",
    ),
    "ancestor mask off by one": (
        masks.visible,
        "offsets_BS = slots_S - branches.base_B1",
        "offsets_BS = slots_S - branches.base_B1 - 1",
    ),
    "a node's position is its slot": (
        tree.branches_of,
        "positions_BN = length_B1 + tree.depths_BN",
        "positions_BN = length_B1 + torch.arange(N, device=length_B1.device)",
    ),
    "the token after the leaf's parent": (
        verifier._match_tree,
        "target_BN.gather(1, path_BT), path_BT",
        "target_BN.gather(1, path_BT).roll(1, 1), path_BT",
    ),
}


@pytest.mark.parametrize("bug", GREEDY_BUGS)
def test_the_greedy_check_detects(bug: str, plant: Plant) -> None:
    plant(*GREEDY_BUGS[bug])

    with pytest.raises(AssertionError, match="differs at"):
        greedy()


DISTRIBUTION_BUGS = {
    "every sibling judged against the whole distribution": (
        verifier._in_turn,
        "p_BIV = _refused(p_BIV, q_BIV, is_active_BI1 & (q_BI1 > 0))",
        "p_BIV = p_BIV",
    ),
    "a child judged by its parent's distribution": (
        verifier._reject_tree,
        "index_select(1, families.parents_I)",
        "index_select(1, torch.zeros_like(families.parents_I))",
    ),
    "p and q swapped": (
        verifier._reject_tree,
        "chance_BK * q_BK <= p_BK",
        "chance_BK * p_BK <= q_BK",
    ),
}


@pytest.mark.sampled(one_in=3)
@pytest.mark.parametrize("bug", DISTRIBUTION_BUGS)
def test_the_distribution_check_fails_for(bug: str, plant: Plant) -> None:
    plant(*DISTRIBUTION_BUGS[bug])

    p_value = p_of_sampled()

    print(f"{bug}: p = {p_value:.1e}")
    assert p_value < 1e-6


# Too small for a text of a few tokens; by hand they show.
BUGS_BY_HAND: dict[str, Any] = {
    "a node sees all nodes before it": (
        by_hand.test_a_tree_node_attends_to_its_ancestors_and_itself,
        tree.ancestors_of,
        "return seen_BNN, seen_BNN.sum(-1) - 1",
        "return torch.ones_like(seen_BNN).tril(), seen_BNN.sum(-1) - 1",
    ),
    "the parent is not seen": (
        by_hand.test_a_tree_node_attends_to_its_ancestors_and_itself,
        tree.ancestors_of,
        "for _ in range(depth):",
        "for _ in range(0):",
    ),
    "windows count slots": (
        by_hand.test_a_window_counts_positions_not_slots,
        masks.visible,
        "torch.where(is_branch_BS, branches.positions_BM.gather(1, node_BS), slots_S)",
        "slots_S + torch.zeros_like(offsets_BS)",
    ),
    "a match counts whatever its ancestors are": (
        by_hand.test_a_match_below_a_mismatch_is_not_accepted,
        verifier._deepest,
        "(accepted_BN[:, None] | ~tree.seen_BNN).all(-1) & accepted_BN",
        "accepted_BN",
    ),
    "siblings share one chance": (
        partial(by_hand.test_siblings_rejected_in_turn_leave_the_targets_distribution, 2, 4),
        verifier._reject_tree,
        "Purpose.ACCEPT, turns_T=drafts_K)",
        "Purpose.ACCEPT)",
    ),
    "two siblings share a chance": (
        partial(by_hand.test_siblings_rejected_in_turn_leave_the_targets_distribution, 2, 4),
        verifier._reject_tree,
        "turns_T=drafts_K)",
        "turns_T=drafts_K // 2)",
    ),
    "siblings after the first share a chance": (
        partial(by_hand.test_siblings_rejected_in_turn_leave_the_targets_distribution, 3, 4),
        verifier._reject_tree,
        "turns_T=drafts_K)",
        "turns_T=drafts_K.clamp(max=1))",
    ),
    "siblings are drawn with the target's noise": (
        partial(by_hand.test_siblings_rejected_in_turn_leave_the_targets_distribution, 3, 5),
        growth.grow_static,
        "Purpose.DRAFT",
        "Purpose.TARGET",
    ),
    "the draft's distribution keeps the token that was rejected": (
        partial(by_hand.test_siblings_rejected_in_turn_leave_the_targets_distribution, 3, 4),
        verifier._without,
        "q_V.scatter(-1, token_1, 0.0)",
        "q_V.clone()",
    ),
    "the draft's distributions lie in the order of their nodes": (
        judged_one_by_one,
        growth.grow_static,
        ".index_select(1, tree.order_I)",
        "",
    ),
    "a parent whose children were refused keeps its whole distribution": (
        judged_one_by_one,
        verifier._reject_tree,
        "torch.where(place_B1 < 0, own_BV, refused_BV)",
        "own_BV",
    ),
    "drafts that are not meant are accepted": (
        judged_one_by_one,
        verifier._reject_tree,
        "passes_BK = is_active_BK & (q_BK > 0)",
        "passes_BK = (q_BK > 0)",
    ),
    "a draft is judged with the noise of its own place": (
        judged_one_by_one,
        verifier._reject_tree,
        "positions_BN.gather(1, parents_BK)",
        "positions_BN[:, 1:]",
    ),
    "of siblings that pass a later one is accepted": (
        judged_one_by_one,
        verifier._reject_tree,
        "torch.where(passes_BK, drafts_K + 1, none_BN[:, 1:])",
        "torch.where(passes_BK, N - 1 - drafts_K, none_BN[:, 1:])",
    ),
}


@pytest.mark.sampled(one_in=4)
@pytest.mark.parametrize("bug", BUGS_BY_HAND)
def test_the_worked_tree_check_detects(bug: str, plant: Plant) -> None:
    check, *fault = BUGS_BY_HAND[bug]
    check()
    plant(*fault)

    with pytest.raises(AssertionError):
        check()
