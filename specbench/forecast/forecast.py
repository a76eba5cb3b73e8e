"""Which K would be fastest, before any of them is measured: replayed rounds over their costs.

speed-up(K) = tokens a round emits(K) x cost of a step / cost of a round(K), Leviathan et al.
2023 (arXiv:2211.17192), theorem 3.8, with replayed tokens and measured costs in the place of
its assumptions. Prompts are the unit of the interval; the costs' own error is joined in.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from statistics import median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specbench.decide.recommend import near_best
from specbench.forecast.cost_curve import CostCurve
from specbench.forecast.replay import replay_one, serves
from specbench.methods import find_method
from specbench.records import CellKey, ForecastPoint, ForecastRecord, TraceRecord
from specbench.settings import AcceptanceRule
from specbench.stats.acceptance import RoundCounts
from specbench.stats.intervals import LogRatio, interval, log_ratio, product
from specbench.stats.spread import CONFIDENCE, Spread

MOST_MEASURED = 3  # K > 0 of one question
WORTH = 0.02  # a K that may beat the best one by more than this is measured, too
# Standard error of tokens a round where replaying is an approximation: of token_recycling, whose
# drafts hang on what its own rounds looked at, 5 to 14 % fewer were replayed than measured.
INEXACT = 0.07
# Standard error of the ratio of two K's costs beyond their repetitions': those are of all
# workloads, and a workload's own are others (benchmarks/README.md).
_SHARED = 0.02

_APPROXIMATION = LogRatio(
    log=0.0,
    spread=Spread(standard_error=INEXACT, degrees_of_freedom=math.inf),
    num_prompts=0,
)


class Rounds(NamedTuple):
    """What replaying at one K comes to; arrays have an entry a prompt."""

    num_rounds: NDArray[np.float64]
    num_emitted: NDArray[np.float64]
    pooled: RoundCounts
    of_texts: tuple[float, ...]  # rounds of each answer, a prompt's turns apart

    @property
    def tokens(self) -> LogRatio:
        """Tokens that a round emits, pooled over rounds."""
        return log_ratio([self.num_emitted], [self.num_rounds])


@dataclass(frozen=True, kw_only=True, slots=True)
class Effort:
    """How often each traced prompt is decoded at every K: in the sweep, and after a forecast."""

    sweep: float = 1.0
    after: float = 1.0
    trace_s: float = 0.0  # spent already, on traces
    costs_s: float = 0.0  # and on round costs


def forecast(
    key: CellKey,
    traces: Sequence[TraceRecord],
    curve: CostCurve,
    ks: Iterable[int],
    *,
    rule: AcceptanceRule = "exact",
    effort: Effort = Effort(),
) -> ForecastRecord:
    """The curve of one question over those of `ks` that have traces and costs.

    `traces` are of one drafter on one workload at one temperature, a text once. Costs measured
    here say which K to measure, those of another engine do not. Raises ValueError where no K > 0
    has both.
    """
    known = sorted({0, *ks} & set(curve.visits))
    rounds = {k: found for k in known if (found := replayed(traces, k)) is not None}
    if 0 not in rounds or len(rounds) < 2:
        raise ValueError("no K > 0 has both traces and costs")
    # Concurrent requests would draft from one another's answers, a trace drafts from its own.
    is_shared = key.condition.concurrency > 1 and find_method(key.draft.method).learns
    is_exact = all(trace.is_exact for trace in traces) and not is_shared
    points = tuple(_point(k, rounds[k], curve, is_exact=is_exact) for k in rounds)
    best, worth = choose(points, curve, is_exact=is_exact)
    record = ForecastRecord(
        key=key,
        points=points,
        best=best,
        to_measure=worth if curve.source is None else (),
        num_prompts=len(rounds[0].num_rounds),
        context=middle_context(traces),
        is_exact=is_exact,
        costs_of=curve.source,
        acceptance_rule=rule,
        trace_s=effort.trace_s,
        costs_s=effort.costs_s,
    )
    if curve.source is not None:
        return record
    once_s = {k: (rounds[k].pooled.num_rounds * (curve.round_s(k) or 0.0)) for k in rounds}
    return replace(
        record,
        sweep_s=effort.sweep * _passes_s(once_s, tuple(rounds), best),
        measure_s=effort.after * _passes_s(once_s, worth, best),
    )


def replayed(traces: Sequence[TraceRecord], k: int) -> Rounds | None:
    """Rounds at K = k of the traces that serve it, by prompt; None where none has a round."""
    by_prompt: dict[str, RoundCounts] = {}
    of_texts: dict[tuple[str, int, int], float] = {}
    for trace in traces:
        text = (trace.prompt_id, trace.turn, trace.repeat)
        if len(trace.output_ids) < 2 or text in of_texts or not serves(trace, k):
            continue  # a tree has a trace a depth, and any of them serves K = 0
        one = replay_one(trace, k)
        of_texts[text] = one.num_rounds
        known = by_prompt.get(trace.prompt_id)
        by_prompt[trace.prompt_id] = one if known is None else known + one
    if not by_prompt:
        return None
    prompts = tuple(by_prompt.values())
    return Rounds(
        num_rounds=np.array([one.num_rounds for one in prompts]),
        num_emitted=np.array([one.num_emitted for one in prompts]),
        pooled=reduce(RoundCounts.__add__, prompts),
        of_texts=tuple(of_texts.values()),
    )


def choose(
    points: Sequence[ForecastPoint], curve: CostCurve, *, is_exact: bool = True
) -> tuple[int, tuple[int, ...]]:
    """The best K, 0 among them, and the K > 0 that are worth measuring, best first.

    The best has the highest forecast; of those within 1 % the smallest K. Beside the best K > 0
    a K is worth measuring if it may be more than 2 % faster. It is the costs' error that counts
    for this, a workload's own included, not the spread over prompts: measured would be the same
    prompts, and what they accept is known; only for a method whose replay is an approximation its
    error counts, too.
    """
    speeds = {p.num_speculative_tokens: (p.speedup.estimate if p.speedup else 1.0) for p in points}
    best = _fastest(speeds)
    drafting = {k: speed for k, speed in speeds.items() if k}
    leader = best or _fastest(drafting)
    rivals = [
        k
        for k in sorted(drafting, key=lambda k: -drafting[k])
        if k != leader
        and drafting[k] / drafting[leader] * _doubt(curve.ratio(leader, k), is_exact) > 1 + WORTH
    ]
    return best, (leader, *rivals[: MOST_MEASURED - 1])


def middle_context(traces: Sequence[TraceRecord]) -> int:
    """Tokens in the cache half-way through a typical answer."""
    return round(median(t.num_prompt_tokens + len(t.output_ids) / 2 for t in traces))


def _point(k: int, rounds: Rounds, curve: CostCurve, *, is_exact: bool) -> ForecastPoint:
    cost = curve.ratio(k, 0)
    tokens = rounds.tokens if is_exact else product(rounds.tokens, _APPROXIMATION)
    speedup = product(tokens, curve.ratio(0, k))
    return ForecastPoint(
        num_speculative_tokens=k,
        mean_acceptance_length=rounds.pooled.mean_acceptance_length or 1.0,
        acceptance_rate_per_position=rounds.pooled.acceptance_rate_per_position,
        cost=math.exp(cost.log) if k else 1.0,
        cost_error=cost.standard_error if k else 0.0,
        round_s=curve.round_s(k),
        speedup=interval(speedup) if k else None,
        length_there=(curve.lengths or {}).get(k),
        speedup_there=(curve.speedups or {}).get(k),
    )


def _fastest(speeds: Mapping[int, float]) -> int:
    """The smallest K within 1 % of the highest speed."""
    return min(near_best(speeds, speeds.__getitem__))


def _doubt(ratio: LogRatio, is_exact: bool) -> float:
    """The factor by which a forecast of two speeds' ratio may be too low, at 95 % one-sided."""
    half = ratio.spread.margin(CONFIDENCE) if ratio.spread else 0.0
    return math.exp(math.hypot(half, 2 * _SHARED, 0.0 if is_exact else 2 * INEXACT))


def _passes_s(once_s: Mapping[int, float], ks: Iterable[int], best: int) -> float:
    """At K = 0 and every K, and where there was a choice at K = 0 and the best once more."""
    drafting = [k for k in ks if k]
    first = once_s[0] + sum(once_s[k] for k in drafting)
    is_repeated = len(drafting) > 1 and best
    return first + (once_s[0] + once_s[best] if is_repeated else 0.0)
