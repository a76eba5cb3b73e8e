"""What to run for a purpose: across drafters, K and concurrent requests, not speculating included;
and the one K, or configuration, for all workloads.

Candidates are what the decision rule supports: every K = 0, and of each pairing and setting the
cell that helps, with the speedup that was measured again.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal, NamedTuple, get_args

from specbench.decide.recommend import (
    TIE,
    SpeedupVerdict,
    by_question,
    choose,
    deciding,
    is_undecided,
    judge,
    near_best,
)
from specbench.metrics.registry import number_of
from specbench.records import CellKey, CellSummary, Condition, Decision, Fixed
from specbench.records.doc import Doc
from specbench.settings.words import REQUEST_LIMITS


class LeastRegret(NamedTuple):
    """Which option it is, and the share of the best rate that each case gives up (0.05: 5%)."""

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


_SHOWN = 0.0005  # a regret below this prints as 0.0%


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedK:
    """The K whose worst regret is least; regret is the share of the best speedup given up."""

    key: CellKey  # of its cells, without workload and K
    num_speculative_tokens: Annotated[
        int,
        Doc(
            "the K whose largest regret over the workloads is smallest; 0: do not speculate",
            "tokens/round",
        ),
    ]
    regret: Annotated[
        Mapping[str, float],
        Doc(
            "by workload, the share of its best speedup that this K loses, by the estimates "
            "of the first pass",
            "fraction",
            low=0,
            high=1,
        ),
    ]
    best_k: Mapping[str, int]  # the K of each workload's answer; 0: none
    left_out: tuple[int, ...]  # those of `best_k` that were not usable on every workload


def find_shared_k(
    cells: Sequence[CellSummary], decisions: Sequence[Decision] = ()
) -> SharedK | None:
    """One fixed K for the workloads of one pairing at one setting.

    None without a valid cell, and if K = 0 would be left because the K of an answer have no say
    in every workload: nothing is known against them there.

    Speedups are the first pass's estimates; K = 0 takes part at 1. A workload's own K is that of
    its decision, so that none is said to lose at the K of its own answer; where nothing is decided,
    the K that `choose` speaks of, or 0 if that is slower. A K competes when it has a say in every
    workload (`deciding`); worst regrets within 1% are equal, and the smaller K wins. Raises
    ValueError for several pairings or settings.
    """
    cells = [cell for cell in cells if cell.key.draft.is_fixed]
    groups = {across_workloads(cell.key) for cell in cells}
    if len(groups) > 1:
        raise ValueError(f"one pairing and setting is needed, got {len(groups)}")
    speedups: dict[str, dict[int, float]] = {}
    own: dict[str, int] = {}
    for group in by_question(cells):
        leader = choose(group).leader
        if leader is None or leader.speedup is None:
            continue
        workload = leader.key.condition.workload
        at_k = {c.key.draft.k: c.speedup.estimate for c in deciding(group) if c.speedup}
        speedups[workload] = {0: 1.0, **at_k}
        told = next((d for d in decisions if d.leader == leader.key and not is_undecided(d)), None)
        its = leader.key.draft.k if leader.speedup.estimate > 1 else 0
        own[workload] = its if told is None else told.draft.k
    if not speedups:
        return None
    shared = sorted(set.intersection(*(set(at_k) for at_k in speedups.values())))
    best = {workload: at_k[own[workload]] for workload, at_k in speedups.items()}
    options = [{workload: at_k[k] for workload, at_k in speedups.items()} for k in shared]
    found = minimax_regret(options, best, tie=TIE)
    k, left_out = shared[found.place], tuple(sorted(set(own.values()) - set(shared)))
    if left_out and not k:
        return None
    return SharedK(
        key=groups.pop(),
        num_speculative_tokens=k,
        regret=found.regret,
        best_k=own,
        left_out=left_out,
    )


def across_workloads(key: CellKey) -> CellKey:
    """The key that a pairing's cells share over workloads and K."""
    return key.without("workload").at(Fixed(0))


