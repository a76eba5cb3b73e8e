"""The controller's choices and its costs of a round, by hand."""

import random
from collections.abc import Sequence
from math import exp

import pytest

from specbench.decode.adaptive_k import AcceptanceTracker, Controller, RoundCostModel, default_ks
from specbench.decode.scheduler import ObservedRound
from specbench.stats.rounds import amortized_goodput, goodput
from tests.decoding.simulated_texts import COSTS, KS


def exact_costs(catch_up_s: float = 0.0) -> RoundCostModel:
    return RoundCostModel(
        {(rows, k): (seconds,) for rows in COSTS for k, seconds in COSTS[rows].items()},
        catch_up_s=((1, catch_up_s),),
    )


def settled(num_accepted: Sequence[int], costs: RoundCostModel | None = None) -> Controller:
    """A controller that has seen one row accept these numbers of drafts at K = 4."""
    controller = Controller(KS, costs or exact_costs())
    for accepted in num_accepted:
        observe_row(controller, 4, accepted)
    return controller


def observe_row(controller: Controller, k: int, num_accepted: int) -> None:
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


def test_drafts_that_are_never_accepted_stop_the_drafting():
    controller = settled([])
    for _ in range(40):
        k = controller.choose(1, 1, 10_000)
        observe_row(controller, k, 0)

    assert k == 0


def test_a_few_rejected_rounds_do_not_stop_drafting():
    def second_choice(num_rounds: int) -> int:
        controller = settled([0] * num_rounds)
        controller.choose(1, 1, 10_000)
        return controller.choose(1, 1, 10_000)

    assert second_choice(2) > 0  # 1.3 tokens in 3.6 ms +- a fifth, or 1 in 2.7 ms
    assert second_choice(20) == 0  # 1.07 +- a twentieth


NOW_AND_THEN = [1, 0, 0, 4, 1] * 10  # 1.6 tokens per round at K = 1, 2.2 at K = 4


def test_adaptive_k_drafts_at_batch_size_1_and_not_at_16():
    controller = settled(NOW_AND_THEN)

    assert controller.choose(1, 1, 10_000) > 0  # 2.2 in 5.0 ms against 1 in 2.7 ms
    assert controller.choose(16, 16, 10_000) == 0  # 1.6 in 9 ms at K = 1 against 1 in 5 ms


def test_drafting_resumes_only_if_it_gains_more_than_the_catch_up():
    def k_after_zero(catch_up_s: float) -> int:
        controller = settled(NOW_AND_THEN, exact_costs(catch_up_s))
        assert controller.choose(1, 1, 10_000) > 0
        assert controller.choose(16, 16, 10_000) == 0
        observe_row(controller, 0, 0)
        return controller.choose(1, 1, 10_000)

    # A stay is 50 rounds at K = 2, or 210 ms: it gains 46 ms, and 44 ms if 0.5% must be left.
    assert k_after_zero(0.044) > 0
    assert k_after_zero(0.045) == 0


def test_a_round_with_a_catch_up_is_not_counted_in_its_k():
    costs = exact_costs()
    controller = settled([4] * 20, costs)
    observe_row(controller, 0, 0)
    before = costs.round_s(1, 4)

    # Its report arrives after the next K was chosen, as with graphs.
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
        observe_row(controller, k, 0)
        drafted.append(k > 0)
    half = len(drafted) // 2

    assert 0 < sum(drafted[half:]) <= sum(drafted[:half])
    assert sum(drafted[half:]) < 0.05 * half


def test_goodput_is_the_tokens_of_all_live_rows_over_the_time_of_a_round():
    assert goodput(1.5, num_live=4, round_s=0.02) == pytest.approx(300.0)


def test_a_catch_up_of_a_quarter_of_the_stay_costs_a_fifth_of_goodput():
    assert amortized_goodput(100.0, stay_s=4.0, once_s=1.0) == pytest.approx(80.0)


def test_a_cost_is_the_median_of_its_samples_and_interpolated_between_rows():
    costs = RoundCostModel({(1, 0): (1.0, 9.0, 2.0), (4, 0): (3.5,)})

    assert costs.round_s(1, 0) == 2.0
    assert costs.round_s(2, 0) == pytest.approx(2.5)
    assert costs.round_s(5, 0) == 3.5


def test_the_catch_up_cost_is_interpolated_by_the_number_of_tokens():
    costs = RoundCostModel({(1, 0): (1.0,)}, catch_up_s=((10, 2.0), (20, 3.0)))

    assert costs.catch_up_s(0) == 0.0
    assert costs.catch_up_s(30) == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("points", "at_40"),
    [((), 0.0), (((10, 2.0),), 2.0), (((10, 3.0), (30, 1.0)), 2.0), (((10, 0.5), (20, 2.0)), 3.3)],
)
def test_the_catch_up_cost_is_extrapolated_without_negative_parts(points, at_40):
    costs = RoundCostModel({(1, 0): (1.0,)}, catch_up_s=points)

    assert costs.catch_up_s(40) == pytest.approx(at_40, rel=0.02)


