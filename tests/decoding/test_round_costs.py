"""What the controller knows, by hand: costs of rounds, acceptance by position, the formulas."""

import random
from math import exp

import pytest

from specbench.decode.adaptive_k import AcceptanceTracker, RoundCostModel
from specbench.stats.rounds import amortized_goodput, goodput


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
def test_neither_part_of_catching_up_is_below_zero(points, at_40):
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
    """Passes that fill 16 rows at K = 8 and drain: measured too dear where rows are few."""
    seconds = {0: 1.0, 8: 2.0}
    dear = {1: 1.3, 4: 1.2, 16: 1.0}
    costs = RoundCostModel(
        {(rows, k): (dear[rows] * rows * seconds[k],) * 6 for rows in dear for k in seconds}
    )
    for _ in range(30):
        for rows in (*(16,) * 60, *range(15, 0, -1)):
            costs.observe(rows, 8, rows * seconds[8])

    assert costs.round_s(16, 8) / costs.round_s(16, 0) == pytest.approx(2.0, rel=0.02)


def test_one_round_of_three_times_the_time_moves_a_cost_by_about_a_hundredth():
    costs = RoundCostModel({(1, 0): (1.0,) * 4})

    costs.observe(1, 0, 3.0)

    assert costs.round_s(1, 0) == pytest.approx(1.01, rel=0.001)


def test_the_prior_acceptance_rate_is_one_half():
    assert AcceptanceTracker(3, memory_rounds=40).expected_tokens() == [1.0, 1.5, 1.75, 1.875]


def test_acceptance_by_position_is_extrapolated_beyond_k():
    seen = AcceptanceTracker(3, memory_rounds=1e9)
    for _ in range(1000):
        seen.observe(2, [2, 2, 1, 0])  # 3 of 4 keep the first, 2 of those 3 the second

    _, one, two, three = seen.expected_tokens()
    assert one - 1 == pytest.approx(3 / 4, rel=0.01)
    assert two - one == pytest.approx(1 / 2, rel=0.01)
    assert three - two == pytest.approx(1 / 2 * 2 / 3, rel=0.01)


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

    assert seen.expected_tokens()[1] == pytest.approx((3 + 1.5) / 7 + 1)
    assert seen.relative_error(before) > 5 * error
