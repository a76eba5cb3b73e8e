"""A figure in two runs: its change, and the change that identical runs would show."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specbench.gate.figures import CellFigures
from specbench.stats.crossed import MIN_CYCLES
from specbench.stats.spread import Uncertainty, combined, jackknife


class Runs(NamedTuple):
    """Number of pooled runs of each side."""

    baseline: int
    candidate: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """How much worse a metric became.

    `loss` and `limit` are logarithms of ratios, positive if worse; if values are not all positive,
    shares of the baseline's value.
    """

    loss: float
    limit: float  # the loss that is tolerated
    spread: Uncertainty | None  # None: too few units for one
    is_log: bool = True

    @property
    def p_value(self) -> float | None:
        """The probability of a loss at least this large if the true one is at the limit."""
        return None if self.spread is None else self.spread.p_value(self.loss - self.limit)

    def bound(self, probability: float) -> float | None:
        """The upper bound of the true loss, in `probability` of all comparisons."""
        return None if self.spread is None else self.loss + self.spread.margin(probability)

    def detectable(self, false_alarm: float) -> float | None:
        """The loss beyond the limit that a test of this size detects in 80% of gates."""
        return None if self.spread is None else self.spread.detectable(1 - false_alarm)

    def as_change(self, loss: float, *, higher_is_better: bool) -> float:
        """A loss as a relative change of the metric: -0.05 is 5% less."""
        signed = -loss if higher_is_better else loss
        return math.expm1(min(signed, 700.0)) if self.is_log else signed  # within a float


def compare(
    baseline: CellFigures,
    candidate: CellFigures,
    name: str,
    tolerance: float,
    *,
    higher_is_better: bool,
    floor: float,
    runs: Runs,
) -> Comparison | None:
    """The change of a metric that both cells have; None if the baseline's is 0.

    `floor` is the deviation between identical runs that is assumed if no side shows one. The
    spread is the larger of two estimates. One is the paired jackknife over units, as in
    stats/spread.py: it contains differences between prompts. The other is the deviation between
    whole runs times sqrt(1 / runs + 1 / runs): it contains what the prompts of a run share. Both
    contain the noise of single prompts, so the larger one is the moment estimate of the sum of
    the variances (two-way layout, runs x prompts; Searle, Casella and McCulloch 1992, chapter 4).
    """
    before, after = baseline.figures[name], candidate.figures[name]
    values = (before.value, after.value, *(before.without or ()), *(after.without or ()))
    is_log = min(values) > 0
    if before.value == 0:
        return None
    scale: Callable[[float], float] = math.log if is_log else _shares_of(before.value)
    sign = -1.0 if higher_is_better else 1.0
    over_runs = _over_runs((before.deviation, after.deviation), floor, runs)
    if baseline.units or candidate.units:
        over_units = _over_units(baseline, candidate, name, scale)
    else:  # aggregates of another tool: only whole runs show their spread
        over_units = over_runs if sum(runs) > len(runs) else None
    return Comparison(
        loss=sign * (scale(after.value) - scale(before.value)),
        limit=_limit(tolerance, higher_is_better=higher_is_better) if is_log else tolerance,
        spread=_larger(over_units, over_runs) if over_units else None,
        is_log=is_log,
    )


def _limit(tolerance: float, *, higher_is_better: bool) -> float:
    """The tolerance as a logarithm: of a decrease if higher is better, else of an increase."""
    return -math.log1p(-tolerance) if higher_is_better else math.log1p(tolerance)


def _shares_of(whole: float) -> Callable[[float], float]:
    return lambda value: value / abs(whole)


def _over_units(
    baseline: CellFigures, candidate: CellFigures, name: str, scale: Callable[[float], float]
) -> Uncertainty | None:
    """The spread over units: paired if both sides have the same ones, else both spreads added.

    The spreads of cycles are always added: they are different starts of a server.
    """
    before, after = (_left_out(cell, name, scale) for cell in (baseline, candidate))
    if before is None or after is None:
        return None
    if baseline.has_cycles and candidate.has_cycles:
        return _combined(_of_cycles(before), _of_cycles(after))
    shares = [np.array(cell.num_tokens) / sum(cell.num_tokens) for cell in (baseline, candidate)]
    if baseline.units == candidate.units:
        return _jackknife(after - before, (shares[0] + shares[1]) / 2)
    return _combined(_jackknife(before, shares[0]), _jackknife(after, shares[1]))


def _combined(before: Uncertainty | None, after: Uncertainty | None) -> Uncertainty | None:
    return combined(before, after) if before and after else None


def _left_out(
    cell: CellFigures, name: str, scale: Callable[[float], float]
) -> NDArray[np.float64] | None:
    figure = cell.figures[name]
    if figure.without is None:
        return None
    return np.array([scale(v) for v in figure.without or (figure.value,) * len(cell.units)])


def _jackknife(left_out: NDArray[np.float64], weights: NDArray[np.float64]) -> Uncertainty | None:
    """The jackknife; a figure that does not depend on the units is exact."""
    if len(left_out) and np.ptp(left_out) == 0:
        return Uncertainty(standard_error=0.0, degrees_of_freedom=math.inf)
    return jackknife(left_out, weights)


def _of_cycles(left_out: NDArray[np.float64]) -> Uncertainty | None:
    """The jackknife over cycles, which are few and have equal weights."""
    n = len(left_out)
    if n < MIN_CYCLES:
        return None
    return Uncertainty(
        standard_error=(n - 1) * float(left_out.std(ddof=1)) / math.sqrt(n),
        degrees_of_freedom=n - 1.0 if np.ptp(left_out) else math.inf,
    )


def _over_runs(
    deviations: tuple[float | None, float | None], floor: float, runs: Runs
) -> Uncertainty:
    """The deviation between runs, pooled over both sides; for single runs the floor."""
    freedom = sum(runs) - len(runs)
    squares = sum(
        (count - 1) * (deviation or 0.0) ** 2
        for count, deviation in zip(runs, deviations, strict=True)
    )
    return Uncertainty(
        standard_error=(math.sqrt(squares / freedom) if freedom else floor)
        * math.sqrt(sum(1 / count for count in runs)),
        degrees_of_freedom=freedom or math.inf,
    )


def _larger(first: Uncertainty, second: Uncertainty) -> Uncertainty:
    """The spread with the larger margin, which is wider if the spread itself is uncertain."""
    return max(first, second, key=lambda spread: spread.margin(0.95))