def losses_in_words(regret: Mapping[str, float], others: Mapping[str, str]) -> list[str]:
    """`5.0% on code` per workload, but for what prints as 0.0%; or `nothing`. `others`: other
    answers of workloads, such as `K=2`, which are named also if they lose nothing."""
    found = [f"{loss:.1%} on {name}" for name, loss in regret.items() if loss >= _SHOWN]
    equal = [
        f"nothing measurable on {name} (best there: {others[name]})"
        for name, loss in regret.items()
        if loss < _SHOWN and name in others
    ]
    return [*found, *equal] or ["nothing"]


def left_out_in_words(names: Sequence[str]) -> str:
    """A note that a workload's own choice could not compete in all workloads; empty without one."""
    if not names:
        return ""
    return f"; not compared, without an interval on every workload: {' and '.join(names)}"


def other_ks(own: Mapping[str, int], k: int) -> dict[str, str]:
    """`others` of `losses_in_words` for a K."""
    return {name: f"K={its}" for name, its in own.items() if its != k}


ObjectiveName = Literal["latency", "throughput", "goodput", "cost"]
OBJECTIVES: tuple[ObjectiveName, ...] = get_args(ObjectiveName)

# What a limit may be about, and the metric that it is held against.
LIMITS = {
    **REQUEST_LIMITS,
    **{f"{name}_p{p}": f"{of}_p{p}" for name, of in REQUEST_LIMITS.items() for p in (90, 95, 99)},
    "queue": "queue_s",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Objective:
    """`latency`: seconds per token of one user; `throughput`: tokens a second of all of them;
    `goodput`: requests a second within the run's SLO; `cost`: money per million tokens. `limits`
    are upper bounds in seconds, by metric."""

    name: ObjectiveName = "latency"
    limits: Mapping[str, float] = field(default_factory=dict)
    price_per_hour: float | None = None

    @property
    def unit(self) -> str:
        units = ("s/token", "tokens/s", "requests/s", "per million tokens")
        return dict(zip(OBJECTIVES, units, strict=True))[self.name]


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """One way to serve a workload; `value` in the objective's unit, `rate` in tokens a second, or
    for goodput in requests a second."""

    key: CellKey
    value: float
    rate: float
    cautious_rate: float  # with the lower bound of the speedup
    broken: tuple[str, ...]  # limits that it does not keep


@dataclass(frozen=True, kw_only=True, slots=True)
class Recommendation:
    """The answer for one workload."""

    condition: Condition  # apart from the concurrency, which is chosen
    best: Candidate | None  # None: nothing keeps the limits
    candidates: tuple[Candidate, ...]  # best first
    ways: tuple[Candidate, ...]  # by the first pass, to find one for all; latency: fewest rows


@dataclass(frozen=True, kw_only=True, slots=True)
class JointRecommendation:
    """One way to serve all workloads of a target, and the share of the best rate each gives up."""

    key: CellKey  # of the first workload
    regret: Mapping[str, float]
    others: Mapping[str, CellKey]  # the answers of workloads that would choose another way
    left_out: tuple[CellKey, ...] = ()  # of those the ones without a say in every workload


def pick(
    cells: Sequence[CellSummary], decisions: Sequence[Decision], objective: Objective
) -> tuple[Recommendation, ...]:
    """One answer a workload and setting; the batch size is part of the answer.

    The highest rate by the lower bound of its speedup wins; rates within 1% are equal, and
    not speculating, then fewer rows, then the smaller K go first. Latency is compared among
    the fewest rows measured: more of them are never faster for one user.
    """
    usable = [cell for cell in cells if cell.valid]
    groups: dict[Condition, tuple[list[Candidate], list[Candidate]]] = {}
    for cell in usable:
        rate = _rate(cell, objective)
        if cell.key.is_baseline and rate is not None:
            across = cell.key.condition.without("concurrency")
            candidates, ways = groups.setdefault(across, ([], []))
            plain = _candidate(cell, rate, rate, objective)
            beside = [c for c in usable if c.key.condition == cell.key.condition]
            candidates += [plain, *_helping(rate, beside, decisions, objective)]
            ways += [plain, *_ways(rate, beside, objective)]
    return tuple(_pick(question, *group, objective) for question, group in groups.items())


def shared_pick(picks: Sequence[Recommendation]) -> JointRecommendation | None:
    """The way that gives up least where it gives up most, over picks of one target and setting.

    Rates are the first pass's, as in `find_shared_k`: no winner is quoted here. A workload gives
    up what its own answer is faster by, which is nothing at that very answer. A way competes when
    it keeps the limits on every workload; ties within 1% go to the plainer one. None for a single
    workload, if no way serves all of them, and if only K = 0 does for lack of other intervals.
    """
    if len(picks) < 2:
        return None
    ways: dict[tuple[object, ...], dict[str, Candidate]] = {}
    for one in picks:
        for candidate in one.ways:
            if not candidate.broken:
                workload = candidate.key.condition.workload
                ways.setdefault(_way(candidate.key), {})[workload] = candidate
    complete = [way for way in ways.values() if len(way) == len(picks)]
    if not complete:
        return None
    complete.sort(key=lambda way: _plainness(next(iter(way.values())).key))
    best = {one.condition.workload: _own_rate(one) for one in picks}
    rates = [{name: found.rate for name, found in way.items()} for way in complete]
    found = minimax_regret(rates, best, tie=TIE)
    key = next(iter(complete[found.place].values())).key
    others = {
        p.condition.workload: p.best.key for p in picks if p.best and _way(p.best.key) != _way(key)
    }
    compared = {_way(candidate.key) for way in complete for candidate in way.values()}
    left_out = {_way(one): one for one in others.values() if _way(one) not in compared}
    if left_out and not key.draft.k:
        return None
    return JointRecommendation(
        key=key, regret=found.regret, others=others, left_out=tuple(left_out.values())
    )


def _own_rate(one: Recommendation) -> float:
    """Of a workload's answer in the first pass; where that is not to speculate, also for want of
    evidence, of the best way."""
    kept = [way for way in one.ways if not way.broken]
    answer = one.best.key if one.best and one.best.key.draft.k else None
    own = [way for way in kept if answer is not None and _way(way.key) == _way(answer)]
    return max(way.rate for way in own or kept)


def _pick(
    condition: Condition, group: list[Candidate], ways: list[Candidate], objective: Objective
) -> Recommendation:
    kept = [candidate for candidate in group if not candidate.broken]
    if objective.name == "latency":
        kept, ways = _fewest_rows(kept), _fewest_rows([way for way in ways if not way.broken])
    best = None
    if any(c.key.draft.k and c.key.draft.lossy is None for c in kept):
        kept = [c for c in kept if c.key.draft.lossy is None]  # as an answer of the report
    if kept:
        tied = near_best(kept, lambda candidate: candidate.cautious_rate)
        best = min(tied, key=lambda candidate: _plainness(candidate.key))
    others = sorted((c for c in group if c is not best), key=lambda c: -c.cautious_rate)
    return Recommendation(
        condition=condition,
        best=best,
        candidates=(best, *others) if best else tuple(others),
        ways=tuple(ways),
    )


def _fewest_rows(ways: list[Candidate]) -> list[Candidate]:
    fewest = min((way.key.condition.concurrency for way in ways), default=0)
    return [way for way in ways if way.key.condition.concurrency == fewest]


def _helping(
    rate: float,
    cells: Sequence[CellSummary],
    decisions: Sequence[Decision],
    objective: Objective,
) -> Iterator[Candidate]:
    """What helps over `rate`, at the speedup measured again: the first pass flatters winners."""
    by_key = {cell.key: cell for cell in cells}
    for decision in decisions:
        cell, speedup = by_key.get(decision.leader), decision.speedup
        if cell is None or speedup is None or speedup.low is None:
            continue
        if judge(speedup) is SpeedupVerdict.HELPS:
            gains = [_gain(cell, x, objective) for x in (speedup.estimate, speedup.low)]
            first = cell.speedup.estimate if cell.speedup else speedup.estimate
            pace = first / speedup.estimate  # of a token, beside the first pass
            yield _candidate(cell, rate * gains[0], rate * gains[1], objective, pace)


def _ways(rate: float, cells: Sequence[CellSummary], objective: Objective) -> Iterator[Candidate]:
    for group in by_question(cell for cell in cells if cell.key.draft.lossy is None):
        for cell in deciding(group):
            if cell.speedup is not None:
                its_rate = rate * _gain(cell, cell.speedup.estimate, objective)
                yield _candidate(cell, its_rate, its_rate, objective)


def _candidate(
    cell: CellSummary, rate: float, cautious_rate: float, objective: Objective, pace: float = 1.0
) -> Candidate:
    return Candidate(
        key=cell.key,
        value=_value(rate, objective),
        rate=rate,
        cautious_rate=cautious_rate,
        broken=tuple(_broken(cell, objective, rate, pace)),
    )


def _rate(cell: CellSummary, objective: Objective) -> float | None:
    """Tokens a second: of one user for latency, else of all rows, prefills included; requests
    for goodput."""
    if objective.name == "goodput":
        served = number_of(cell.metrics, "requests_per_s")
        # Half a request if none is within the limits: the ratio counts it as well.
        least = served and 0.5 * served / cell.num_requests
        return number_of(cell.metrics, "goodput_requests_per_s") or least
    if objective.name == "latency":
        seconds = number_of(cell.metrics, "tpot_s")
        return 1 / seconds if seconds else None
    if cell.key.condition.is_stream:
        return number_of(cell.metrics, "busy_tokens_per_s") or number_of(
            cell.metrics, "aggregate_tokens_per_s"
        )
    names = ("end_to_end_tokens_per_s", "aggregate_tokens_per_s", "decode_tokens_per_s")
    return next((rate for name in names if (rate := number_of(cell.metrics, name))), None)


def _gain(cell: CellSummary, speedup: float, objective: Objective) -> float:
    """How many times the tokens a second: in open loop arrivals fix those of all users.

    One row's speedup leaves prefill out, which all users wait for: of it that share holds which
    the first pass's whole requests kept.
    """
    if objective.name in ("latency", "goodput"):
        return speedup
    if cell.key.condition.request_rate is not None:
        return 1.0
    whole, decode = cell.speedup_end_to_end, cell.speedup
    if cell.key.condition.is_stream or whole is None or decode is None:
        return speedup
    return speedup * whole.estimate / decode.estimate


def _value(rate: float, objective: Objective) -> float:
    if objective.name == "latency":
        return 1 / rate
    if objective.name == "throughput" or objective.price_per_hour is None:
        return rate
    return objective.price_per_hour / (rate * 3600) * 1e6


def _broken(cell: CellSummary, objective: Objective, rate: float, pace: float) -> Iterator[str]:
    """Limits that a cell does not keep; `pace`: its seconds a token / those of the first pass.

    A token of one user takes what `rate` says, as shown: cells may have had other prompts.
    """
    names = {metric: name for name, metric in LIMITS.items()}
    for metric, limit in objective.limits.items():
        found = number_of(cell.metrics, metric)
        if found is None:
            yield f"{names[metric]} is not known"
            continue
        if metric == "tpot_s" and objective.name == "latency":
            found = 1 / rate
        elif metric.startswith("tpot_s"):
            found *= pace
        if found > limit:
            yield f"{names[metric]} {found * 1e3:,.3g} ms, above {limit * 1e3:,.3g} ms"


def _way(key: CellKey) -> tuple[object, ...]:
    return key.draft, key.condition.concurrency


def _plainness(key: CellKey) -> tuple[bool, int, tuple[int, int]]:
    return key.draft.k > 0, key.condition.concurrency, key.draft.order
