"""One choice for several cases: the one that gives up least where it gives up most."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class LeastRegret(NamedTuple):
    """Which option it is, and the share of the best rate that each case gives up (0.05: 5 %)."""

    place: int
    regret: dict[str, float]


def minimax_regret(
    options: Sequence[Mapping[str, float]], best: Mapping[str, float], *, tie: float
) -> LeastRegret:
    """The option whose worst regret over the cases is least (Savage 1951).

    An option has a rate for every case; `best` has that of what each case would choose for itself,
    whether or not it is an option here. Regret: 1 - rate / best, and nothing for a higher rate,
    which was not chosen for want of proof. Worst regrets within `tie` of the least are
    equal, and the first such option wins: options come plainest first. ValueError without one.
    """
    regrets = [
        {case: max(0.0, 1 - rate / best[case]) for case, rate in option.items()}
        for option in options
    ]
    worst = [max(regret.values()) for regret in regrets]
    least = min(worst)
    place = next(i for i, regret in enumerate(worst) if regret <= least + tie)
    return LeastRegret(place, regrets[place])
