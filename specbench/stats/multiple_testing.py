"""Many tests at once: p-values adjusted for each other, or one p-value for all of them."""

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp


def holm(p_values: ArrayLike) -> list[float]:
    """p-values adjusted for each other, in their order: rejecting those up to alpha rejects a true
    hypothesis with a probability of alpha at most, however the tests depend on each other.

    The r-th smallest of m (r from 0) becomes (m - r) p, no less than the ones before, at most 1.
    Source: Holm 1979, A simple sequentially rejective multiple test procedure.
    """
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    adjusted = np.empty(len(p))
    adjusted[order] = np.maximum.accumulate(p[order] * (len(p) - np.arange(len(p))))
    capped: list[float] = np.minimum(adjusted, 1.0).tolist()
    return capped


def mean_ratio_p_value(log_ratios: ArrayLike) -> float:
    """min(1, n / sum of the ratios), from the logarithms of n likelihood ratios to one null.

    Their mean is 1 on the mean if the null holds, so that by Markov's inequality 1 / it is a
    p-value for any amount of data. Source: Shafer et al. 2011 (arXiv:0912.4269).
    """
    logs = np.asarray(log_ratios, dtype=np.float64)
    return float(np.exp(min(0.0, math.log(len(logs)) - logsumexp(logs))))
