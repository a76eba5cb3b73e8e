"""Each lossless check fails for a decoder that is broken on purpose.

How a bug is planted: conftest.py.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.decode import growth, sampling, verifier
from specbench.decode import round as one_round
from specbench.decode.sampling import Purpose, exponential
from specbench.drafters.draft_model import ModelDrafter
from specbench.forward import tree
from specbench.forward.attention import masks, stock
from tests.decoding import planted_checks as checks
from tests.decoding import test_tree as by_hand
from tests.decoding import test_tree_rejection
from tests.decoding.conftest import Plant
from tests.decoding.fakes import Perturbed
from tests.decoding.lossless import (
    NUM_SAMPLES,
    acceptance_rate,
    decode,
    make_drafter,
    one_draft_p_value,
)

pytestmark = pytest.mark.slow

# Drafts of which the second of each round is wrong and those after it are right.
greedy = partial(checks.greedy_check, Perturbed)
p_of_sampled = partial(
    checks.sampled_p, k=4, num_samples=NUM_SAMPLES // 2
)  # drafts come with their probabilities
p_of_stopping = partial(p_of_sampled, p_min=0.3)
greedy_tree = partial(checks.greedy_check, tree=(2, 2))
# Siblings are rejected one after the other.
p_of_sampled_trees = partial(checks.sampled_p, k=3, num_samples=NUM_SAMPLES // 2, tree=(3, 2))
judged_one_by_one = partial(
    test_tree_rejection.test_tree_rejection_equals_judging_siblings_one_by_one, "warm"
)


def test_the_unmodified_decoder_passes_every_check() -> None:
    greedy()
    for place in range(5):
        greedy(eos_ids=(checks.gemma()[2][0][place],))
    greedy_tree()
    assert p_of_sampled() > 1e-3
    assert p_of_sampled_trees() > 1e-3
    assert p_of_stopping() > 1e-3
    assert one_draft_p_value() > 1e-3


GREEDY_BUGS = {
    "accept all": (
        verifier._count_leading,
        "accepted_BK.cumprod(1).sum(1)",
        "torch.ones_like(accepted_BK).long().sum(1)",
    ),
    "sum for cumprod": (verifier._count_leading, ".cumprod(1).sum(1)", ".sum(1)"),
    "rollback off by one": (
        one_round.commit,
        "state.length_B1.add_(num_emitted_B1)",
        "state.length_B1.add_(num_emitted_B1 + (num_emitted_B1 < T))",
    ),
    "commit one short": (
        one_round.commit,
        "state.length_B1.add_(num_emitted_B1)",
        "state.length_B1.add_(num_emitted_B1 - (num_emitted_B1 > 1).long())",
    ),
    "mask off by one, seeing the next slot": (
        masks.visible,
        "slots_S <= positions_BT1",
        "slots_S <= positions_BT1 + 1",
    ),
    "mask off by one, not seeing itself": (
        masks.visible,
        "slots_S <= positions_BT1",
        "slots_S < positions_BT1",
    ),
    "window off by one": (
        masks.visible,
        "positions_BT1 - window + 1",
        "positions_BT1 - window",
    ),
    "heads of a group in the wrong order": (
        stock.slot_attention,
        "packed = query.reshape(B, N, G * T, D)",
        "packed = query.reshape(B, G, N, T, D).transpose(1, 2).reshape(B, N, G * T, D)",
    ),
    "verdict off by one position": (
        one_round.finish_round,
        "verdict = verifier(proposal, out.logits,",
        "verdict = verifier(proposal, out.logits.roll(1, 1),",
    ),
}

GREEDY_TREE_BUGS = {
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
        verifier.accept_matching,
        "target_BN.gather(1, path_BT), path_BT",
        "target_BN.gather(1, path_BT).roll(1, 1), path_BT",
    ),
}


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        *(pytest.param(fault, greedy, id=bug) for bug, fault in GREEDY_BUGS.items()),
        *(pytest.param(fault, greedy_tree, id=bug) for bug, fault in GREEDY_TREE_BUGS.items()),
    ],
)
def test_a_planted_bug_fails_the_greedy_check(
    fault: tuple[Any, str, str], check: Callable[[], None], plant: Plant
) -> None:
    plant(*fault)

    with pytest.raises(AssertionError, match="differs at"):
        check()


def test_the_greedy_check_fails_when_an_end_of_text_among_accepted_drafts_is_ignored(
    plant: Plant,
) -> None:
    # Perturbed drafts are accepted one per round: the token after the first is an accepted draft.
    plant(
        one_round.commit,
        "torch.where(is_eos_BT, state.places(T), T)",
        "torch.where(\n"
        "is_eos_BT & (state.places(T) == num_accepted_B[:, None]), state.places(T), T)",
    )

    with pytest.raises(AssertionError, match="differs at"):
        greedy(eos_ids=(checks.gemma()[2][0][1],))


def test_a_hole_in_the_draft_models_cache_costs_acceptance(plant: Plant) -> None:
    target, draft, _ = checks.gemma()

    def accepted() -> float:
        drafter = make_drafter("draft_model", target, draft)
        return acceptance_rate(decode(target, drafter, checks.REQUESTS, k=4))

    assert accepted() == 1
    known = "state.positions(1 - self._num_fed, self._num_fed)"
    plant(ModelDrafter.propose, known, "state.positions(0, 1)")
    assert accepted() < 1


def _shared_noise(seed_B: Tensor, positions_BK: Tensor, drafts_BK: Tensor) -> Tensor:
    """A uniform number made from the same noise that drew the draft."""
    noise = exponential(seed_B, positions_BK, Purpose.DRAFT, 7)
    return 1 - torch.exp(-noise.gather(-1, drafts_BK[..., None])[..., 0])


DISTRIBUTION_BUGS = {
    "no residual": (
        verifier._residual,
        "residual_V = (p_V - q_V).clamp_(min=0)",
        "residual_V = p_V.clone()",
    ),
    "p and q swapped": (verifier._reject, "chance_BK * q_BK <= p_BK", "chance_BK * p_BK <= q_BK"),
    "q ignored": (verifier._reject, "chance_BK * q_BK <= p_BK", "chance_BK <= p_BK"),
    "accept all": (
        verifier._count_leading,
        "accepted_BK.cumprod(1).sum(1)",
        "torch.ones_like(accepted_BK).long().sum(1)",
    ),
    "sum for cumprod": (verifier._count_leading, ".cumprod(1).sum(1)", ".sum(1)"),
    "the bonus drawn from the residual of nothing drafted": (
        verifier._reject,
        "proposal.num_drafted_B)[:, None]",
        "proposal.num_drafted_B)[:, None] | True",
    ),
    "acceptance decided by the draft's noise": (
        verifier._reject,
        "uniform(seed_B, positions_BT[:, :-1], Purpose.ACCEPT)",
        "shared_noise(seed_B, positions_BT[:, :-1], drafts_BK)",
    ),
    "the first round repeats the prefill's noise": (
        one_round.finish_round,
        "state.seed_B, next_BN)",
        "state.seed_B, positions_BN)",
    ),
    "noise that forgets the position": (
        sampling._key,
        "(positions_BT & _MASK32)",
        "(positions_BT // 2 & _MASK32)",
    ),
}

DISTRIBUTION_TREE_BUGS = {
    "every sibling judged against the whole distribution": (
        verifier._in_turn,
        "p_BIV = _residual(p_BIV, q_BIV, is_active_BI1 & (q_BI1 > 0))",
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


# The drawn token itself decides whether it is dropped.
UNLIKELY_DROPPED = (
    growth.grow_chain,
    "drafts.append(tokens_B1)",
    "drafts.append(tokens_B1); "
    "sure[-1] = sure[-1] & (probs_B1V.gather(-1, tokens_B1[..., None])[..., 0] >= p_min)",
)


def test_dropping_drafts_that_are_unlikely_changes_the_distribution(plant: Plant) -> None:
    plant(*UNLIKELY_DROPPED)
    assert p_of_stopping() < 1e-6


@pytest.mark.sampled(one_in=3)
@pytest.mark.parametrize(
    ("fault", "p_value"),
    [
        *(pytest.param(fault, p_of_sampled, id=bug) for bug, fault in DISTRIBUTION_BUGS.items()),
        *(
            pytest.param(fault, p_of_sampled_trees, id=f"trees: {bug}")
            for bug, fault in DISTRIBUTION_TREE_BUGS.items()
        ),
    ],
)
def test_a_planted_bug_fails_the_distribution_check(
    fault: tuple[Any, str, str],
    p_value: Callable[[], float],
    plant: Plant,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verifier, "shared_noise", _shared_noise, raising=False)
    plant(*fault)

    p = p_value()

    print(f"p = {p:.1e}")
    assert p < 1e-6


def test_the_one_draft_check_detects_shared_noise(
    plant: Plant,
) -> None:
    # The replacement excludes the draft itself, so the bias is small: too small for texts.
    plant(verifier._reject, "next_position_B1, Purpose.TARGET)", "next_position_B1, Purpose.DRAFT)")

    p_value = one_draft_p_value()

    print(f"draft and replacement share their noise: p = {p_value:.1e}")
    assert p_value < 1e-6


# Too small for a text of a few tokens, but visible by hand.
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
        tree.Tree.reached,
        "(accepted_BN[:, None] | ~self.seen_BNN).all(-1) & accepted_BN",
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
        verifier._exclude,
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
    "inactive drafts are accepted": (
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
def test_a_planted_bug_fails_the_worked_tree_check(bug: str, plant: Plant) -> None:
    check, *fault = BUGS_BY_HAND[bug]
    check()
    plant(*fault)

    with pytest.raises(AssertionError):
        check()
