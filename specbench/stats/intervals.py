"""Intervals for ratios of sums over prompts, or over passes where requests overlap.

Prompts are the unit, paired: a hard prompt is slow under both decoders, and rounds of one
prompt resemble each other. The jackknife on the log ratio with Student's t covers what it
claims for few and unequal prompts; tests/stats/test_coverage.py prints by how much.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtrit

from specbench.stats.interval import Interval

MIN_PROMPTS = 5  # fewer give no interval
CONFIDENCE = 0.95
POWER = 0.80


@dataclass(frozen=True, kw_only=True, slots=True)
class LogRatio:
    """The log of a ratio of sums and how far off it may be; no spread below MIN_PROMPTS."""

    log: float
    standard_error: float | None
    degrees_of_freedom: float | None
    num_prompts: int


def log_ratio(numerators: Sequence[ArrayLike], denominators: Sequence[ArrayLike]) -> LogRatio:
    """log(product of the numerators' sums / product of the denominators' sums).

    Each column has one positive entry per prompt. Standard error: jackknife over prompts.
    Degrees of freedom: effective number of prompts - 1, where a prompt counts by its share of
    the sums (Kish 1965, 1 / sum of squared shares), so one long prompt is not taken for many.
    Raises ValueError for entries that are not finite and positive.
    """
    columns = np.array([*numerators, *denominators], dtype=np.float64)
    if columns.ndim != 2 or columns.shape[1] == 0:
        raise ValueError("every column needs the same prompts, at least one")
    if not (np.isfinite(columns) & (columns > 0)).all():
        raise ValueError("every entry must be finite and above 0")
    signs = np.repeat([1.0, -1.0], [len(numerators), len(denominators)])
    totals = columns.sum(axis=1, keepdims=True)
    log = float(signs @ np.log(totals[:, 0]))
    n = columns.shape[1]
    if n < MIN_PROMPTS:
        return LogRatio(log=log, standard_error=None, degrees_of_freedom=None, num_prompts=n)
    left_out = signs @ np.log(totals - columns)
    shares = (columns / totals).mean(axis=0)
    return LogRatio(
        log=log,
        standard_error=math.sqrt((n - 1) ** 2 / n * np.var(left_out, ddof=1)),
        degrees_of_freedom=max(1.0, 1.0 / float(shares @ shares) - 1.0),
        num_prompts=n,
    )


def interval(ratio: LogRatio, *, confidence: float = CONFIDENCE) -> Interval:
    """The ratio with its two-sided interval; low and high are None below MIN_PROMPTS."""
    estimate = math.exp(ratio.log)
    if ratio.standard_error is None or ratio.degrees_of_freedom is None:
        return Interval(estimate=estimate, low=None, high=None)
    half = student_t(ratio.degrees_of_freedom, (1 + confidence) / 2) * ratio.standard_error
    return Interval(
        estimate=estimate, low=math.exp(ratio.log - half), high=math.exp(ratio.log + half)
    )


def product(first: LogRatio, second: LogRatio) -> LogRatio:
    """The product of two ratios whose errors are independent, over the first one's prompts.

    Without a spread of the first there is none of the product; of the second it then counts as
    exact. Degrees of freedom: Welch 1947 and Satterthwaite 1946.
    """
    log = first.log + second.log
    if first.standard_error is None or first.degrees_of_freedom is None:
        return LogRatio(
            log=log, standard_error=None, degrees_of_freedom=None, num_prompts=first.num_prompts
        )
    parts = [(first.standard_error**2, first.degrees_of_freedom)]
    if second.standard_error is not None and second.degrees_of_freedom is not None:
        parts.append((second.standard_error**2, second.degrees_of_freedom))
    variance = sum(part for part, _ in parts)
    weights = sum(part**2 / freedom for part, freedom in parts)
    return LogRatio(
        log=log,
        standard_error=math.sqrt(variance),
        degrees_of_freedom=variance**2 / weights if weights else first.degrees_of_freedom,
        num_prompts=first.num_prompts,
    )


def mean_interval(values: ArrayLike) -> Interval:
    """The mean of one value a prompt with its 95 % interval by Student's t, as for differences."""
    array = np.asarray(values, dtype=np.float64)
    n, mean = len(array), float(array.mean())
    if n < MIN_PROMPTS:
        return Interval(estimate=mean, low=None, high=None)
    half = student_t(n - 1, (1 + CONFIDENCE) / 2) * float(array.std(ddof=1)) / math.sqrt(n)
    return Interval(estimate=mean, low=mean - half, high=mean + half)


def minimum_detectable_effect(ratio: LogRatio, *, power: float = POWER) -> float | None:
    """The relative effect (0.03 = 3 %) whose interval would exclude 1 in `power` of the runs."""
    if ratio.standard_error is None or ratio.degrees_of_freedom is None:
        return None
    quantiles = sum(student_t(ratio.degrees_of_freedom, p) for p in ((1 + CONFIDENCE) / 2, power))
    return math.expm1(quantiles * ratio.standard_error)


def student_t(degrees_of_freedom: float, probability: float) -> float:
    """Quantile of Student's t distribution."""
    return float(stdtrit(degrees_of_freedom, probability))


def speedup_ratio(
    base_s: ArrayLike,
    spec_s: ArrayLike,
    base_tokens: ArrayLike | None = None,
    spec_tokens: ArrayLike | None = None,
) -> LogRatio:
    """Sum of baseline seconds / sum of speculative seconds, an entry per prompt.

    With tokens, as temperature > 0 needs: the ratio of seconds per output token. Tokens that
    are equal on both sides cancel and change nothing.
    """
    if base_tokens is None or spec_tokens is None or np.array_equal(base_tokens, spec_tokens):
        return log_ratio([base_s], [spec_s])
    return log_ratio([base_s, spec_tokens], [base_tokens, spec_s])


def speedup_interval(
    base_s: ArrayLike,
    spec_s: ArrayLike,
    base_tokens: ArrayLike | None = None,
    spec_tokens: ArrayLike | None = None,
) -> Interval:
    """The 95 % interval of `speedup_ratio`."""
    return interval(speedup_ratio(base_s, spec_s, base_tokens, spec_tokens))


def acceptance_length_change(
    base_accepted: ArrayLike,
    base_rounds: ArrayLike,
    candidate_accepted: ArrayLike,
    candidate_rounds: ArrayLike,
) -> LogRatio:
    """Candidate's mean acceptance length / baseline's, over the same prompts in both runs."""
    base = np.asarray(base_rounds, dtype=np.float64)
    candidate = np.asarray(candidate_rounds, dtype=np.float64)
    return log_ratio(
        [np.asarray(candidate_accepted) + candidate, base],
        [candidate, np.asarray(base_accepted) + base],
    )
