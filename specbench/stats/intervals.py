"""Intervals for ratios of sums over prompts, over passes if requests overlap, and over pairs.

Prompts are the unit, and paired: a hard prompt is slow under both decoders, and rounds of one
prompt are correlated. The jackknife on the log ratio with Student's t has its nominal coverage even
for few and unequal prompts; tests/stats/test_coverage.py prints the measured coverage.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specbench.stats.machine_noise import MachineNoise
from specbench.stats.spread import MIN_UNITS, Uncertainty, combined, jackknife, of_mean
from specbench.stats.summaries import Interval


@dataclass(frozen=True, kw_only=True, slots=True)
class LogRatio:
    """The log of a ratio of sums, with its uncertainty over prompts and over states of the machine.

    Intervals without `machine` hold for other prompts, while the machine stays as it was.
    """

    log: float
    prompts: Uncertainty | None  # None: too few prompts
    num_prompts: int
    machine: MachineNoise | None = None
    largest_prompt: float | None = None  # share of one prompt in the variance over prompts

    @property
    def spread(self) -> Uncertainty | None:
        """Both parts together."""
        if self.prompts is None or self.machine is None:
            return self.prompts
        return combined(self.prompts, self.machine.of_run)

    def on(self, machine: MachineNoise) -> "LogRatio":
        """The ratio with the variance of the machine that measured it."""
        return replace(self, machine=machine)

    @property
    def standard_error(self) -> float | None:
        return None if self.spread is None else self.spread.standard_error


def log_ratio(numerators: Sequence[ArrayLike], denominators: Sequence[ArrayLike]) -> LogRatio:
    """log(product of the numerators' sums / product of the denominators' sums).

    Each column has one positive entry per prompt; a prompt's weight is its mean share of the sums.
    ValueError if an entry is not finite and positive.
    """
    columns = np.array([*numerators, *denominators], dtype=np.float64)
    if columns.ndim != 2 or columns.shape[1] == 0:
        raise ValueError("every column needs the same prompts, at least one")
    if not (np.isfinite(columns) & (columns > 0)).all():
        raise ValueError("every entry must be finite and above 0")
    signs = np.repeat([1.0, -1.0], [len(numerators), len(denominators)])
    totals = columns.sum(axis=1, keepdims=True)
    n = columns.shape[1]
    left_out = signs @ np.log(totals - columns) if n > 1 else np.zeros(1)
    deviations = (left_out - left_out.mean()) ** 2
    return LogRatio(
        log=float(signs @ np.log(totals[:, 0])),
        prompts=jackknife(left_out, (columns / totals).mean(axis=0)),
        num_prompts=n,
        largest_prompt=float(deviations.max() / deviations.sum()) if deviations.any() else None,
    )


def interval(ratio: LogRatio) -> Interval:
    """The ratio with its two-sided 95% interval; low and high are None without a spread."""
    estimate = math.exp(ratio.log)
    if ratio.spread is None:
        return Interval(estimate=estimate, low=None, high=None)
    half = ratio.spread.margin()
    return Interval(
        estimate=estimate, low=math.exp(ratio.log - half), high=math.exp(ratio.log + half)
    )


def product(first: LogRatio, second: LogRatio) -> LogRatio:
    """The product of two ratios with independent errors, over the prompts of the first.

    If `first` has no spread, neither has the product. A `second` without a spread counts as exact.
    """
    prompts = first.prompts
    if prompts is not None and second.spread is not None:
        prompts = combined(prompts, second.spread)
    return replace(first, log=first.log + second.log, prompts=prompts)


def with_half_count(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Counts per unit, plus half a count divided equally among them, so that the sum is not 0.

    The estimate of a ratio of such sums is finite, and closer to 1. Source: Haldane 1956.
    """
    adjusted: NDArray[np.float64] = counts + 0.5 / counts.shape[-1]
    return adjusted


def with_count_noise(ratio: LogRatio, *counts: NDArray[np.float64]) -> LogRatio:
    """A ratio of `with_half_count` sums, plus the variance 0.5 / sum**2 for each of `counts`.

    Without it, the jackknife would call a sum without any counts exact. For pairs that all agree or
    all differ, this is the variance of Fagerland, Lydersen and Laake 2014.
    """
    variances = [0.5 / np.nansum(count, axis=-1) ** 2 for count in counts]
    spread = Uncertainty(
        standard_error=math.sqrt(sum(float(np.mean(v)) for v in variances)),
        degrees_of_freedom=math.inf,
    )
    return product(ratio, LogRatio(log=0.0, prompts=spread, num_prompts=ratio.num_prompts))


