"""The uncertainty of an estimate: its standard error, with its degrees of freedom."""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtr, stdtridf, stdtrit

MIN_UNITS = 5  # prompts, or passes: fewer give no spread
CONFIDENCE = 0.95
UPPER = (1 + CONFIDENCE) / 2  # the probability below the upper end of a two-sided interval
POWER = 0.80


@dataclass(frozen=True, kw_only=True, slots=True)
class Uncertainty:
    """In the unit of the estimate, or of its logarithm; infinite freedom: known exactly."""

    standard_error: float
    degrees_of_freedom: float

    def margin(self, probability: float = UPPER) -> float:
        """The upper limit of true value - estimate, in `probability` of cases."""
        return student_t(self.degrees_of_freedom, probability) * self.standard_error

    def detectable(self, probability: float = UPPER, power: float = POWER) -> float:
        """The effect that a test of this size, 1 - `probability`, finds in `power` of cases."""
        quantiles = sum(student_t(self.degrees_of_freedom, p) for p in (probability, power))
        return quantiles * self.standard_error

    def p_value(self, estimate: float) -> float:
        """The chance of an estimate like this, or larger, if the true value is 0: one-sided."""
        if self.standard_error == 0:
            return 0.0 if estimate > 0 else 1.0
        return float(stdtr(self.degrees_of_freedom, -estimate / self.standard_error))


def student_t(degrees_of_freedom: float, probability: float) -> float:
    """Quantile of Student's t distribution; of the normal one at infinite freedom."""
    return float(stdtrit(degrees_of_freedom, probability))


def of_mean(values: ArrayLike) -> Uncertainty | None:
    """Spread of the mean of independent values: s / sqrt(n) with n - 1; None below MIN_UNITS."""
    array = np.asarray(values, dtype=np.float64)
    n = len(array)
    if n < MIN_UNITS:
        return None
    return Uncertainty(
        standard_error=float(array.std(ddof=1)) / math.sqrt(n), degrees_of_freedom=n - 1.0
    )


def jackknife(left_out: ArrayLike, weights: ArrayLike) -> Uncertainty | None:
    """Spread of an estimate, from its values without each of n units; None below MIN_UNITS.

    Standard error: sqrt((n - 1) / n * sum((value - mean)**2)) (Quenouille 1956; Tukey 1958).
    Degrees of freedom: effective number of units - 1, at least 1. A unit counts by its share w of
    the whole (Kish 1965: 1 / sum(w**2)), so that one long prompt is not taken for many.
    `weights` sum to 1.
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
    """Spread of a sum, or of a product's logarithm, of two independent errors: variances add.

    Degrees of freedom: (v1 + v2)**2 / (v1**2 / f1 + v2**2 / f2), or the first's if that is
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
    """`combined`, if one variance is over too few units and may be far too small.

    Student's quantile is then the mean of both, weighted by variance. Source: Cochran and Cox 1957,
    Experimental Designs, 4.14; the freedom is the one whose quantile that is.
    """
    spreads = (first, second)
    both = combined(first, second)
    if both.standard_error == 0:
        return both
    variances = [spread.standard_error**2 for spread in spreads]
    quantiles = [student_t(spread.degrees_of_freedom, UPPER) for spread in spreads]
    quantile = float(np.average(quantiles, weights=variances))
    return replace(both, degrees_of_freedom=float(stdtridf(UPPER, quantile)))
