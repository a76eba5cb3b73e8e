"""The uncertainty of an estimate: its standard error, with its degrees of freedom."""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtr, stdtridf, stdtrit

MIN_UNITS = 5  # prompts or passes; fewer have no spread
CONFIDENCE = 0.95
UPPER = (1 + CONFIDENCE) / 2  # the probability below the upper end of a two-sided interval
POWER = 0.80


@dataclass(frozen=True, kw_only=True, slots=True)
class Uncertainty:
    """The standard error of an estimate, or of its logarithm, and its degrees of freedom."""

    standard_error: float
    degrees_of_freedom: float  # infinite: the standard error is known exactly

    def margin(self, probability: float = UPPER) -> float:
        """The limit that true value - estimate does not exceed with this probability."""
        return student_t(self.degrees_of_freedom, probability) * self.standard_error

    def detectable(self, probability: float = UPPER, power: float = POWER) -> float:
        """The effect that a one-sided test at level 1 - `probability` detects with this power."""
        quantiles = sum(student_t(self.degrees_of_freedom, p) for p in (probability, power))
        return quantiles * self.standard_error

    def p_value(self, estimate: float) -> float:
        """The one-sided p-value: the chance of an estimate this large if the true value is 0."""
        if self.standard_error == 0:
            return 0.0 if estimate > 0 else 1.0
        return float(stdtr(self.degrees_of_freedom, -estimate / self.standard_error))


def student_t(degrees_of_freedom: float, probability: float) -> float:
    """Quantile of Student's t distribution; infinite degrees of freedom: the normal one."""
    return float(stdtrit(degrees_of_freedom, probability))


def of_mean(values: ArrayLike) -> Uncertainty | None:
    """The uncertainty of the mean of independent values: s / sqrt(n) with n - 1 degrees of freedom;
    None below MIN_UNITS."""
    array = np.asarray(values, dtype=np.float64)
    n = len(array)
    if n < MIN_UNITS:
        return None
    return Uncertainty(
        standard_error=float(array.std(ddof=1)) / math.sqrt(n), degrees_of_freedom=n - 1.0
    )


def jackknife(left_out: ArrayLike, weights: ArrayLike) -> Uncertainty | None:
    """The uncertainty of an estimate, from its n values with one unit left out; None below
    MIN_UNITS.

    Standard error: sqrt((n - 1) / n * sum((value - mean)**2)) (Quenouille 1956; Tukey 1958).
    Degrees of freedom: effective number of units - 1, at least 1. The effective number is
    1 / sum(w**2) (Kish 1965) for weights w that sum to 1, so that a long prompt counts as one.
    """
    values = np.asarray(left_out, dtype=np.float64)
    shares = np.asarray(weights, dtype=np.float64)
    n = len(values)
    if n < MIN_UNITS:
        return None
    return Uncertainty(
        standard_error=math.sqrt((n - 1) ** 2 / n * np.var(values, ddof=1)),
        degrees_of_freedom=max(1.0, 1.0 / float(shares @ shares) - 1.0),
    )


def combined(first: Uncertainty, second: Uncertainty) -> Uncertainty:
    """The uncertainty of a sum with two independent errors: their variances add.

    Degrees of freedom: (v1 + v2)**2 / (v1**2 / f1 + v2**2 / f2), or those of `first` if this is
    0 / 0. Source: Satterthwaite 1946; Welch 1947.
    """
    variances = [spread.standard_error**2 for spread in (first, second)]
    weights = sum(
        variance**2 / spread.degrees_of_freedom
        for variance, spread in zip(variances, (first, second), strict=True)
    )
    return Uncertainty(
        standard_error=math.sqrt(sum(variances)),
        degrees_of_freedom=sum(variances) ** 2 / weights if weights else first.degrees_of_freedom,
    )


def cautiously_combined(first: Uncertainty, second: Uncertainty) -> Uncertainty:
    """Like `combined`, but safe if one variance is from few units and may be far too small.

    The quantile of Student's t is the mean of both quantiles, weighted by variance; the degrees of
    freedom are those with this quantile. Source: Cochran and Cox 1957, Experimental Designs, 4.14.
    """
    spreads = (first, second)
    both = combined(first, second)
    if both.standard_error == 0:
        return both
    variances = [spread.standard_error**2 for spread in spreads]
    quantiles = [student_t(spread.degrees_of_freedom, UPPER) for spread in spreads]
    quantile = float(np.average(quantiles, weights=variances))
    return replace(both, degrees_of_freedom=float(stdtridf(UPPER, quantile)))
