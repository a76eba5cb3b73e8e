"""Tests of sampled tokens against the target's distribution, and their distance from it; no torch.

Shape suffixes: N tokens, C cells, R concentrations, V vocabulary.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import gammaln, xlogy
from scipy.stats import binom, kstest, norm

from specbench.stats.multiple_testing import mean_ratio_p_value
from specbench.verify.evidence import Distance, Floats, JointCounts, SumMoments

POWER = 0.80
NUM_TAILS = 20  # shares of 1/2, 1/4 .. 2**-20
TAIL = 2.0**-10  # the share whose detectable excess is reported
_SPARE = 1.1  # texts of some cells are a little less informative than those of others
_CONCENTRATIONS = 4.0 ** np.arange(1, 11)  # from distributions far from the stated one to near ones


class Detectable(NamedTuple):
    """Shares of all tokens that, if moved, are detected in 80% of calls.

    `shift`: from the target's likelier half to the less likely one, or back; no distribution closer
    than this in total variation moves more. `tail`: to its least likely 2**-10.
    """

    shift: float
    tail: float


def tail_p_value(surprise_N: Floats) -> float:
    """Are there too many or too few tokens in the target's least likely 1/2, 1/4 ..?

    A two-sided binomial test per share, the smallest p-value times their number (Bonferroni). The
    first shares detect a distribution that is too flat or too steep. The far ones detect accepted
    draft tokens that the target finds unlikely: few, but a thousand times as many as there should
    be, which a Kolmogorov-Smirnov distance would not show.
    """
    n = len(surprise_N)
    shares = 0.5 ** np.arange(1, NUM_TAILS + 1)
    counts = np.array([(surprise_N < share).sum() for share in shares])
    above, below = binom.sf(counts - 1, n, shares), binom.cdf(counts, n, shares)
    return float(min(1.0, 2 * NUM_TAILS * np.minimum(above, below).min()))


def temperature_p_value(log_likelihoods: Mapping[float, float]) -> float:
    """Was the temperature another one than the requested one?

    Exact for any number of tokens: by the likelihood ratios of the others to the requested one.
    """
    ratios = [value - log_likelihoods[1.0] for f, value in log_likelihoods.items() if f != 1.0]
    return mean_ratio_p_value(ratios)


def control_p_value(colder: SumMoments, num_others: int) -> float:
    """The bound on `temperature_p_value`, in 80% of calls, for tokens at the lower temperature.

    It follows from the distributions. Testing the sampled tokens against a lower temperature would
    add the noise of a test: with 8,192 tokens of the demo models, one sound cell in 20 would stay
    undecided, and half of all calls over 17 cells.
    """
    ratio = colder.mean - norm.ppf(POWER) * math.sqrt(colder.variance)
    return float(np.exp(min(0.0, math.log(num_others) - ratio)))


def tokens_for_control(colder: SumMoments, num_tokens: int, num_others: int, alpha: float) -> float:
    """Number of tokens that brings `control_p_value` below `alpha`; infinite if none does.

    `colder` is the sum over `num_tokens`.
    """
    mean, deviation = colder.mean, norm.ppf(POWER) * math.sqrt(colder.variance)
    if mean <= 0:
        return math.inf
    root = math.sqrt(deviation**2 + 4 * mean * math.log(num_others / alpha))
    return _SPARE * num_tokens * ((deviation + root) / (2 * mean)) ** 2


def uniform_p_value(identity_N: Floats) -> float:
    """Kolmogorov-Smirnov: are some tokens preferred, likely or not?

    Tokens are ordered by id, as are the typical faults: a draft model's smaller vocabulary,
    padding, a head that is split over devices.
    """
    return float(kstest(identity_N, "uniform", method="exact").pvalue)


def serial_p_value(identity_N: Floats) -> float:
    """Whether a token depends on the previous one, unlike in the target's distribution.

    The normal test of the correlation at lag 1: it detects noise that is used twice.
    """
    centered_N = identity_N - 0.5
    products_N = centered_N[1:] * centered_N[:-1]
    z = 12 * products_N.sum() / math.sqrt(len(products_N))
    return float(2 * norm.sf(abs(z)))


def joint_p_value(counts: JointCounts) -> float:
    """Do whole short texts occur as often as the distribution gives, however rare some of them are?

    The likelihood of the counts under Dirichlet distributions with the stated one as their mean and
    several concentrations is compared with that under the stated distribution. It is valid for any
    number of texts and cells; a chi-square's tail is not if some cells are expected rarely. Source
    of the ratio: Good 1967, A Bayesian significance test for multinomial distributions.
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
    """The deviation for which `tail_p_value` is below `alpha` in 80% of calls."""
    return Detectable(*(_excess(num_tokens, share, alpha) for share in (0.5, TAIL)))


def _excess(n: int, share: float, alpha: float) -> float:
    """The excess over `share` that is detected."""
    least = binom.isf(alpha / (2 * NUM_TAILS), n, share) + 1
    if least > n:
        return 1.0 - share
    return float(brentq(lambda p: binom.sf(least - 1, n, p) - POWER, share, 1.0) - share)


@dataclass
class _PositionTally:
    """Tokens at one position after one prompt."""

    expected_V: Floats  # how often each token should have occurred
    variance_V: Floats
    observed_V: Floats
    num: int = 0


@dataclass
class Tally:
    """Counts of the tokens of many outputs of a few prompts, observed and expected."""

    _positions: dict[tuple[str, int], _PositionTally] = field(default_factory=dict)

    def add(
        self, prompt: str, position: int, probs_NV: Floats, tokens_N: NDArray[np.int64]
    ) -> None:
        """Count tokens from a position on, each with its probabilities given the tokens before."""
        for i, (probs_V, token) in enumerate(zip(probs_NV, tokens_N, strict=True)):
            key = (prompt, position + i)
            if key not in self._positions:
                self._positions[key] = _PositionTally(*np.zeros((3, len(probs_V))))
            counts = self._positions[key]
            counts.expected_V += probs_V
            counts.variance_V += probs_V * (1 - probs_V)
            counts.observed_V[token] += 1
            counts.num += 1

    def distances(self) -> tuple[Distance, ...]:
        """Total variation at each position: the mean of those of each prompt."""
        by_position: dict[int, list[_PositionTally]] = {}
        for (_, position), counts in self._positions.items():
            by_position.setdefault(position, []).append(counts)
        return tuple(_distance(position, by_position[position]) for position in sorted(by_position))


def _distance(position: int, by_prompt: Sequence[_PositionTally]) -> Distance:
    num = sum(counts.num for counts in by_prompt)
    apart = sum(float(np.abs(c.observed_V - c.expected_V).sum()) / 2 for c in by_prompt)
    floor = sum(_mean_deviation(c.expected_V, c.variance_V) / 2 for c in by_prompt)
    return Distance(position=position, total_variation=apart / num, floor=floor / num)


def _mean_deviation(mean_V: Floats, variance_V: Floats) -> float:
    """Sum of E|X - mean| of the count of each token: exact for rare tokens, and for many draws.

    The mean deviation of a Poisson number, scaled to the smaller variance. Source: Crow 1958, The
    mean deviation of the Poisson distribution.
    """
    whole_V = np.floor(mean_V)
    poisson_V = 2 * np.exp(xlogy(whole_V + 1, mean_V) - mean_V - gammaln(whole_V + 1))
    narrowing_V = np.sqrt(variance_V / np.maximum(mean_V, np.finfo(np.float64).tiny))
    return float((poisson_V * narrowing_V).sum())
