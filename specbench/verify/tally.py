"""How far sampled tokens are from what they should be, position by position; no torch.

A description beside the tests of `statistics.py`: where a fault lies, and how large it is.
Shape suffixes: N tokens at neighbouring positions, V vocabulary.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, xlogy

from specbench.verify.evidence import Distance, Floats

END = -1  # stands where a text has ended


@dataclass
class _PositionTally:
    """What came at one position after one prompt."""

    expected_V: Floats  # how often each token should have come
    variance_V: Floats
    observed_V: Floats
    num: int = 0


@dataclass
class Tally:
    """Tokens of many answers to a few prompts, beside the probabilities they were drawn with."""

    _places: dict[tuple[str, int], _PositionTally] = field(default_factory=dict)

    def add(
        self, prompt: str, position: int, probs_NV: Floats, tokens_N: NDArray[np.int64]
    ) -> None:
        """Tokens from a position on, each with the probabilities given those before it."""
        for i, (probs_V, token) in enumerate(zip(probs_NV, tokens_N, strict=True)):
            key = (prompt, position + i)
            if key not in self._places:
                self._places[key] = _PositionTally(*np.zeros((3, len(probs_V))))
            place = self._places[key]
            place.expected_V += probs_V
            place.variance_V += probs_V * (1 - probs_V)
            place.observed_V[token] += 1
            place.num += 1

    def distances(self) -> tuple[Distance, ...]:
        """Total variation at each position: of each prompt by itself, then the mean of these."""
        found = []
        for at in sorted({position for _, position in self._places}):
            places = [place for (_, position), place in self._places.items() if position == at]
            num = sum(place.num for place in places)
            apart = sum(float(np.abs(p.observed_V - p.expected_V).sum()) / 2 for p in places)
            floor = sum(_mean_deviation(p.expected_V, p.variance_V) / 2 for p in places)
            found.append(Distance(position=at, total_variation=apart / num, floor=floor / num))
        return tuple(found)


def between(
    one: Sequence[tuple[str, tuple[int, ...]]], other: Sequence[tuple[str, tuple[int, ...]]]
) -> tuple[Distance, ...]:
    """Total variation between two sets of answers, each with its prompt, at each position."""
    length = max((len(text) for _, text in (*one, *other)), default=0)
    found = []
    for at in range(length):
        ours, theirs = _by_prompt(one, at), _by_prompt(other, at)
        apart = floor = num = 0.0
        for prompt in ours.keys() & theirs.keys():
            a, b = ours[prompt], theirs[prompt]
            n, m = a.total(), b.total()
            tokens = a.keys() | b.keys()
            a_V, b_V = (np.array([c[t] for t in tokens], dtype=np.float64) for c in (a, b))
            pooled_V = (a_V + b_V) / (n + m)
            spread_V = pooled_V * (1 - pooled_V) * (1 / n + 1 / m)
            apart += n * float(np.abs(a_V / n - b_V / m).sum()) / 2
            floor += n * float(np.sqrt(2 / np.pi * spread_V).sum()) / 2
            num += n
        if num:
            found.append(Distance(position=at, total_variation=apart / num, floor=floor / num))
    return tuple(found)


def _by_prompt(
    answers: Iterable[tuple[str, tuple[int, ...]]], at: int
) -> dict[str, "Counter[int]"]:
    """Tokens at a position; END where a text has just ended."""
    found: dict[str, Counter[int]] = {}
    for prompt, text in answers:
        if at <= len(text):
            found.setdefault(prompt, Counter())[text[at] if at < len(text) else END] += 1
    return found


def _mean_deviation(mean_V: Floats, variance_V: Floats) -> float:
    """Sum of E|X - mean| of how often each token comes: exact for rare ones, and for many draws.

    That of a Poisson number, narrowed as its variance is. Source: Crow 1958, The mean deviation of
    the Poisson distribution.
    """
    whole_V = np.floor(mean_V)
    poisson_V = 2 * np.exp(xlogy(whole_V + 1, mean_V) - mean_V - gammaln(whole_V + 1))
    narrowing_V = np.sqrt(variance_V / np.maximum(mean_V, np.finfo(np.float64).tiny))
    return float((poisson_V * narrowing_V).sum())
