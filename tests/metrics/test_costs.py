import pytest

from specbench.stats.rounds import (
    bytes_per_forward,
    roofline_s,
)


def test_a_forward_reads_the_weights_once_and_every_rows_cache():
    # 4 rows of 100 tokens of 10 bytes beside 1,000 bytes of weights
    assert bytes_per_forward(1_000, rows=4, context=100, kv_bytes_per_token=10) == 5_000


def test_the_roofline_is_bytes_over_bandwidth():
    assert roofline_s(15e9, 4.8e12) == pytest.approx(0.003125)
