"""Holm's adjustment against his procedure; the mean ratio against Markov's inequality."""

import numpy as np
import pytest

from specbench.stats.multiple_testing import holm, mean_ratio_p_value


def rejected(p_values: list[float], alpha: float) -> set[int]:
    """Holm 1979: the smallest against alpha / m, the next against alpha / (m - 1), .. until one
    is not rejected, and all after it are not."""
    left = sorted(range(len(p_values)), key=lambda i: p_values[i])
    rejected: set[int] = set()
    while left and p_values[left[0]] <= alpha / len(left):
        rejected.add(left.pop(0))
    return rejected


def test_adjusted_p_values_reject_the_same_as_the_procedure():
    for seed in range(400):
        rng = np.random.default_rng(seed)
        p_values = (rng.random(rng.integers(0, 20)) ** rng.integers(1, 6)).tolist()
        adjusted = holm(p_values)
        for alpha in (0.001, 0.05, 0.5, 0.999):
            assert {i for i, p in enumerate(adjusted) if p <= alpha} == rejected(p_values, alpha)
        assert len(adjusted) == len(p_values)
        assert all(p <= adjusted_p <= 1 for p, adjusted_p in zip(p_values, adjusted, strict=True))


def test_equal_p_values_stay_equal():
    assert holm([0.2, 0.01, 0.2, 0.01]) == pytest.approx([0.4, 0.04, 0.4, 0.04])


def test_holm_equals_a_worked_example():
    # 3 * 0.01; 2 * 0.02, not below the first; 1 * 0.03, not below the second.
    assert holm([0.02, 0.01, 0.03]) == pytest.approx([0.04, 0.03, 0.04])
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_the_inverse_mean_ratio_is_a_p_value():
    """Likelihood ratios of biased coins to a fair one: p is below alpha in at most alpha."""
    rng = np.random.default_rng(0)
    rates = np.array([0.3, 0.4, 0.6, 0.8])
    heads = rng.binomial(30, 0.5, 4000)
    logs = np.outer(heads, np.log(2 * rates)) + np.outer(30 - heads, np.log(2 * (1 - rates)))
    p_values = [mean_ratio_p_value(row) for row in logs]
    for alpha in (0.2, 0.05, 0.01):
        assert np.mean(np.array(p_values) <= alpha) <= alpha
    assert p_values[0] == pytest.approx(min(1.0, 1 / np.exp(logs[0]).mean()))
    assert mean_ratio_p_value([-3.0]) == 1.0
    assert mean_ratio_p_value([2000.0, 2000.0]) == 0.0  # no overflow
