"""Tests of sampled tokens against the target's distribution, and distances from it; no torch.

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
NUM_TAILS = 20  # tails with shares 1/2, 1/4 .. 2**-20
TAIL = 2.0**-10  # the share for which the detectable excess is reported
_SPARE = 1.1  # margin, because the texts of some cells are slightly less informative
_CONCENTRATIONS = 4.0 ** np.arange(1, 11)  # from distributions far from the expected one to near


class Detectable(NamedTuple):
    """The shares of all tokens whose move to other tokens is detected in 80% of calls.

    `shift`: a move from the likelier half of the target's distribution to the less likely half, or
    back; distributions that are closer in total variation move fewer. `tail`: a move to the least
    likely 2**-10.
    """

    shift: float
    tail: float


def tail_p_value(surprise_N: Floats) -> float:
    """Tests for too many or too few tokens in the target's least likely 1/2, 1/4 .. of tokens.

    It is a two-sided binomial test per tail; the smallest p-value is multiplied by the number of
    tests (Bonferroni). The largest tails detect a distribution that is too flat or too steep. The
    smallest ones detect wrongly accepted draft tokens that the target finds unlikely: only a few,
    but a thousand times as many as expected, which a Kolmogorov-Smirnov distance would not detect.
    """
    n = len(surprise_N)
    shares = 0.5 ** np.arange(1, NUM_TAILS + 1)
    counts = np.array([(surprise_N < share).sum() for share in shares])
    above, below = binom.sf(counts - 1, n, shares), binom.cdf(counts, n, shares)
    return float(min(1.0, 2 * NUM_TAILS * np.minimum(above, below).min()))


def temperature_p_value(log_likelihoods: Mapping[float, float]) -> float:
    """Tests for a temperature that differs from the requested one.

    The test uses the likelihood ratios of other temperatures to the requested one, and is valid for
    any number of tokens.
    """
    ratios = [value - log_likelihoods[1.0] for f, value in log_likelihoods.items() if f != 1.0]
    return mean_ratio_p_value(ratios)


def control_p_value(colder: SumMoments, num_others: int) -> float:
    """The bound that `temperature_p_value` stays below in 80% of calls for tokens at the lower
    temperature.

    It is computed from the distributions. A test of the sampled tokens against a lower temperature
    would add noise: with 8,192 tokens of the demo models, one sound cell in 20 would be undecided,
    and half of all calls with 17 cells.
    """
    ratio = colder.mean - norm.ppf(POWER) * math.sqrt(colder.variance)
    return float(np.exp(min(0.0, math.log(num_others) - ratio)))


def tokens_for_control(colder: SumMoments, num_tokens: int, num_others: int, alpha: float) -> float:
    """The number of tokens at which `control_p_value` is below `alpha`; infinite if there is none.

    `colder` is the sum over `num_tokens`.
    """
    mean, deviation = colder.mean, norm.ppf(POWER) * math.sqrt(colder.variance)
    if mean <= 0:
        return math.inf
    root = math.sqrt(deviation**2 + 4 * mean * math.log(num_others / alpha))
    return _SPARE * num_tokens * ((deviation + root) / (2 * mean)) ** 2


def uniform_p_value(identity_N: Floats) -> float:
    """Tests whether some tokens are too frequent, likely or not (Kolmogorov-Smirnov).

    Tokens are ordered by id, because typical faults affect ranges of ids: a draft model's smaller
    vocabulary, padding, an output head that is split over devices.
    """
    return float(kstest(identity_N, "uniform", method="exact").pvalue)


def serial_p_value(identity_N: Floats) -> float:
    """Tests whether tokens depend on the previous one beyond the target's distribution.

    It is the normal test of the correlation at lag 1, which detects noise that is used twice.
    """
    centered_N = identity_N - 0.5
    products_N = centered_N[1:] * centered_N[:-1]
    z = 12 * products_N.sum() / math.sqrt(len(products_N))
    return float(2 * norm.sf(abs(z)))


def joint_p_value(counts: JointCounts) -> float:
    """Tests whether whole short texts occur as often as expected, even if some are rare.

    It compares the likelihood of the counts under Dirichlet distributions, with the expected
    distribution as their mean and several concentrations, with that under the expected
    distribution. It is valid for any number of texts and cells, unlike a chi-square test with low
    expected counts. Source of the ratio: Good 1967, A Bayesian significance test for multinomial
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
    """The deviations for which `tail_p_value` is below `alpha` in 80% of calls."""
    return Detectable(*(_excess(num_tokens, share, alpha) for share in (0.5, TAIL)))


def _excess(n: int, share: float, alpha: float) -> float:
    """The excess over `share`, of `n` tokens, that is detected."""
    least = binom.isf(alpha / (2 * NUM_TAILS), n, share) + 1
    if least > n:
        return 1.0 - share
    return float(brentq(lambda p: binom.sf(least - 1, n, p) - POWER, share, 1.0) - share)


@dataclass
class _PositionTally:
    """Counts of the tokens at one position after one prompt."""

    expected_V: Floats  # the expected number of occurrences of each token
    variance_V: Floats
    observed_V: Floats
    num: int = 0


@dataclass
class Tally:
    """Observed and expected counts of the tokens in many outputs of a few prompts."""

    _positions: dict[tuple[str, int], _PositionTally] = field(default_factory=dict)

    def add(
        self, prompt: str, position: int, probs_NV: Floats, tokens_N: NDArray[np.int64]
    ) -> None:
        """Count tokens from a position on, each with its distribution given the tokens before."""
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
        """The total variation at each position, as the mean over prompts."""
        by_position: dict[int, list[_PositionTally]] = {}
        for (_, position), counts in self._positions.items():
            by_position.setdefault(position, []).append(counts)
        return tuple(_distance(position, by_position[position]) for position in sorted(by_position))


def _distance(position: int, by_prompt: Sequence[_PositionTally]) -> Distance:
    num = sum(counts.num for counts in by_prompt)
    total_variation = sum(float(np.abs(c.observed_V - c.expected_V).sum()) / 2 for c in by_prompt)
    floor = sum(_mean_deviation(c.expected_V, c.variance_V) / 2 for c in by_prompt)
    return Distance(position=position, total_variation=total_variation / num, floor=floor / num)


def _mean_deviation(mean_V: Floats, variance_V: Floats) -> float:
    """The sum of E|X - mean| over the counts X of all tokens; exact for rare tokens or many draws.

    It is the mean deviation of a Poisson variable, scaled to the smaller variance. Source: Crow
    1958, The mean deviation of the Poisson distribution.
    """
    whole_V = np.floor(mean_V)
    poisson_V = 2 * np.exp(xlogy(whole_V + 1, mean_V) - mean_V - gammaln(whole_V + 1))
    narrowing_V = np.sqrt(variance_V / np.maximum(mean_V, np.finfo(np.float64).tiny))
    return float((poisson_V * narrowing_V).sum())