def test_a_slower_machine_scales_the_cost_of_every_k():
    costs = RoundCostModel({(1, 0): (1.0,) * 4, (1, 4): (2.0,) * 4})
    for i in range(200):
        costs.observe(1, 4, 2.0 if i < 20 else 3.0)

    assert costs.round_s(1, 4) == pytest.approx(3.0, rel=0.01)
    assert costs.round_s(1, 0) == pytest.approx(1.5, rel=0.01)


def test_a_wrong_initial_cost_is_corrected_by_observed_rounds():
    costs = RoundCostModel({(1, 0): (1.0,) * 4, (1, 4): (2.4,) * 4})
    for _ in range(20):
        for k, seconds in ((0, 1.0), (4, 2.0)):
            for _ in range(10):
                costs.observe(1, k, seconds)

    assert costs.round_s(1, 4) / costs.round_s(1, 0) == pytest.approx(2.0, rel=0.02)


def test_drift_under_alternating_k_keeps_their_cost_ratio():
    rng = random.Random(0)
    costs = RoundCostModel({(1, 0): (1.0,) * 4, (1, 4): (2.0,) * 4})
    pace = 1.0
    for _ in range(100):
        for k, seconds in ((0, 1.0), (4, 2.0)):
            for _ in range(5):
                pace *= 1.001
                costs.observe(1, k, seconds * pace * exp(rng.gauss(0, 0.05)))

    assert costs.round_s(1, 4) / costs.round_s(1, 0) == pytest.approx(2.0, rel=0.03)


def test_cost_ratios_are_stable_while_the_batch_size_varies():
    """Passes that fill 16 rows at K = 8 and drain; costs of small batches start too high."""
    seconds = {0: 1.0, 8: 2.0}
    too_high = {1: 1.3, 4: 1.2, 16: 1.0}
    costs = RoundCostModel(
        {(rows, k): (too_high[rows] * rows * seconds[k],) * 6 for rows in too_high for k in seconds}
    )
    for _ in range(30):
        for rows in (*(16,) * 60, *range(15, 0, -1)):
            costs.observe(rows, 8, rows * seconds[8])

    assert costs.round_s(16, 8) / costs.round_s(16, 0) == pytest.approx(2.0, rel=0.02)


def test_one_round_of_three_times_the_time_moves_a_cost_by_about_a_hundredth():
    costs = RoundCostModel({(1, 0): (1.0,) * 4})

    costs.observe(1, 0, 3.0)

    assert costs.round_s(1, 0) == pytest.approx(1.01, rel=0.001)


def test_the_first_round_drafts_deep_because_it_tells_what_smaller_k_accept():
    expected = AcceptanceTracker(3, memory_rounds=40).expected_tokens()
    assert expected == pytest.approx([1.0, 1.9, 1.9 + 0.9**2, 1.9 + 0.9**2 + 0.9**3])
    controller = Controller(
        default_ks(8), RoundCostModel({(1, k): [3 + 0.5 * k] for k in default_ks(8)})
    )
    assert controller.choose(1, 1, 0) == 8


def test_acceptance_by_position_is_extrapolated_beyond_k():
    seen = AcceptanceTracker(3, memory_rounds=1e9)
    for _ in range(1000):
        seen.observe(2, [2, 2, 1, 0])  # 3 of 4 accept the first, 2 of those 3 the second

    _, at_1, at_2, at_3 = seen.expected_tokens()
    assert at_1 - 1 == pytest.approx(3 / 4, rel=0.01)
    assert at_2 - at_1 == pytest.approx(1 / 2, rel=0.01)
    assert at_3 - at_2 == pytest.approx(1 / 2 * 2 / 3, rel=0.01)


def test_old_rounds_are_forgotten_in_the_acceptance_estimate():
    seen = AcceptanceTracker(1, memory_rounds=40)
    for _ in range(400):
        seen.observe(1, [0])
    for _ in range(200):
        seen.observe(1, [1])

    assert seen.expected_tokens()[1] > 1.9


def test_weakened_evidence_keeps_its_mean_with_a_larger_error():
    seen = AcceptanceTracker(1, memory_rounds=1e9)
    seen.observe(1, [1, 1, 1, 0] * 50)
    before = seen.expected_tokens()[1]
    error = seen.relative_error(before)

    seen.weaken(4)

    assert seen.expected_tokens()[1] == pytest.approx((3 + 0.9) / 5 + 1)
    assert seen.relative_error(before) > 5 * error
