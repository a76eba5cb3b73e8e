import numpy as np
import pytest

from specbench.stats.percentiles import p95


def test_it_is_numpys_and_absent_below_20_values():
    for seed in range(200):
        values = np.random.default_rng(seed).lognormal(size=20 + seed).tolist()
        assert p95(values) == pytest.approx(np.percentile(values, 95))
        assert p95(values[: seed % 20]) is None
