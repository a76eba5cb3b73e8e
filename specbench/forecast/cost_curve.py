"""Cost of a round at every K, as ratios, in which the speed of the machine cancels."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from specbench.errors import UsageError
from specbench.records import EngineCost, RoundCost
from specbench.stats.intervals import LogRatio, paired_log_ratio
from specbench.stats.spread import combined


@dataclass(frozen=True, kw_only=True, slots=True)
class CostCurve:
    """Costs of a round at every K; `source` is their engine, None: measured on this machine.

    Costs measured here are of interleaved timing repetitions, and the i-th of each K are paired.
    Costs of another engine are not paired.
    """

    costs: Mapping[int, tuple[float, ...]]  # by K, one for each repetition
    source: str | None = None
    is_relative: bool = False  # True: in steps of K = 0, else in seconds
    # Results of the engine of the costs, by K.
    lengths: Mapping[int, float] | None = None  # mean acceptance length
    speedups: Mapping[int, float] | None = None

    def ratio(self, k: int, other: int) -> LogRatio:
        """cost(k) / cost(other), by repetition if paired; without a spread if they are few."""
        return self.ratio_of({k: 1.0}, {other: 1.0})

    def speed(self, k: int, other: int) -> LogRatio:
        """cost(other) / cost(k), with the error of one of them if only that one is known."""
        ratio = self.ratio(other, k)
        return replace(ratio, prompts=ratio.prompts or self.ratio(k, other).prompts)

    def ratio_of(self, rounds: Mapping[int, float], others: Mapping[int, float]) -> LogRatio:
        """The cost of rounds / that of other rounds, as `ratio`; both are numbers of rounds by K.

        Costs that are not paired have independent errors, in proportion to their shares (delta
        method); one that only `others` have counts as exact without a spread.
        """
        if self.source is None:
            return paired_log_ratio(*map(self._by_repetition, (rounds, others)))
        means = {k: paired_log_ratio(self.costs[k], 1.0) for k in {*rounds, *others}}
        totals = [
            sum(n * math.exp(means[k].log) for k, n in each.items()) for each in (rounds, others)
        ]
        errors = []
        for k, mean in means.items():
            shares = [
                each.get(k, 0.0) * math.exp(mean.log) / total
                for each, total in zip((rounds, others), totals, strict=True)
            ]
            if mean.prompts is not None:
                error = abs(shares[0] - shares[1]) * mean.prompts.standard_error
                errors.append(replace(mean.prompts, standard_error=error))
        is_known = bool(errors) and all(means[k].prompts for k, n in rounds.items() if n)
        return LogRatio(
            log=math.log(totals[0] / totals[1]),
            prompts=reduce(combined, errors) if is_known else None,
            num_prompts=max(means[k].num_prompts for k in rounds),
        )

    def rising(self, ks: Iterable[int]) -> NDArray[np.float64]:
        """The costs of ascending `ks` in steps, where no K costs less than a smaller one.

        Costs that fall are replaced by their mean: the least-squares fit of logs that do not fall.
        Source: Ayer et al. 1955, An empirical distribution function for sampling with incomplete
        information, as the largest over smaller K of the least over larger K of means.
        """
        logs = np.array([self.ratio(k, 0).log if k else 0.0 for k in ks])
        size = len(logs)
        fitted = [
            max(min(logs[i : j + 1].mean() for j in range(at, size)) for i in range(at + 1))
            for at in range(size)
        ]
        costs: NDArray[np.float64] = np.exp(np.array(fitted))
        return costs

    def _by_repetition(self, rounds: Mapping[int, float]) -> NDArray[np.float64]:
        costs = [n * np.array(self.costs[k]) for k, n in rounds.items()]
        total: NDArray[np.float64] = np.sum(costs, axis=0)
        return total

    def round_s(self, k: int) -> float | None:
        """Mean seconds of a round."""
        if self.is_relative:
            return None
        return math.exp(paired_log_ratio(self.costs[k], 1.0).log)


def measured_here(
    costs: Iterable[RoundCost], num_rounds: Mapping[int, Sequence[float]]
) -> CostCurve | None:
    """The curve of costs that were measured together; None without K = 0.

    `num_rounds` has, by K, the rounds of each output: the fewer, the more its first rounds count. A
    K with other repetitions than K = 0 was cut short, and is left out. If a K was measured more
    than once, the last costs count.
    """
    newest = {
        cost.num_speculative_tokens: cost.of_answers(num_rounds[cost.num_speculative_tokens])
        for cost in costs
        if cost.num_speculative_tokens in num_rounds
    }
    if 0 not in newest:
        return None
    return CostCurve(costs={k: v for k, v in newest.items() if len(v) == len(newest[0])})


def curve_from(costs: Sequence[EngineCost], *, concurrency: int, ks: Iterable[int]) -> CostCurve:
    """The costs of another engine with `concurrency` requests, for every K of `ks` it covers.

    Costs of equal K are repeats. Between two known K > 0 the cost of a round is interpolated, since
    K drafts and K + 1 checked tokens are linear in K; it is not extrapolated. Raises UsageError
    without a cost of K = 0, or of this concurrency.
    """
    if not costs:
        raise ValueError("no costs")
    source = describe(costs)
    at = [cost for cost in costs if cost.concurrency == concurrency]
    if not at:
        known = sorted({cost.concurrency for cost in costs})
        raise UsageError(
            f"--step-times: {source} has no data for {concurrency} concurrent requests; it has "
            f"{', '.join(map(str, known))}: measure that concurrency there, or change --concurrency"
        )
    units = {cost.is_relative for cost in at}
    if len(units) > 1:
        raise UsageError(
            f"--step-times: {source} mixes seconds with steps; give all costs in one of them"
        )
    known_costs = _by_k((cost.num_speculative_tokens, cost.cost) for cost in at)
    if units == {True}:
        known_costs.setdefault(0, (1.0,))
    if 0 not in known_costs:
        raise UsageError(
            f"--step-times: {source} does not have the cost of a step without speculation (K=0); "
            "add it, or give costs in steps"
        )
    by_k = {k: cost for k in sorted({0, *ks}) if (cost := _interpolate(known_costs, k)) is not None}
    return CostCurve(
        costs=by_k,
        source=source,
        is_relative=units == {True},
        lengths=_means((c.num_speculative_tokens, c.mean_acceptance_length) for c in at),
        speedups=_means((c.num_speculative_tokens, c.speedup) for c in at),
    )


def left_out(costs: Sequence[EngineCost], *, concurrency: int, ks: Iterable[int]) -> str:
    """A sentence about the `ks` that the costs do not cover; empty if they cover all."""
    covered = curve_from(costs, concurrency=concurrency, ks=ks).costs
    missing = [f"{k}" for k in sorted(set(ks)) if k not in covered]
    if not missing:
        return ""
    known = {c.num_speculative_tokens for c in costs if c.concurrency == concurrency} - {0}
    ends = dict.fromkeys((min(known), max(known))) if known else ()
    span = f"K=0 and {'..'.join(map(str, ends))}" if ends else "only K=0"
    at = f" at {concurrency} concurrent requests" if concurrency > 1 else ""
    return (
        f"K={', '.join(missing)} left out: the costs of {describe(costs)} cover {span}{at}; "
        "add what these K cost"
    )


def describe(costs: Sequence[EngineCost]) -> str:
    """The source of the costs, such as `vllm 0.32.0 (costs.csv)`."""
    engines = " and ".join(dict.fromkeys(cost.engine for cost in costs))
    return f"{engines} ({', '.join(dict.fromkeys(cost.source for cost in costs))})"


def _by_k(values: Iterable[tuple[int, float | None]]) -> dict[int, tuple[float, ...]]:
    """The known values of each K."""
    by_k: dict[int, tuple[float, ...]] = {}
    for k, value in values:
        if value is not None:
            by_k[k] = (*by_k.get(k, ()), value)
    return by_k


def _interpolate(costs: Mapping[int, tuple[float, ...]], k: int) -> tuple[float, ...] | None:
    if k in costs:
        return costs[k]
    below = max((other for other in costs if 0 < other < k), default=None)
    above = min((other for other in costs if other > k), default=None)
    if below is None or above is None:
        return None
    share = (k - below) / (above - below)
    less, more = fmean(costs[below]), fmean(costs[above])
    return (less + share * (more - less),)


def _means(values: Iterable[tuple[int, float | None]]) -> dict[int, float]:
    return {k: fmean(known) for k, known in _by_k(values).items()}
