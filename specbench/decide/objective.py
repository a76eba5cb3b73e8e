"""The configuration to run for an objective, and the one K or configuration for all workloads.

The candidates are every K = 0 and, for each pairing and setting, the cell that helps, with the
speedup of its confirmation run.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal, NamedTuple, get_args

from specbench.decide.comparisons import TIE
from specbench.decide.recommend import by_question, choose, deciding, near_best
from specbench.doc import Doc
from specbench.metrics.cell import CellData, against
from specbench.metrics.pairs import paired_decode
from specbench.metrics.registry import number_of
from specbench.metrics.summary import log_speedup
from specbench.records import (
    CellKey,
    CellSummary,
    Condition,
    Decision,
    Fixed,
    Interval,
    Kind,
    Reason,
    SpeedupVerdict,
)
from specbench.settings.words import REQUEST_LIMITS


class LeastRegret(NamedTuple):
    """The index of an option, and the share of the best rate that each case loses (0.05: 5%)."""

    option: int
    regret: dict[str, float]


def minimax_regret(
    options: Sequence[Mapping[str, float]], best: Mapping[str, float]
) -> LeastRegret:
    """The option with the smallest worst regret over the cases (Savage 1951).

    An option has a rate for every case; `best` has the rate of the choice for each case, which may
    not be an option here. The regret is 1 - rate / best, or 0 for a higher rate, which was not
    chosen because its gain is not proven. Worst regrets within 1% of the least are
    equal, and the first such option wins, so options are sorted by simplicity. Raises ValueError
    without an option.
    """
    regrets = [
        {case: max(0.0, 1 - rate / best[case]) for case, rate in option.items()}
        for option in options
    ]
    worst = [max(regret.values()) for regret in regrets]
    least = min(worst)
    index = next(i for i, regret in enumerate(worst) if regret <= least + TIE)
    return LeastRegret(index, regrets[index])


_SHOWN = 0.0005  # a regret below this prints as 0.0%
SMALL_LOSS = 0.1  # a loss that may be 0 and may be larger than this is unknown


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedK:
    """The K with the smallest worst regret: the share of the best speedup that is lost."""

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
            "of the exploration phase; of a K that was decided against, by the decision",
            "fraction",
            low=0,
            high=1,
        ),
    ]
    best_k: Mapping[str, int]  # the K of each workload's answer; 0: none
    left_out: tuple[int, ...]  # the K in `best_k` that were not usable on every workload
    open_on: Annotated[
        tuple[str, ...], Doc("workloads whose answer is undecided: what K loses there is unknown")
    ] = ()
    regret_bounds: Annotated[
        Mapping[str, Interval],
        Doc(
            "by workload, the regret over the prompts that both K served, with its 95% interval; "
            "a negative bound: this K may be faster",
            "fraction",
        ),
    ] = field(default_factory=dict)


def find_shared_k(
    cells: Sequence[CellSummary],
    decisions: Sequence[Decision] = (),
    explored: Sequence[CellData] = (),
) -> SharedK | None:
    """One fixed K for the workloads of one pairing at one setting.

    ValueError for cells of several pairings or settings.

    A K is compared if it is usable in every workload (`deciding`), by the speedup estimates of the
    exploration phase, or that of the decision against it; K = 0 has speedup 1. A workload's best K
    is that of its decision, so that it loses nothing at its own answer. If it is undecided, its
    best K is the leader of `choose`, or 0 if that is slower. Worst regrets within 1% are equal, and
    the smaller K wins. `explored` has the requests, from which the bounds of the regret follow.

    None without a valid cell, and if K = 0 wins only because a best K is not usable in every
    workload, so that its losses there are unknown.
    """
    cells = [cell for cell in cells if cell.key.draft.is_fixed]
    groups = {across_workloads(cell.key) for cell in cells}
    if len(groups) > 1:
        raise ValueError(f"expected one pairing and setting, got {len(groups)}")
    speedups: dict[str, dict[int, float]] = {}
    best_k: dict[str, int] = {}
    lost: dict[tuple[str, int], Interval] = {}
    open_on: list[str] = []
    for group in by_question(cells):
        leader = choose(group).leader
        if leader is None or leader.speedup is None:
            continue
        workload = leader.key.condition.workload
        at_k = {c.key.draft.k: c.speedup.estimate for c in deciding(group) if c.speedup}
        speedups[workload] = {0: 1.0, **at_k}
        question = leader.key.question  # an adaptive K may be its leader
        decision = next((d for d in decisions if d.leader.question == question), None)
        is_open = decision is not None and decision.verdict is SpeedupVerdict.UNDECIDED
        if decision is not None and decision.leader == leader.key and not is_open:
            best_k[workload] = decision.draft.k
            speedup = decision.decided_by
            if speedup is not None and decision.verdict is SpeedupVerdict.NO_SPEEDUP:
                lost[workload, leader.key.draft.k] = speedup
                speedups[workload][leader.key.draft.k] = speedup.estimate
        else:
            best_k[workload] = leader.key.draft.k if leader.speedup.estimate > 1 else 0
            open_on += [workload] if is_open else []
    if not speedups:
        return None
    shared = sorted(set.intersection(*(set(at_k) for at_k in speedups.values())))
    best = {workload: at_k[best_k[workload]] for workload, at_k in speedups.items()}
    options = [{workload: at_k[k] for workload, at_k in speedups.items()} for k in shared]
    least = minimax_regret(options, best)
    k, left_out = shared[least.option], tuple(sorted(set(best_k.values()) - set(shared)))
    if left_out and not k:
        return None
    return SharedK(
        key=groups.pop(),
        num_speculative_tokens=k,
        regret=least.regret,
        best_k=best_k,
        left_out=left_out,
        open_on=tuple(sorted(open_on)),
        regret_bounds=_regret_bounds(k, best_k, lost, explored),
    )


def _regret_bounds(
    k: int,
    best_k: Mapping[str, int],
    lost: Mapping[tuple[str, int], Interval],
    explored: Sequence[CellData],
) -> dict[str, Interval]:
    """What K loses on each workload whose best K is another one: 1 - its speed / the best speed.

    `lost`: the speedups that decided against a workload's K.
    """
    fixed = (cell for cell in explored if cell.key.draft.is_fixed)
    at = {(cell.key.condition.workload, cell.k): cell for cell in fixed}
    bounds = {}
    for workload, best in best_k.items():
        if speedup := lost.get((workload, k)):
            bounds[workload] = _loss_of(speedup)
            continue
        cell, other = at.get((workload, k or best)), at.get((workload, best))
        if k == best or cell is None or other is None:
            continue
        both = against(cell, other) if k and best else cell  # a cell's own baseline is K = 0
        ratio = log_speedup(both, paired_decode(both))
        if ratio is None or ratio.spread is None:
            continue
        log, half = ratio.log if k else -ratio.log, ratio.spread.margin()
        ends = (1 - math.exp(log + shift) for shift in (0.0, half, -half))
        bounds[workload] = Interval(**dict(zip(("estimate", "low", "high"), ends, strict=True)))
    return bounds


def _loss_of(speedup: Interval) -> Interval:
    """The share of the speed of K = 0 that a K loses."""
    assert speedup.low is not None
    assert speedup.high is not None
    low, high = 1 - speedup.high, 1 - speedup.low
    return Interval(estimate=1 - speedup.estimate, low=low, high=high)


def across_workloads(key: CellKey) -> CellKey:
    """The key of a pairing's cells without workload and K."""
    return key.without("workload").at(Fixed(0))


