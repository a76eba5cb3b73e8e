import pytest

from specbench.costs import (
    break_even_length,
    bytes_per_forward,
    conditional_rates,
    expected_tokens,
    expected_tokens_iid,
    optimal_k,
    predicted_speedup,
    roofline_s,
)


def test_a_round_emits_one_token_and_every_draft_that_is_reached():
    assert expected_tokens(()) == 1.0
    assert expected_tokens((0.8, 0.5, 0.2)) == pytest.approx(2.5)


def test_independent_acceptance_is_a_geometric_sum():
    # 1 + 0.5 + 0.25 + 0.125
    assert expected_tokens_iid(0.5, 3) == 1.875
    assert expected_tokens_iid(1.0, 3) == 4.0
    assert expected_tokens_iid(0.0, 3) == 1.0
    assert expected_tokens_iid(0.9, 10) == pytest.approx((1 - 0.9**11) / (1 - 0.9))


def test_a_round_breaks_even_where_it_costs_what_it_emits():
    cost = break_even_length(4, draft=0.05, verify=1.1, overhead=0.02)
    assert cost == pytest.approx(1.32)
    assert predicted_speedup(1.32, cost) == pytest.approx(1.0)
    assert predicted_speedup(2.64, cost) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("alpha", "draft", "k", "speedup"),
    [(0.6, 0.05, 4, 1.92), (0.8, 0.05, 8, 3.09), (0.8, 0.1, 6, 2.47), (0.9, 0.02, 19, 6.37)],
)
def test_the_best_k_with_free_verification(alpha, draft, k, speedup):
    ks = range(31)
    tokens = [expected_tokens_iid(alpha, i) for i in ks]
    costs = [break_even_length(i, draft=draft, verify=1.0) for i in ks]
    assert optimal_k(tokens, costs) == k
    assert predicted_speedup(tokens[k], costs[k]) == pytest.approx(speedup, abs=0.005)


def test_a_draft_that_costs_more_than_it_saves_gives_k_0():
    # alpha below c: no K gains (Leviathan et al. 2023, corollary 3.9).
    ks = range(9)
    tokens = [expected_tokens_iid(0.2, k) for k in ks]
    assert optimal_k(tokens, [break_even_length(k, draft=0.3, verify=1.0) for k in ks]) == 0


def test_of_equal_speedups_the_smaller_k_wins():
    assert optimal_k([1.0, 1.5, 3.0], [1.0, 1.0, 2.0]) == 1


def test_a_conditional_rate_is_a_rate_over_the_one_before():
    assert conditional_rates((0.8, 0.4, 0.1)) == pytest.approx((0.8, 0.5, 0.25))
    assert conditional_rates((0.5, 0.0, 0.0)) == (0.5, 0.0, 0.0)
    assert conditional_rates(()) == ()


def test_a_forward_reads_the_weights_once_and_every_rows_cache():
    # 4 rows of 100 tokens of 10 bytes beside 1,000 bytes of weights
    assert bytes_per_forward(1_000, rows=4, context=100, kv_bytes_per_token=10) == 5_000


def test_the_roofline_is_bytes_over_bandwidth():
    assert roofline_s(15e9, 4.8e12) == pytest.approx(0.003125)
