import pytest

from specbench.costs import (
    bytes_per_forward,
    conditional_rates,
    expected_tokens_iid,
    roofline_s,
)


def test_independent_acceptance_is_a_geometric_sum():
    # 1 + 0.5 + 0.25 + 0.125
    assert expected_tokens_iid(0.5, 3) == 1.875
    assert expected_tokens_iid(1.0, 3) == 4.0
    assert expected_tokens_iid(0.0, 3) == 1.0
    assert expected_tokens_iid(0.9, 10) == pytest.approx((1 - 0.9**11) / (1 - 0.9))


def test_a_conditional_rate_is_a_rate_over_the_one_before():
    assert conditional_rates((0.8, 0.4, 0.1)) == pytest.approx((0.8, 0.5, 0.25))
    assert conditional_rates((0.5, 0.0, 0.0)) == (0.5, 0.0, 0.0)
    assert conditional_rates(()) == ()


def test_a_forward_reads_the_weights_once_and_every_rows_cache():
    # 4 rows of 100 tokens of 10 bytes beside 1,000 bytes of weights
    assert bytes_per_forward(1_000, rows=4, context=100, kv_bytes_per_token=10) == 5_000


def test_the_roofline_is_bytes_over_bandwidth():
    assert roofline_s(15e9, 4.8e12) == pytest.approx(0.003125)
