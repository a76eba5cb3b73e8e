"""A figure in two runs: how far it moved, and how far it would move between identical runs."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr

from specbench.gate.figures import CellFigures
from specbench.stats.intervals import MIN_PROMPTS, POWER, student_t


class Runs(NamedTuple):
    """How many runs each side pools."""

    baseline: int
    candidate: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """A standard error and how well it is known; infinite freedom: exactly."""

    standard_error: float
    degrees_of_freedom: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """How much worse a metric became. `loss` and `limit` are logarithms of ratios, the worse way
    round and positive; where values are not all positive, shares of the baseline's value.
    """

    loss: float
    limit: float  # of a loss that is tolerated
    spread: Spread | None  # None: too few units for one
    is_log: bool = True

    @property
    def p_value(self) -> float | None:
        """The chance of a loss like this, or larger, where the true one is just tolerable."""
        if self.spread is None:
            return None
        beyond = self.loss - self.limit
        if self.spread.standard_error == 0:
            return 0.0 if beyond > 0 else 1.0
        statistic = beyond / self.spread.standard_error
        return float(stdtr(self.spread.degrees_of_freedom, -statistic))

    def bound(self, probability: float) -> float | None:
        """What the true loss is below, in `probability` of all comparisons."""
        if self.spread is None:
            return None
        quantile = student_t(self.spread.degrees_of_freedom, probability)
        return self.loss + quantile * self.spread.standard_error

    def detectable(self, false_alarm: float, power: float = POWER) -> float | None:
        """The loss beyond the limit that a test of this size would find, 1 in `power` times."""
        if self.spread is None:
            return None
        freedom = self.spread.degrees_of_freedom
        quantiles = student_t(freedom, 1 - false_alarm) + student_t(freedom, power)
        return quantiles * self.spread.standard_error

    def as_change(self, loss: float, *, higher_is_better: bool) -> float:
        """A loss as a relative change of the metric itself: -0.05 is 5 % less."""
        signed = -loss if higher_is_better else loss
        return math.expm1(signed) if self.is_log else signed


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
    """How a metric that both cells have moved; None where the baseline's is 0.

    `floor`: the deviation between identical runs that is taken for granted where no side shows
    one. The spread is the larger of two estimates. One is the paired jackknife over units, as in
    stats/intervals.py: it sees what differs from prompt to prompt. The other is the deviation
    between whole runs times sqrt(1 / runs + 1 / runs): it sees what the prompts of a run share.
    Both contain the noise of single prompts, so their larger one is the moment estimate of the
    sum of the variances (two-way layout, runs x prompts; Searle, Casella and McCulloch 1992,
    chapter 4).
    """
    before, after = baseline.figures[name], candidate.figures[name]
    values = (before.value, after.value, *(before.without or ()), *(after.without or ()))
    is_log = min(values) > 0
    if not is_log and before.value == 0:
        return None
    scale: Callable[[float], float] = math.log if is_log else _shares_of(before.value)
    sign = -1.0 if higher_is_better else 1.0
    over_runs = _over_runs((before.deviation, after.deviation), floor, runs)
    if baseline.units or candidate.units:
        over_units = _over_units(baseline, candidate, name, scale)
    else:  # aggregates of another tool: only whole runs show how far they scatter
        over_units = over_runs if sum(runs) > len(runs) else None
    return Comparison(
        loss=sign * (scale(after.value) - scale(before.value)),
        limit=_limit(tolerance, higher_is_better=higher_is_better) if is_log else tolerance,
        spread=_larger(over_units, over_runs) if over_units else None,
        is_log=is_log,
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted for each other, in order: below a the family has a false one in at most a.

    Source: Holm 1979, A simple sequentially rejective multiple test procedure.
    """
    order = np.argsort(p_values, kind="stable")
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for rank, i in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = highest
    return adjusted


def _limit(tolerance: float, *, higher_is_better: bool) -> float:
    """5 % less of what should be high, 5 % more of what should be low."""
    return -math.log1p(-tolerance) if higher_is_better else math.log1p(tolerance)


def _shares_of(whole: float) -> Callable[[float], float]:
    return lambda value: value / abs(whole)


def _over_units(
    baseline: CellFigures, candidate: CellFigures, name: str, scale: Callable[[float], float]
) -> Spread | None:
    """Paired where both sides have the same units, else the two spreads added."""
    before, after = (_left_out(cell, name, scale) for cell in (baseline, candidate))
    if before is None or after is None:
        return None
    if baseline.units == candidate.units:
        weights = [(np.array(c.num_tokens) / sum(c.num_tokens)) for c in (baseline, candidate)]
        return _jackknife(after - before, (weights[0] + weights[1]) / 2)
    spreads = [
        _jackknife(left_out, np.array(cell.num_tokens) / sum(cell.num_tokens))
        for left_out, cell in ((before, baseline), (after, candidate))
    ]
    return _sum(*spreads) if all(spreads) else None


def _left_out(
    cell: CellFigures, name: str, scale: Callable[[float], float]
) -> NDArray[np.float64] | None:
    figure = cell.figures[name]
    if figure.without is None:
        return None
    return np.array([scale(v) for v in figure.without or (figure.value,) * len(cell.units)])


def _jackknife(left_out: NDArray[np.float64], weights: NDArray[np.float64]) -> Spread | None:
    """Of a value without every unit in turn, as `intervals.log_ratio` has it for sums.

    Where no unit makes a difference none is needed: what does not vary is known exactly.
    """
    n = len(left_out)
    if n == 0 or np.ptp(left_out) == 0:
        return Spread(standard_error=0.0, degrees_of_freedom=math.inf) if n else None
    if n < MIN_PROMPTS:
        return None
    return Spread(
        standard_error=math.sqrt((n - 1) ** 2 / n * np.var(left_out, ddof=1)),
        degrees_of_freedom=max(1.0, 1.0 / float(weights @ weights) - 1.0),
    )


def _over_runs(deviations: tuple[float | None, float | None], floor: float, runs: Runs) -> Spread:
    """Of what both sides show, pooled; of single runs the documented one, taken as known."""
    freedom = sum(runs) - len(runs)
    squares = sum(
        (count - 1) * (deviation or 0.0) ** 2
        for count, deviation in zip(runs, deviations, strict=True)
    )
    return Spread(
        standard_error=(math.sqrt(squares / freedom) if freedom else floor)
        * math.sqrt(sum(1 / count for count in runs)),
        degrees_of_freedom=freedom or math.inf,
    )


def _larger(one: Spread, other: Spread) -> Spread:
    """The one that leaves more open; a spread of few runs is itself not well known."""
    return max(one, other, key=lambda s: s.standard_error * student_t(s.degrees_of_freedom, 0.95))


def _sum(one: Spread | None, other: Spread | None) -> Spread | None:
    """Of independent ones; Welch and Satterthwaite's degrees of freedom."""
    if one is None or other is None:
        return None
    variances = [spread.standard_error**2 for spread in (one, other)]
    if sum(variances) == 0:
        return one
    freedom = sum(v**2 / s.degrees_of_freedom for v, s in zip(variances, (one, other), strict=True))
    return Spread(
        standard_error=math.sqrt(sum(variances)),
        degrees_of_freedom=sum(variances) ** 2 / freedom,
    )
