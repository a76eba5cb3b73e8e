"""The controller's choices by hand."""

from collections.abc import Sequence

import pytest

from specbench.decode.adaptive_k import Controller, RoundCostModel, default_ks
from specbench.decode.scheduler import ObservedRound
from tests.decoding.simulated_texts import COSTS, KS


def exact_costs(catch_up_s: float = 0.0) -> RoundCostModel:
    return RoundCostModel(
        {(rows, k): (seconds,) for rows in COSTS for k, seconds in COSTS[rows].items()},
        catch_up_s=((1, catch_up_s),),
    )


def settled(num_accepted: Sequence[int], costs: RoundCostModel | None = None) -> Controller:
    """A controller that has seen one row keep these numbers of drafts at K = 4."""
    controller = Controller(KS, costs or exact_costs())
    for accepted in num_accepted:
        saw(controller, 4, accepted)
    return controller


def saw(controller: Controller, k: int, num_accepted: int) -> None:
    controller.observe(
        ObservedRound(
            k=k,
            num_rows=1,
            num_accepted=[num_accepted],
            num_emitted=[num_accepted + 1],
            num_caught_up=0,
            seconds=COSTS[1][k],
        )
    )


def test_the_default_k_values_are_dense_up_to_4_and_end_at_the_largest():
    assert default_ks(1) == (0, 1)
    assert default_ks(3) == (0, 1, 2, 3)
    assert default_ks(5) == (0, 1, 2, 3, 4, 5)
    assert default_ks(16) == (0, 1, 2, 3, 4, 6, 8, 12, 16)
    assert default_ks(20) == (0, 1, 2, 3, 4, 6, 8, 12, 16, 20)


@pytest.mark.parametrize("ks", [(), (0,), (1, 2), (0, 2, 1), (0, 1, 1)])
def test_a_set_of_k_without_0_or_out_of_order_is_refused(ks):
    with pytest.raises(ValueError, match="ascend from 0"):
        Controller(ks, RoundCostModel({(1, 0): (1.0,)}))


def test_adaptive_k_picks_the_largest_k_if_every_draft_is_accepted():
    assert settled([4] * 60).choose(1, 1, 10_000) == 8


def test_drafts_that_are_never_kept_stop_the_drafting():
    controller = settled([])
    for _ in range(40):
        k = controller.choose(1, 1, 10_000)
        saw(controller, k, 0)

    assert k == 0


def test_a_few_rejected_rounds_do_not_stop_drafting():
    def second_choice(num_rounds: int) -> int:
        controller = settled([0] * num_rounds)
        controller.choose(1, 1, 10_000)
        return controller.choose(1, 1, 10_000)

    assert second_choice(2) > 0  # 1.3 tokens in 3.6 ms +- a fifth, or 1 in 2.7 ms
    assert second_choice(20) == 0  # 1.07 +- a twentieth


NOW_AND_THEN = [1, 0, 0, 4, 1] * 10  # 1.6 tokens a round at K = 1, 2.2 at K = 4


def test_adaptive_k_drafts_at_batch_size_1_and_not_at_16():
    controller = settled(NOW_AND_THEN)

    assert controller.choose(1, 1, 10_000) > 0  # 2.2 in 5.0 ms against 1 in 2.7 ms
    assert controller.choose(16, 16, 10_000) == 0  # 1.6 in 9 ms at K = 1 against 1 in 5 ms


def test_drafting_resumes_only_if_it_gains_more_than_the_catch_up():
    def k_after_zero(catch_up_s: float) -> int:
        controller = settled(NOW_AND_THEN, exact_costs(catch_up_s))
        assert controller.choose(1, 1, 10_000) > 0
        assert controller.choose(16, 16, 10_000) == 0
        saw(controller, 0, 0)
        return controller.choose(1, 1, 10_000)

    # A stay is 50 rounds at K = 4, or 250 ms: it gains 35 ms, and 34 ms if 0.5% must be left.
    assert k_after_zero(0.034) > 0
    assert k_after_zero(0.035) == 0


def test_a_round_with_a_catch_up_is_not_counted_in_its_k():
    costs = exact_costs()
    controller = settled([4] * 20, costs)
    saw(controller, 0, 0)
    before = costs.round_s(1, 4)

    # Its report comes when the next K is chosen already, as it does with graphs.
    controller.choose(1, 1, 1)
    controller.choose(1, 1, 0)
    controller.observe(
        ObservedRound(
            k=4,
            num_rows=1,
            num_accepted=[4],
            num_emitted=[5],
            num_caught_up=1,
            seconds=1.0,
        )
    )

    assert costs.round_s(1, 4) == before


def test_failed_probes_of_k_become_rare():
    controller = settled([])
    drafted = []
    for _ in range(3000):
        k = controller.choose(1, 1, 10_000)
        saw(controller, k, 0)
        drafted.append(k > 0)
    half = len(drafted) // 2

    assert 0 < sum(drafted[half:]) <= sum(drafted[:half])
    assert sum(drafted[half:]) < 0.05 * half
