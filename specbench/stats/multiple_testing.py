"""Multiple tests: adjusted p-values, or one p-value for all of them."""

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp


def holm(p_values: ArrayLike) -> list[float]:
    """Holm-adjusted p-values, in the given order. Rejecting those up to alpha keeps the family-wise
    error rate at or below alpha, for any dependence between the tests.

    The r-th smallest of m (r from 0) becomes (m - r) p, but at least the one before it and at most
    1.
    Source: Holm 1979, A simple sequentially rejective multiple test procedure.
    """
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    adjusted = np.empty(len(p))
    adjusted[order] = np.maximum.accumulate(p[order] * (len(p) - np.arange(len(p))))
    capped: list[float] = np.minimum(adjusted, 1.0).tolist()
    return capped


def mean_ratio_p_value(log_ratios: ArrayLike) -> float:
    """min(1, n / sum of the ratios), from the logarithms of n likelihood ratios to the same null.

    Under the null, the mean of the ratios has an expectation of 1. By Markov's inequality, its
    reciprocal is a p-value for any amount of data. Source: Shafer et al. 2011 (arXiv:0912.4269).
    """
    logs = np.asarray(log_ratios, dtype=np.float64)
    return float(np.exp(min(0.0, math.log(len(logs)) - logsumexp(logs))))