def losses_of(
    regret: Mapping[str, float],
    best: Mapping[str, str],
    bounds: Mapping[str, Interval] | None = None,
) -> tuple[Reason, ...]:
    """What is lost on each workload, without losses that print as 0.0%.

    `best`: the answers of workloads with another answer, such as `K=2`, which are always named.
    `bounds`: the losses with their intervals, where they are known.
    """
    bounds = bounds or {}
    bounded = [_loss(name, loss, best.get(name)) for name, loss in bounds.items()]
    regret = {name: loss for name, loss in regret.items() if name not in bounds}
    losses = [
        *bounded,
        *(Kind.LOSS(share=loss, workload=name) for name, loss in regret.items() if loss >= _SHOWN),
    ]
    equal = [
        Kind.LOSS_UNMEASURABLE(workload=name, best=best[name])
        for name, loss in regret.items()
        if loss < _SHOWN and name in best
    ]
    return (*losses, *equal) or (Kind.NO_LOSS(),)


def _loss(workload: str, loss: Interval, best: str | None) -> Reason:
    """A loss by its interval: shown, small, or unknown."""
    assert loss.low is not None
    assert loss.high is not None
    if loss.low > 0:
        return Kind.LOSS_BETWEEN(low=loss.low, high=loss.high, workload=workload)
    if loss.high < _SHOWN:
        return Kind.LOSS_UNMEASURABLE(workload=workload, best=best)
    if loss.high <= SMALL_LOSS:
        return Kind.LOSS_AT_MOST(high=loss.high, workload=workload, best=best)
    return Kind.LOSS_UNKNOWN(high=loss.high, workload=workload, best=best)


