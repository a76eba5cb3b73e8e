"""Forecasts the fastest K before any K is measured, from replayed rounds and costs of rounds.

speedup(K) = tokens emitted per round(K) x cost of a step / cost of a round(K), Leviathan et al.
2023 (arXiv:2211.17192), theorem 3.8, with replayed tokens and measured costs instead of its
assumptions. Intervals are over prompts, and include the error of the costs.

Drafts do not change the target's output, so rounds are steps along a known text: if a round starts
after token s and accepts a draft tokens, the next one starts after token s + a + 1. At temperature
0 the text determines every step, and the counts are those of a measured run. Above it each step has
a probability. All steps are followed (a renewal process, not independent draft tokens), so the
counts are exact expectations for this text.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
from statistics import median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specbench.decide.recommend import near_best
from specbench.forecast.cost_curve import CostCurve
from specbench.methods import find_method
from specbench.records import CellKey, ForecastPoint, ForecastRecord, TraceRecord
from specbench.settings import AcceptanceRule
from specbench.stats.intervals import LogRatio, interval, log_ratio, product
from specbench.stats.rounds import RoundCounts, joint_rates
from specbench.stats.spread import CONFIDENCE, Uncertainty

Floats = NDArray[np.float64]


class Steps(NamedTuple):
    """A trace cut to one K, by start s and number of drafts accepted a; S starts, A = K + 1."""

    accepted_SA: Floats  # P(a round that starts at s accepts a)
    drafted_S: NDArray[np.int64]
    next_SA: NDArray[np.int64]  # the start that follows


def serves(trace: TraceRecord, k: int) -> bool:
    """Whether rounds at K = k can be replayed over it; K = 0 over any."""
    depth = trace.num_speculative_tokens
    return k in (0, depth) or (trace.is_chain and k < depth)


def replay_one(trace: TraceRecord, k: int) -> RoundCounts:
    """The rounds of one text at K = k."""
    at_k = steps(trace, k)
    starting_S = _starting(at_k)
    rounds_SA = starting_S[:, None] * at_k.accepted_SA
    num_accepted_A = np.arange(k + 1)
    histogram_A = rounds_SA.sum(0)
    num_accepted = float(histogram_A @ num_accepted_A)
    emitted_SA = at_k.next_SA - np.arange(len(starting_S))[:, None]
    # A round that the end of the text cuts short emits all that it accepts, and rejects nothing.
    is_rejecting_SA = (num_accepted_A < at_k.drafted_S[:, None]) & (emitted_SA > num_accepted_A)
    return RoundCounts(
        num_rounds=float(starting_S.sum()),
        num_drafted=float(starting_S @ at_k.drafted_S),
        num_accepted=num_accepted,
        num_emitted=float((rounds_SA * emitted_SA).sum()),
        num_drafting=float(starting_S[at_k.drafted_S > 0].sum()),
        num_rejecting=float(rounds_SA[is_rejecting_SA].sum()),
        reached=tuple(histogram_A[::-1].cumsum()[::-1].tolist()),
    )


def steps(trace: TraceRecord, k: int) -> Steps:
    """The rounds at K = k that could start in the text of a trace that serves it."""
    num_starts = len(trace.num_drafted)
    accepted_SA = np.zeros((num_starts, k + 1))
    for start, chances in enumerate(trace.chances):
        accepted_SA[start, : k + 1] = _accepted(chances[:k], k)
    drafted = [min(drafted, k) if trace.is_chain else drafted for drafted in trace.num_drafted]
    drafted_S = np.array(drafted if k else [0] * num_starts, dtype=np.int64)
    starts_S1 = np.arange(num_starts)[:, None]
    # The text ends with its last token, also within the accepted draft tokens.
    next_SA = np.minimum(starts_S1 + 1 + np.arange(k + 1), num_starts)
    return Steps(accepted_SA, drafted_S, next_SA)


def _accepted(chances: Sequence[float], k: int) -> list[float]:
    """P(a = 0 .. k): all before were accepted, and the next one was not."""
    reached = [1.0, *joint_rates(chances)]
    stopped = [at - after for at, after in pairwise([*reached, 0.0])]
    return [*stopped, *[0.0] * (k + 1 - len(stopped))]


def _starting(at_k: Steps) -> Floats:
    """Expected number of rounds, 0 to 1, that begin at each start."""
    num_starts = len(at_k.drafted_S)
    starting = np.zeros(num_starts + 1)  # the last entry is the end of the text
    starting[0] = 1.0
    for start in range(num_starts):
        if starting[start]:
            np.add.at(starting, at_k.next_SA[start], starting[start] * at_k.accepted_SA[start])
    return starting[:-1]


MOST_MEASURED = 3  # K > 0 per setting
WORTH = 0.02  # a K that may beat the best one by more than this is also measured
# Standard error of tokens per round if replaying is an approximation: for token_recycling, whose
# drafts depend on the tokens that its own rounds checked, 5% to 14% fewer were replayed than
# measured.
INEXACT = 0.07
# Standard error of the ratio of two K's costs, in addition to that of their repetitions, which are
# of all workloads: a single workload has different costs (benchmarks/README.md).
_SHARED = 0.02

_APPROXIMATION = LogRatio(
    log=0.0,
    prompts=Uncertainty(standard_error=INEXACT, degrees_of_freedom=math.inf),
    num_prompts=0,
)


class Rounds(NamedTuple):
    """The result of replaying at one K; arrays have an entry per prompt."""

    num_rounds: NDArray[np.float64]
    num_emitted: NDArray[np.float64]
    pooled: RoundCounts
    of_texts: tuple[float, ...]  # rounds of each output, one per turn

    @property
    def tokens(self) -> LogRatio:
        """Tokens that a round emits, pooled over rounds."""
        return log_ratio([self.num_emitted], [self.num_rounds])


@dataclass(frozen=True, kw_only=True, slots=True)
class Effort:
    """Times that each traced prompt is decoded at every K: in a sweep, and after a forecast."""

    sweep: float = 1.0
    after: float = 1.0
    trace_s: float = 0.0  # already spent on traces
    costs_s: float = 0.0  # already spent on round costs


def forecast(
    key: CellKey,
    traces: Sequence[TraceRecord],
    curve: CostCurve,
    ks: Iterable[int],
    *,
    rule: AcceptanceRule = "exact",
    effort: Effort = Effort(),
) -> ForecastRecord:
    """The curve of one setting over those of `ks` that have traces and costs.

    `traces` are of one drafter on one workload at one temperature, each text once. Costs measured
    here decide which K to measure, those of another engine do not. Raises ValueError if no K > 0
    has both.
    """
    known = sorted({0, *ks} & set(curve.costs))
    rounds = {k: counts for k in known if (counts := replayed(traces, k)) is not None}
    if 0 not in rounds:
        raise ValueError(_NOTHING_KNOWN)
    # Concurrent requests would draft from each other's outputs; a trace drafts only from its own.
    is_shared = key.condition.concurrency > 1 and find_method(key.draft.method).learns
    is_exact = all(trace.is_exact for trace in traces) and not is_shared
    record = replace(
        _of_rounds(key, rounds, curve, is_exact=is_exact),
        context=middle_context(traces),
        acceptance_rule=rule,
        trace_s=effort.trace_s,
        costs_s=effort.costs_s,
    )
    if curve.source is not None:
        return record
    best, worth = record.best, record.to_measure
    once_s = {k: (rounds[k].pooled.num_rounds * (curve.round_s(k) or 0.0)) for k in rounds}
    return replace(
        record,
        sweep_s=effort.sweep * _passes_s(once_s, tuple(rounds), best),
        measure_s=effort.after * _passes_s(once_s, worth, best),
    )


def forecast_of_rates(
    key: CellKey, rates: Mapping[int, Sequence[float]], curve: CostCurve
) -> ForecastRecord:
    """The curve of one setting over K with known joint rates, which count as exact: no interval.

    Raises ValueError if no K > 0 has both rates and costs.
    """
    known = {k: _expected_rounds(rates.get(k, ())) for k in curve.costs if k in (0, *rates)}
    return replace(_of_rounds(key, known, curve), num_prompts=0)


def _expected_rounds(rates: Sequence[float]) -> Rounds:
    """One round of these joint rates, on average."""
    num_accepted, k = sum(rates), len(rates)
    counts = RoundCounts(
        num_rounds=1.0,
        num_drafted=k,
        num_accepted=num_accepted,
        num_emitted=1.0 + num_accepted,
        num_drafting=min(k, 1),
        num_rejecting=1.0 - rates[-1] if rates else 0.0,
        reached=(1.0, *rates),
    )
    return Rounds(np.ones(1), np.array([counts.num_emitted]), counts, (1.0,))


_NOTHING_KNOWN = "no K > 0 has both acceptance and costs"


def _of_rounds(
    key: CellKey, rounds: Mapping[int, Rounds], curve: CostCurve, *, is_exact: bool = True
) -> ForecastRecord:
    """The forecast from rounds by K, including K = 0; ValueError without another K."""
    if len(rounds) < 2:
        raise ValueError(_NOTHING_KNOWN)
    points = tuple(_point(k, rounds[k], curve, is_exact=is_exact) for k in sorted(rounds))
    best, worth = choose(points, curve, is_exact=is_exact)
    return ForecastRecord(
        key=key,
        points=points,
        best=best,
        to_measure=worth if curve.source is None else (),
        num_prompts=len(rounds[0].num_rounds),
        context=0,
        is_exact=is_exact,
        costs_of=curve.source,
    )


def replayed(traces: Sequence[TraceRecord], k: int) -> Rounds | None:
    """Rounds at K = k of the traces usable for it, by prompt; None without any round."""
    by_prompt: dict[str, RoundCounts] = {}
    of_texts: dict[tuple[str, int, int], float] = {}
    for trace in traces:
        text = (trace.prompt_id, trace.turn, trace.repeat)
        if len(trace.output_ids) < 2 or text in of_texts or not serves(trace, k):
            continue  # a tree has a trace per depth, and any of them serves K = 0
        counts = replay_one(trace, k)
        of_texts[text] = counts.num_rounds
        known = by_prompt.get(trace.prompt_id)
        by_prompt[trace.prompt_id] = counts if known is None else known + counts
    if not by_prompt:
        return None
    prompts = tuple(by_prompt.values())
    return Rounds(
        num_rounds=np.array([counts.num_rounds for counts in prompts]),
        num_emitted=np.array([counts.num_emitted for counts in prompts]),
        pooled=reduce(RoundCounts.__add__, prompts),
        of_texts=tuple(of_texts.values()),
    )


def choose(
    points: Sequence[ForecastPoint], curve: CostCurve, *, is_exact: bool = True
) -> tuple[int, tuple[int, ...]]:
    """The best K, which may be 0, and the K > 0 that are worth measuring, best first.

    The best has the highest forecast; of those within 1% the smallest K. Another K > 0 is worth
    measuring if it may be more than 2% faster than the best. For this, only the error of the costs
    and a workload's deviation count. The spread over prompts does not: the same prompts would be
    measured, and their acceptance is known. If the replay of a method is an approximation, its
    error is added.
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
    speedup = product(tokens, curve.speed(k, 0))
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
    """The smallest K within 1% of the highest speed."""
    return min(near_best(speeds, speeds.__getitem__))


def _doubt(ratio: LogRatio, is_exact: bool) -> float:
    """The factor by which a forecast of two speeds' ratio may be too low, at 95% one-sided."""
    half = ratio.spread.margin(CONFIDENCE) if ratio.spread else 0.0
    return math.exp(math.hypot(half, 2 * _SHARED, 0.0 if is_exact else 2 * INEXACT))


def _passes_s(once_s: Mapping[int, float], ks: Iterable[int], best: int) -> float:
    """Seconds at K = 0 and every K, and at K = 0 and the best again if there was a choice."""
    drafting = [k for k in ks if k]
    first = once_s[0] + sum(once_s[k] for k in drafting)
    is_repeated = len(drafting) > 1 and best
    return first + (once_s[0] + once_s[best] if is_repeated else 0.0)
