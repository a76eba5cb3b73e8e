"""Takes turns: what is compared is measured in one process, one sample of each after another."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from scipy.stats import binom

from specbench.records import Interval

CONFIDENCE = 0.95


class Sample(NamedTuple):
    """What one measurement of one thing took."""

    wall_s: float
    cpu_s: float


def take_turns(
    measure: Mapping[str, Callable[[], Sample]],
    num_samples: int,
    *,
    may_go_on: Callable[[], bool] = lambda: True,
) -> dict[str, list[Sample]]:
    """Samples of each, in rounds whose order is turned by one every time.

    A round is finished once it is begun, so all have equally many; `may_go_on` is asked before
    each round but the first.
    """
    samples: dict[str, list[Sample]] = {name: [] for name in measure}
    names = list(measure)
    for turn in range(num_samples):
        if turn and not may_go_on():
            break
        first = turn % len(names)
        for name in (*names[first:], *names[:first]):
            samples[name].append(measure[name]())
    return samples


def median_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Interval:
    """The median of the ratios of neighbours, and a 95% interval that assumes no distribution.

    Neighbours are of one round, so that drift of the machine cancels. The interval's ends are
    order statistics: the median lies between them unless a fair coin falls on one side too
    often. None where there are too few (below 6) for any.
    """
    ratios = sorted(a / b for a, b in zip(numerators, denominators, strict=True))
    below = int(binom.ppf((1 - CONFIDENCE) / 2, len(ratios), 0.5))
    if not below:
        return Interval(estimate=median(ratios), low=None, high=None)
    return Interval(estimate=median(ratios), low=ratios[below - 1], high=ratios[-below])