def one_k(shared: SharedK) -> Reason:
    """The shared K and what it loses."""
    k = shared.num_speculative_tokens
    regret = {name: loss for name, loss in shared.regret.items() if name not in shared.open_on}
    best = {name: f"K={other}" for name, other in shared.best_k.items() if other != k}
    return Kind.ONE_K(
        k=k,
        losses=losses_of(
            regret,
            best,
            {name: b for name, b in shared.regret_bounds.items() if name not in shared.open_on},
        ),
        open_on=shared.open_on,
        left_out=tuple(f"K={other}" for other in shared.left_out),
    )


ObjectiveName = Literal["latency", "throughput", "goodput", "cost"]
OBJECTIVES: tuple[ObjectiveName, ...] = get_args(ObjectiveName)

# The names of limits, and the metrics that they limit.
LIMITS = {
    **REQUEST_LIMITS,
    **{f"{name}_p{p}": f"{of}_p{p}" for name, of in REQUEST_LIMITS.items() for p in (90, 95, 99)},
    "queue": "queue_s",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Objective:
    """The quantity to optimize, with `limits`: upper bounds in seconds, by metric.

    `latency`: seconds per token of one user; `throughput`: tokens per second of all users;
    `goodput`: requests per second within the run's SLO; `cost`: money per million tokens.
    """

    name: Annotated[ObjectiveName, Doc("`latency`, `throughput`, `goodput` or `cost`")] = "latency"
    limits: Annotated[Mapping[str, float], Doc("those of `--slo`, by metric", "s")] = field(
        default_factory=dict
    )
    price_per_hour: Annotated[float | None, Doc("of the machine; only for `cost`")] = None

    @property
    def unit(self) -> str:
        units = ("s/token", "tokens/s", "requests/s", "per million tokens")
        return dict(zip(OBJECTIVES, units, strict=True))[self.name]


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """One configuration for a workload; rates are in tokens (goodput: requests) per second."""

    key: CellKey
    value: float  # in the unit of the objective
    rate: float
    cautious_rate: float  # lower end of its 95% interval; `rate` if that is unknown
    highest_rate: float | None  # upper end; None: unknown
    broken: tuple[Reason, ...]  # limits that it exceeds, or whose metric it does not have
    excess: float  # the largest value as a multiple of its limit; infinite if one is unknown


@dataclass(frozen=True, kw_only=True, slots=True)
class Recommendation:
    """The answer for one workload."""

    condition: Condition  # without concurrency and variant, which are part of the answer
    best: Candidate | None  # None: every candidate exceeds a limit
    candidates: tuple[Candidate, ...]  # best first; without one, closest to the limits first
    options: tuple[Candidate, ...]  # for `joint_recommendation`
    tied: tuple[CellKey, ...] = ()  # than which `best` is not shown to be faster
    is_decided: bool = False  # no answer is undecided at the setting of `best`


@dataclass(frozen=True, kw_only=True, slots=True)
class JointRecommendation:
    """One configuration for all workloads of a target; regret: the lost share of the best rate."""

    key: CellKey  # of the first workload
    regret: Mapping[str, float]
    best_by_workload: Mapping[str, CellKey]  # of workloads with another answer
    left_out: tuple[CellKey, ...] = ()  # those of them that are not usable on every workload
    open_on: tuple[str, ...] = ()  # workloads whose answer is undecided: the loss is unknown


def recommend_for(
    cells: Sequence[CellSummary], decisions: Sequence[Decision], objective: Objective
) -> tuple[Recommendation, ...]:
    """One answer per workload and setting; concurrency and variant are part of the answer.

    The highest rate wins; drafts take part if they are faster. If rates are within 1%, not
    speculating wins, then the lower concurrency, then the smaller K. Latency is compared at the
    lowest measured concurrency, since a higher one is never faster for one user.
    """
    usable = [cell for cell in cells if cell.valid]
    is_latency = objective.name == "latency"  # others are of whole requests anyway (`_gain`)
    against = [d for d in decisions if d.verdict is SpeedupVerdict.NO_SPEEDUP]
    lost = {d.leader: d.decided_by if is_latency else d.speedup for d in against}
    groups: dict[Condition, tuple[list[Candidate], list[Candidate]]] = {}
    for cell in usable:
        rate = _rate(cell, objective)
        if cell.key.is_baseline and rate is not None:
            group_key = cell.key.condition.without("concurrency", "variant")
            candidates, options = groups.setdefault(group_key, ([], []))
            plain = _candidate(cell, rate, objective, _log_margin(cell))
            same = [c for c in usable if c.key.condition == cell.key.condition]
            margin = _log_margin(cell)
            candidates += [plain, *_helping(rate, margin, same, decisions, objective)]
            options += [plain, *_options(rate, same, lost, objective)]
    return tuple(_pick(at, *group, decisions, objective) for at, group in groups.items())


def joint_recommendation(picks: Sequence[Recommendation]) -> JointRecommendation | None:
    """The configuration with the least worst regret over picks of one target and setting.

    Rates are as in `find_shared_k`. A workload's regret is relative to its own answer. A
    configuration is compared if it is within the limits on every workload; of ties within 1% the
    simpler one wins. None for a single workload, without such a configuration, and if K = 0 wins
    only because others have no interval on every workload.
    """
    if len(picks) < 2:
        return None
    options: dict[tuple[object, ...], dict[str, Candidate]] = {}
    for recommendation in picks:
        for candidate in recommendation.options:
            if not candidate.broken:
                workload = candidate.key.condition.workload
                options.setdefault(_configuration(candidate.key), {})[workload] = candidate
    complete = [option for option in options.values() if len(option) == len(picks)]
    if not complete:
        return None
    complete.sort(key=lambda option: _simplicity(next(iter(option.values())).key))
    best = {pick.condition.workload: _answer_rate(pick) for pick in picks}
    rates = [{name: part.rate for name, part in option.items()} for option in complete]
    least = minimax_regret(rates, best)
    key = next(iter(complete[least.option].values())).key
    best_keys = {pick.condition.workload: pick.best.key for pick in picks if pick.best}
    shared = _configuration(key)
    answers = {name: best for name, best in best_keys.items() if _configuration(best) != shared}
    compared = {_configuration(c.key) for option in complete for c in option.values()}
    by_configuration = {_configuration(answer): answer for answer in answers.values()}
    left_out = {name: answer for name, answer in by_configuration.items() if name not in compared}
    if left_out and not key.draft.k:
        return None
    return JointRecommendation(
        key=key,
        regret=least.regret,
        best_by_workload=answers,
        left_out=tuple(left_out.values()),
    )


def _answer_rate(pick: Recommendation) -> float:
    """The rate of a workload's answer among the options; of the best one for an open K = 0."""
    kept = [option for option in pick.options if not option.broken]
    answers: list[Candidate] = []
    if pick.best is not None and (pick.best.key.draft.k or pick.is_decided):
        answer = _configuration(pick.best.key)
        answers = [option for option in kept if _configuration(option.key) == answer]
    return max(option.rate for option in answers or kept)


def _pick(
    condition: Condition,
    group: list[Candidate],
    options: list[Candidate],
    decisions: Sequence[Decision],
    objective: Objective,
) -> Recommendation:
    kept = [candidate for candidate in group if not candidate.broken]
    if objective.name == "latency":
        kept = _at_lowest_concurrency(kept)
        options = _at_lowest_concurrency([option for option in options if not option.broken])
    best = None
    if any(c.key.draft.k and c.key.draft.lossy is None for c in kept):
        kept = [c for c in kept if c.key.draft.lossy is None]  # as in the report
    if kept:
        tied = near_best(kept, lambda candidate: candidate.rate)
        best = min(tied, key=lambda candidate: _simplicity(candidate.key))
    rest = sorted((c for c in group if c is not best), key=lambda c: -c.rate)
    if best is None:
        rest.sort(key=lambda c: c.excess)
    return Recommendation(
        condition=condition,
        best=best,
        candidates=(best, *rest) if best else tuple(rest),
        options=tuple(options),
        tied=tuple(c.key for c in kept if best and c is not best and _is_tied(c, best)),
        is_decided=best is not None and _is_decided(best.key.condition, decisions),
    )


def _is_decided(condition: Condition, decisions: Sequence[Decision]) -> bool:
    """Whether there are decisions at a setting, and none is undecided."""
    verdicts = {d.verdict for d in decisions if d.condition == condition}
    return bool(verdicts) and SpeedupVerdict.UNDECIDED not in verdicts


def _is_tied(candidate: Candidate, best: Candidate) -> bool:
    """Whether the best is not shown to be faster than a candidate. Between K = 0 and a K in one
    setting, the speedup has decided it."""
    is_one_setting = candidate.key.condition == best.key.condition
    if is_one_setting and not (candidate.key.draft.k and best.key.draft.k):
        return False
    if candidate.highest_rate is None or best.highest_rate is None:
        return True
    margin = math.hypot(*(math.log(c.rate / c.cautious_rate) for c in (candidate, best)))
    return math.log(best.rate / candidate.rate) <= margin


def _at_lowest_concurrency(options: list[Candidate]) -> list[Candidate]:
    lowest = min((option.key.condition.concurrency for option in options), default=0)
    return [option for option in options if option.key.condition.concurrency == lowest]


def _helping(
    rate: float,
    plain_margin: float | None,
    cells: Sequence[CellSummary],
    decisions: Sequence[Decision],
    objective: Objective,
) -> Iterator[Candidate]:
    """Candidates that help, at `rate` times the speedup of their confirmation run; K = 0 has the
    `plain_margin`."""
    by_key = {cell.key: cell for cell in cells}
    for decision in decisions:
        cell, speedup = by_key.get(decision.leader), decision.speedup
        if cell is None or speedup is None or speedup.low is None:
            continue
        if decision.verdict is SpeedupVerdict.FASTER:
            gain = _gain(cell, speedup.estimate, objective)
            first = cell.speedup.estimate if cell.speedup else speedup.estimate
            pace = first / speedup.estimate  # time per token relative to the exploration phase
            margin = math.hypot(math.log(speedup.estimate / speedup.low), plain_margin or 0.0)
            yield _candidate(cell, rate * gain, objective, margin, pace)


def _options(
    rate: float,
    cells: Sequence[CellSummary],
    lost: Mapping[CellKey, Interval | None],
    objective: Objective,
) -> Iterator[Candidate]:
    """What a joint configuration is chosen from, at `rate` times the speedup of the exploration
    phase, or the one that decided against it."""
    for group in by_question(cell for cell in cells if cell.key.draft.lossy is None):
        for cell in deciding(group):
            speedup = lost.get(cell.key, cell.speedup)
            if speedup is not None:
                cell_rate = rate * _gain(cell, speedup.estimate, objective)
                yield _candidate(cell, cell_rate, objective, None)


def _log_margin(cell: CellSummary) -> float | None:
    return None if cell.speed_margin is None else math.log1p(cell.speed_margin)


def _candidate(
    cell: CellSummary,
    rate: float,
    objective: Objective,
    margin: float | None,
    pace: float = 1.0,
) -> Candidate:
    """A candidate whose log rate has a margin; None: unknown."""
    broken = dict(_broken(cell, objective, rate, pace))
    return Candidate(
        key=cell.key,
        value=_value(rate, objective),
        rate=rate,
        cautious_rate=rate * math.exp(-(margin or 0.0)),
        highest_rate=None if margin is None else rate * math.exp(margin),
        broken=tuple(broken),
        excess=max(broken.values(), default=0.0),
    )


def _rate(cell: CellSummary, objective: Objective) -> float | None:
    """Tokens per second of one user (latency) or of all users; for goodput requests per second."""
    if objective.name == "goodput":
        served = number_of(cell.metrics, "requests_per_s")
        # Half a request if none is within the limits, as in the goodput ratio.
        least = served and 0.5 * served / cell.num_requests
        return number_of(cell.metrics, "goodput_requests_per_s") or least
    if objective.name == "latency":
        seconds = number_of(cell.metrics, "tpot_s")
        return 1 / seconds if seconds else None
    return _all_users_rate(cell)


def _all_users_rate(cell: CellSummary) -> float | None:
    """Tokens per second of all users; if requests overlap, preferably while the batch is full."""
    names = ["busy_tokens_per_s", "aggregate_tokens_per_s"]
    if not cell.key.condition.is_stream:
        names = ["end_to_end_tokens_per_s", "aggregate_tokens_per_s", "decode_tokens_per_s"]
    return next((rate for name in names if (rate := number_of(cell.metrics, name))), None)


def _gain(cell: CellSummary, speedup: float, objective: Objective) -> float:
    """The factor on `_rate`: 1 for the throughput of an open loop, which arrivals determine.

    The decode speedup of one request excludes prefill, so throughput scales it by the ratio of the
    end-to-end speedup to the decode speedup in the exploration phase.
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


def _broken(
    cell: CellSummary, objective: Objective, rate: float, pace: float
) -> Iterator[tuple[Reason, float]]:
    """Limits that a cell exceeds, and its value as a multiple of each; infinite if it is unknown.

    `pace`: its time per token relative to the exploration phase. The latency objective takes
    the time per token from `rate`, the value that is shown: cells may have had other prompts.
    """
    names = {metric: name for name, metric in LIMITS.items()}
    for metric, limit in objective.limits.items():
        seconds = number_of(cell.metrics, metric)
        if seconds is None:
            yield Kind.LIMIT_UNKNOWN(limit=names[metric]), math.inf
            continue
        if metric == "tpot_s" and objective.name == "latency":
            seconds = 1 / rate
        elif metric.startswith("tpot_s"):
            seconds *= pace
        if seconds > limit:
            over = Kind.OVER_LIMIT(limit=names[metric], seconds=seconds, most=limit)
            yield over, seconds / limit


def _configuration(key: CellKey) -> tuple[object, ...]:
    return key.draft, key.condition.concurrency, key.condition.variant


def _simplicity(key: CellKey) -> tuple[bool, int, tuple[int, int]]:
    return key.draft.k > 0, key.condition.concurrency, key.draft.order
