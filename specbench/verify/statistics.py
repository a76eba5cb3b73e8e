"""Tests of uniform, independent numbers, each with a p-value; no torch.

Shape suffixes: N tokens, C cells, R concentrations.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import gammaln
from scipy.stats import binom, kstest, norm

from specbench.stats.multiple_testing import mean_ratio_p_value
from specbench.verify.evidence import Expected, Floats, JointCounts

POWER = 0.80
NUM_TAILS = 20  # shares of 1/2, 1/4 .. 2**-20
TAIL = 2.0**-10  # the one whose detectable excess is told
_SPARE = 1.1  # texts of one cell show a little less than those of another
_CONCENTRATIONS = 4.0 ** np.arange(1, 11)  # from distributions far from the stated one to near ones


class Detectable(NamedTuple):
    """Shares of all tokens that, moved, are found in 80 % of calls.

    `shift`: from the target's likelier half to the less likely one, or back; no distribution closer
    than this in total variation can do more. `tail`: to its least likely 2**-10.
    """

    shift: float
    tail: float


def tail_p_value(surprise_N: Floats) -> float:
    """Are there too many or too few tokens in the target's least likely 1/2, 1/4 ..?

    A two-sided binomial test a share, the smallest p-value times their number (Bonferroni). The
    first shares see a distribution that is too flat or too steep. The far ones see drafts that were
    accepted although the target finds them unlikely: few, but a thousand times as many as there
    should be, which a Kolmogorov-Smirnov distance would not notice.
    """
    n = len(surprise_N)
    shares = 0.5 ** np.arange(1, NUM_TAILS + 1)
    counts = np.array([(surprise_N < share).sum() for share in shares])
    above, below = binom.sf(counts - 1, n, shares), binom.cdf(counts, n, shares)
    return float(min(1.0, 2 * NUM_TAILS * np.minimum(above, below).min()))


def temperature_p_value(log_likelihoods: Mapping[float, float]) -> float:
    """Was the temperature another one than what was asked for?

    Exact for any number of tokens: by the likelihood ratios of the others to it.
    """
    ratios = [value - log_likelihoods[1.0] for f, value in log_likelihoods.items() if f != 1.0]
    return mean_ratio_p_value(ratios)


def control_p_value(colder: Expected, num_others: int) -> float:
    """What `temperature_p_value` is at most, in 80 % of calls, for tokens that are colder.

    How sharp the test is follows from the distributions. Holding the tokens themselves to a lower
    temperature would say it with all the noise of a test: with 8,192 tokens of the embedded pair,
    one sound cell in 20 would not be told apart, and half of all calls over 17 cells.
    """
    ratio = colder.mean - norm.ppf(POWER) * math.sqrt(colder.variance)
    return float(np.exp(min(0.0, math.log(num_others) - ratio)))


def tokens_for_control(colder: Expected, num_tokens: int, num_others: int, alpha: float) -> float:
    """How many tokens bring `control_p_value` below `alpha`, if `colder` is the sum over so many.

    Infinite if no number does.
    """
    mean, deviation = colder.mean, norm.ppf(POWER) * math.sqrt(colder.variance)
    if mean <= 0:
        return math.inf
    root = math.sqrt(deviation**2 + 4 * mean * math.log(num_others / alpha))
    return _SPARE * num_tokens * ((deviation + root) / (2 * mean)) ** 2


def uniform_p_value(identity_N: Floats) -> float:
    """Kolmogorov-Smirnov: tokens that are preferred for what they are, likely or not.

    Tokens lie in the order of their ids, as what prefers some of them does: a draft's smaller
    vocabulary, padding, a head that is split over devices.
    """
    return float(kstest(identity_N, "uniform", method="exact").pvalue)


def serial_p_value(identity_N: Floats) -> float:
    """Does a token tell what the next one is, beyond what the target says of it?

    The normal test of the correlation at lag 1: it sees noise that is used twice.
    """
    centred_N = identity_N - 0.5
    products_N = centred_N[1:] * centred_N[:-1]
    z = 12 * products_N.sum() / math.sqrt(len(products_N))
    return float(2 * norm.sf(abs(z)))


def joint_p_value(counts: JointCounts) -> float:
    """Do whole short texts come as often as the distribution says, however rare some of them are?

    The likelihood of the counts under distributions scattered about the stated one, Dirichlet with
    a mean of it and several concentrations, is held against that under the distribution itself,
    whatever the number of texts and cells. A chi-square's is none so far out where cells are
    expected seldom. Source of the ratio: Good 1967, A Bayesian significance test for multinomial
    distributions.
    """
    if counts.observed_C[counts.probability_C == 0].any():
        return 0.0
    seen_C = counts.observed_C > 0
    x_C, p_C = counts.observed_C[seen_C], counts.probability_C[seen_C]
    a_R, mean_RC = _CONCENTRATIONS, np.multiply.outer(_CONCENTRATIONS, p_C)
    ratios_R = gammaln(a_R) - gammaln(a_R + x_C.sum()) - (x_C * np.log(p_C)).sum()
    ratios_R += (gammaln(mean_RC + x_C) - gammaln(mean_RC)).sum(axis=1)
    return mean_ratio_p_value(ratios_R)


def detectable(num_tokens: int, alpha: float) -> Detectable:
    """What `tail_p_value` finds below `alpha`, in 80 % of calls, among so many tokens."""
    return Detectable(*(_excess(num_tokens, share, alpha) for share in (0.5, TAIL)))


def _excess(n: int, share: float, alpha: float) -> float:
    """How much more likely than `share` it must be to fall there."""
    least = binom.isf(alpha / (2 * NUM_TAILS), n, share) + 1
    if least > n:
        return 1.0 - share
    return float(brentq(lambda p: binom.sf(least - 1, n, p) - POWER, share, 1.0) - share)