def mean_interval(values: ArrayLike) -> Interval:
    """The mean of one value per prompt, such as a difference, with Student's 95% interval."""
    mean, spread = float(np.asarray(values, dtype=np.float64).mean()), of_mean(values)
    if spread is None:
        return Interval(estimate=mean, low=None, high=None)
    half = spread.margin()
    return Interval(estimate=mean, low=mean - half, high=mean + half)


LARGEST_EFFECT = 1.0  # above this minimum detectable effect, more prompts do not help


def minimum_detectable_effect(ratio: LogRatio) -> float | None:
    """The relative effect (0.03 = 3%) whose interval would exclude 1 in 80% of runs; None without
    a spread."""
    return None if ratio.spread is None else math.expm1(ratio.spread.detectable())


def speedup_ratio(
    base_s: ArrayLike,
    spec_s: ArrayLike,
    base_tokens: ArrayLike | None = None,
    spec_tokens: ArrayLike | None = None,
) -> LogRatio:
    """Sum of baseline seconds / sum of speculative seconds; arrays have an entry per prompt.

    With tokens, which differ above temperature 0, it is the ratio of seconds per output token.
    Tokens that are equal on both sides cancel.
    """
    if base_tokens is None or spec_tokens is None or np.array_equal(base_tokens, spec_tokens):
        return log_ratio([base_s], [spec_s])
    return log_ratio([base_s, spec_tokens], [base_tokens, spec_s])


MAX_DEVIATIONS = 5.0  # from the median, in standard deviations of the pairs' log ratios
_NEAR = math.log(1.1)  # pairs within 10% of the median are never outliers


def paired_log_ratio(numerators: ArrayLike, denominators: ArrayLike) -> LogRatio:
    """log(mean cost / other mean cost): a ratio of sums, like a sweep's speedup, not a mean ratio.

    Pairs whose ratio is an outlier are excluded, because another process ran then (Hampel 1974, The
    influence curve and its role in robust estimation). The standard error is that of the ratio's
    linear part (delta method).
    """
    over = np.asarray(numerators, dtype=np.float64)
    under = np.broadcast_to(np.asarray(denominators, dtype=np.float64), over.shape)
    is_near = _is_near(np.log(over / under))
    over, under = over[is_near], under[is_near]
    return LogRatio(
        log=math.log(over.mean()) - math.log(under.mean()),
        prompts=of_mean(over / over.mean() - under / under.mean()),
        num_prompts=len(over),
    )


def _is_near(logs: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether each value is near the median; always true below MIN_UNITS pairs."""
    if len(logs) < MIN_UNITS:
        return np.ones(len(logs), dtype=bool)
    distance = np.abs(logs - np.median(logs))
    deviation = 1.4826 * np.median(
        distance
    )  # the standard deviation of normal errors with this median distance
    return np.asarray(distance <= max(MAX_DEVIATIONS * deviation, _NEAR))


def falls_below_1(curve: Sequence[tuple[float, float]]) -> Iterator[float]:
    """The sizes at which the ratio falls below 1, by linear interpolation of log ratio over log
    size. `curve` has (size, ratio) pairs in ascending order.
    """
    logs = [(math.log(size), math.log(ratio)) for size, ratio in curve]
    for (x, above), (next_x, below) in pairwise(logs):
        if above >= 0 > below:
            yield math.exp(x + (next_x - x) * above / (above - below))


def break_even(curve: Sequence[tuple[float, Interval]]) -> Interval | None:
    """The size, such as a context length, at which a speedup first falls below 1, with its 95%
    interval.

    The interval has the sizes at which the ratio does not differ significantly from 1: from the
    first size at which its lower bound is 1 to the last at which its upper bound is 1. Between
    measured sizes the bounds are interpolated linearly. This is at least as wide as the interval of
    the interpolated ratio, for any correlation of the errors at its ends, because the standard
    error of a weighted sum is at most the weighted sum of the standard errors.

    A bound beyond the measured sizes is None: the gain at the smallest size, or the loss at the
    largest, is not significant. Sizes without an interval are used only if no size has one.
    None if the estimate does not fall below 1 between two sizes.
    """
    ratios = [(size, ratio) for size, ratio in curve if ratio.low is not None] or curve
    estimate = next(falls_below_1([(size, ratio.estimate) for size, ratio in ratios]), None)
    if estimate is None:
        return None
    lows = [(size, ratio.low) for size, ratio in ratios if ratio.low is not None]
    highs = [(size, ratio.high) for size, ratio in ratios if ratio.high is not None]
    is_gain_shown = bool(lows) and lows[0][1] >= 1
    is_loss_shown = bool(highs) and highs[-1][1] < 1
    return Interval(
        estimate=estimate,
        low=next(falls_below_1(lows)) if is_gain_shown else None,
        high=[*falls_below_1(highs)][-1] if is_loss_shown else None,
    )
