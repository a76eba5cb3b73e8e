"""Recommendations for an objective as sentences, tables and JSON."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from enum import StrEnum
from operator import attrgetter, itemgetter
from typing import Any, Literal, NamedTuple

from specbench.decide.comparisons import Crossover, judge, may_be_equal
from specbench.decide.objective import (
    Candidate,
    JointRecommendation,
    Objective,
    Recommendation,
    joint_recommendation,
    losses_of,
    recommend_for,
)
from specbench.doc import ByName, Doc, JsonObject, Key, Maybe, Several, keys_of
from specbench.records import CellKey, Condition, Decision, Interval, Kind, Reason, SpeedupVerdict
from specbench.records.keys import flat_keys
from specbench.report.answers import context_lines
from specbench.report.comparisons import variant_reasons
from specbench.report.document import Document
from specbench.report.memory import memory_left, tokens_left
from specbench.report.sections import setting_name, unmeasured_drafters
from specbench.words.answers import MOST_REASONS, REASON, joined, text
from specbench.words.numbers import listed, measured
from specbench.words.table import Table, column


def recommendations_of(
    document: Document,
    objective: Objective,
    *,
    concurrency: int | None = None,
    workloads: Sequence[str] = (),
) -> tuple[Recommendation, ...]:
    """The recommendations of a document, at one concurrency or at any."""
    cells = [
        cell
        for cell in document.cells
        if (concurrency is None or cell.key.condition.concurrency == concurrency)
        and (not workloads or cell.key.condition.workload in workloads)
    ]
    return recommend_for(cells, document.decisions, objective)


def recommendation_lines(
    document: Document,
    picks: Sequence[Recommendation],
    objective: Objective,
    *,
    workloads: Sequence[str] = (),
) -> list[str]:
    """The recommendations, each with its reasons indented below, and workloads without one."""
    lines = []
    for pick in picks:
        lines.append(f"{title(pick, picks)}: {headline(document, pick, objective)}")
        lines += (f"  {text(reason)}" for reason in reasons(document, pick))
        lines += (f"  {text(warning)}" for warning in _warnings(document, pick))
    lines += (text(reason) for reason in joint_reasons(document, picks))
    lines += map(text, unmeasured_loads(document, objective))
    lines += context_lines(document, _settings(picks))
    missing = without_recommendation(document, picks, workloads)
    return [*lines, *(f"{name}: {text(reason)}" for name, reason in missing.items())]


def joint_reasons(document: Document, picks: Sequence[Recommendation]) -> Iterator[Reason]:
    """One configuration for all workloads of a setting, and what it loses."""
    settings = [pick.condition.without("workload") for pick in picks]
    for joint in joint_recommendations(document, picks):
        setting = joint.key.condition.without("workload", "concurrency", "variant")
        yield Kind.ONE_CONFIGURATION(
            setting="".join(f", {part}" for part in setting.distinct_parts(settings)),
            configuration=_configuration(joint.key),
            losses=_losses(joint, joint.open_on),
            open_on=joint.open_on,
            left_out=tuple(_method(key) for key in joint.left_out),
        )


def _settings(picks: Sequence[Recommendation]) -> set[Condition]:
    """The settings of the chosen configurations, without the context."""
    return {pick.best.key.condition.without("context") for pick in picks if pick.best}


def is_open(document: Document, pick: Recommendation) -> bool:
    """Whether K = 0 was recommended without a decision against drafts."""
    return no_valid_speculative_run(document, pick) or is_undecided(document, pick)


def title(pick: Recommendation, picks: Sequence[Recommendation]) -> str:
    """The workload, and what else distinguishes the pick from the others."""
    return setting_name(pick.condition, [other.condition for other in picks])


def unmeasured_loads(document: Document, objective: Objective) -> Iterator[Reason]:
    """What an objective about many users does not know from a run with one request at a time."""
    loads = {cell.key.condition.concurrency for cell in document.cells}
    if objective.name != "latency" and loads == {1}:
        yield Kind.NOT_BEYOND(requests=1)


def without_recommendation(
    document: Document, picks: Sequence[Recommendation], workloads: Sequence[str]
) -> dict[str, Reason]:
    """Settings of the run without a recommendation, and why; only of `workloads` if given.

    A setting with a valid K = 0 has none at the wanted concurrency only.
    """
    names = {pick.condition.workload for pick in picks}
    answered = {pick.condition for pick in picks} | {
        _across_loads(cell.key)
        for cell in document.cells
        if cell.valid and cell.key.is_baseline and cell.key.condition.workload in names
    }
    with_cells = {_across_loads(cell.key) for cell in document.cells}
    planned = dict.fromkeys(_across_loads(key) for key in document.run.keys)
    return {
        setting_name(at, planned): (
            Kind.NO_VALID_BASELINE() if at in with_cells else Kind.UNANSWERED()
        )
        for at in planned
        if at not in answered and (not workloads or at.workload in workloads)
    }


def _across_loads(key: CellKey) -> Condition:
    """The setting that one recommendation is for."""
    return key.condition.without("concurrency", "variant")


def joint_recommendations(
    document: Document, picks: Sequence[Recommendation]
) -> tuple[JointRecommendation, ...]:
    """One for each target and setting with several workloads, unless all of them are undecided."""
    groups: dict[Condition, list[Recommendation]] = {}
    for pick in picks:
        groups.setdefault(pick.condition.without("workload"), []).append(pick)
    joints = []
    for group in groups.values():
        open_on = sorted(pick.condition.workload for pick in group if is_open(document, pick))
        joint = joint_recommendation(group) if len(open_on) < len(group) else None
        if joint is not None:
            joints.append(replace(joint, open_on=tuple(open_on)))
    return tuple(joints)


_UNITS = {
    "latency": "per token",
    "throughput": "all users",
    "goodput": "within the limits",
    "cost": "per million tokens",
}


def candidate_grid(
    document: Document,
    pick: Recommendation,
    objective: Objective,
    picks: Sequence[Recommendation] = (),
) -> Table:
    """The candidates of a pick, best first; its title distinguishes it from the other `picks`."""
    chosen = "chosen"
    if no_valid_speculative_run(document, pick):
        chosen = "not compared"
    elif is_undecided(document, pick):
        chosen = "undecided"

    def bound(candidate: Candidate) -> str:
        if objective.name == "goodput":
            return measured(candidate.cautious_rate, objective.unit)
        return f"{candidate.cautious_rate:,.0f} tok/s"

    def remark(candidate: Candidate) -> str:
        return chosen if candidate is pick.best else joined(candidate.broken)

    return Table(
        title=title(pick, picks),
        columns=[
            column("configuration", lambda candidate: _method(candidate.key, "K=0")),
            column("requests", attrgetter("key.condition.concurrency")),
            column(_UNITS[objective.name], lambda candidate: _value(candidate.value, objective)),
            column("lower bound", bound),
            column("", remark),
        ],
        records=pick.candidates,
        num_remarks=1,
        mark=lambda candidate: "chosen" if remark(candidate) == "chosen" else "",
    )


def reasons(document: Document, pick: Recommendation) -> Iterator[Reason]:
    """The main reasons of the chosen configuration, the concurrency up to which it is faster, and
    the memory left.

    For K = 0 the reasons are those of the best configuration with drafts, or why none is valid.
    """
    if pick.best is None:
        return
    key = pick.best.key
    yield from variant_reasons(document, key)
    if not key.draft.k and no_valid_speculative_run(document, pick):
        yield from _not_valid(document, key)
    elif not key.draft.k:
        yield from _runner_up(document, pick)
    else:
        for decision in document.decisions:
            if decision.leader == key:
                yield from decision.reasons[:MOST_REASONS]
    yield from _saturation(document.crossovers, pick)
    yield from memory_left(document, key)


def _warnings(document: Document, pick: Recommendation) -> tuple[Reason, ...]:
    """The warnings about the measurement that the reasons are from."""
    if pick.best is None or no_valid_speculative_run(document, pick):
        return ()
    key, contender = pick.best.key, _contender(document, pick)
    chosen = next((d for d in document.decisions if d.leader == key and key.draft.k), None)
    decided = chosen or (contender and contender[1])
    return decided.warnings if decided else ()


def _runner_up(document: Document, pick: Recommendation) -> Iterator[Reason]:
    """Why the best configuration with drafts at the setting of a K = 0 does not help."""
    if (contender := _contender(document, pick)) is not None:
        speedup, best = contender
        configuration = _method(best.leader)
        if best.verdict is not SpeedupVerdict.UNDECIDED:
            yield Kind.RUNNER_UP(configuration=configuration, speedup=speedup)
        elif all(speedup not in reason.figures.values() for reason in best.answer):
            # The headline does not have the range.
            is_lost = speedup.estimate <= 1 or judge(speedup) is SpeedupVerdict.NO_SPEEDUP
            kind = Kind.OPEN_RUNNER_UP if is_lost else Kind.BEST_OPEN
            yield kind(configuration=configuration, speedup=speedup)
        yield from best.reasons[:MOST_REASONS]


def _contender(document: Document, pick: Recommendation) -> tuple[Interval, Decision] | None:
    """The most promising decision at the setting of a recommended K = 0, with the speedup that it
    is about: an undecided one first, then one of a valid cell, then the highest estimate.
    """
    first_pass = {cell.key: cell for cell in document.cells}
    baselines = []
    for decision in document.decisions:
        cell = first_pass.get(decision.leader)
        speedup = decision.decided_by or (cell and cell.speedup)
        if not decision.draft.k and decision.condition == _plain_setting(pick) and speedup:
            is_open = decision.verdict is SpeedupVerdict.UNDECIDED
            is_valid = cell is not None and cell.valid
            baselines.append(((is_open, is_valid, speedup.estimate), speedup, decision))
    return max(baselines, key=itemgetter(0))[1:] if baselines else None


def best_undecided(document: Document, pick: Recommendation) -> Decision | None:
    """The most promising undecided decision at the setting of a recommended K = 0."""
    _, decision = _contender(document, pick) or (None, None)
    is_open = decision is not None and decision.verdict is SpeedupVerdict.UNDECIDED
    return decision if is_open else None


def is_undecided(document: Document, pick: Recommendation) -> bool:
    """Whether K = 0 was recommended, and some drafter at its setting may be faster."""
    return best_undecided(document, pick) is not None or bool(_unmeasured(document, pick))


def _unmeasured(document: Document, pick: Recommendation) -> tuple[str, ...]:
    """The drafters without a measurement at the setting of a recommended K = 0."""
    setting = _plain_setting(pick)
    return unmeasured_drafters(document, setting) if setting else ()


def no_valid_speculative_run(document: Document, pick: Recommendation) -> bool:
    """Whether K = 0 was chosen because no valid cell with drafts can be compared with it."""
    setting = _plain_setting(pick)
    return setting is not None and not any(
        cell.key.draft.k and cell.valid and cell.speedup is not None
        for cell in document.cells
        if cell.key.condition == setting
    )


def _plain_setting(pick: Recommendation) -> Condition | None:
    """The setting of a recommended K = 0."""
    return pick.best.key.condition if pick.best and not pick.best.key.draft.k else None


def _not_valid(document: Document, plain: CellKey) -> Iterator[Reason]:
    """Why no cell with drafts at the setting of a K = 0 is valid."""
    setting = plain.condition
    for decision in document.decisions:
        if decision.condition == setting:
            because = (*decision.reasons, *decision.warnings)
            yield Kind.SOURCE_INVALID(pairing=decision.leader.source, because=because)
    names: dict[str, list[str]] = {}
    for key in document.missing:
        if key.condition == setting and key.draft.k:
            names.setdefault(key.source, []).append(key.draft.length.label)
    if names:
        cells = tuple(f"{source} at K={listed(ks)}" for source, ks in names.items())
        yield Kind.PLANNED_ONLY(cells=cells)


class PickVerdict(StrEnum):
    """The answer for one workload and objective."""

    SPECULATE = "speculate"
    PLAIN = "do not speculate"
    UNDECIDED = "undecided"
    OVER_LIMITS = "over the limits"


def pick_verdict(document: Document, pick: Recommendation) -> PickVerdict:
    if pick.best is None:
        return PickVerdict.OVER_LIMITS
    if is_open(document, pick):
        return PickVerdict.UNDECIDED
    return PickVerdict.SPECULATE if pick.best.key.draft.k else PickVerdict.PLAIN


def recommended(document: Document, pick: Recommendation, objective: Objective) -> Reason:
    """What to run for one workload."""
    if pick.best is None:
        closest = pick.candidates[0]
        return Kind.OVER_LIMITS(configuration=_configuration(closest.key), because=closest.broken)
    value = (pick.best.value, objective.unit)
    requests = pick.best.key.condition.requests
    if no_valid_speculative_run(document, pick):
        return Kind.NO_DRAFTS_VALID(requests=requests, value=value)
    if (undecided := best_undecided(document, pick)) is not None:
        pairing = undecided.leader.source
        return Kind.DRAFTS_OPEN(
            pairing=pairing, because=undecided.answer, requests=requests, value=value
        )
    if names := _unmeasured(document, pick):
        because = (Kind.NOT_MEASURED(),)
        return Kind.DRAFTS_OPEN(
            pairing=listed(names), because=because, requests=requests, value=value
        )
    return Kind.RECOMMENDED(
        configuration=_configuration(pick.best.key),
        value=value,
        tied=(*_tied_variants(document, pick.best.key), *_tied_levels(document, pick)),
    )


def headline(document: Document, pick: Recommendation, objective: Objective) -> str:
    """The recommendation for one workload in words, without its name."""
    is_undecided = pick_verdict(document, pick) is PickVerdict.UNDECIDED
    words = "undecided: " if is_undecided else ""
    return f"{words}{text(recommended(document, pick, objective))}{document.mark}"


def _tied_variants(document: Document, key: CellKey) -> tuple[str, ...]:
    """The variants than which the chosen one is not shown to be faster."""
    pairs = [{pair.cell, pair.peer} for pair in document.variants if may_be_equal(pair.decode)]
    return tuple(
        f"variant {other.condition.variant}"
        for both in pairs
        if key in both
        for other in both - {key}
    )


def _tied_levels(document: Document, pick: Recommendation) -> tuple[str, ...]:
    """The configurations that no pair of variants compares with the best, and than which it is not
    shown to be faster."""
    pairs = [{pair.cell, pair.peer} for pair in document.variants]
    paired = {key for both in pairs if pick.best and pick.best.key in both for key in both}
    return tuple(_configuration(key) for key in pick.tied if key not in paired)


def _configuration(key: CellKey) -> str:
    return f"{_method(key)}, {key.condition.requests}"


def _method(key: CellKey, plain: str = "do not speculate") -> str:
    name = f"{key.source}, K={key.draft.length.label}" if key.draft.k else plain
    return f"{name}, variant {key.condition.variant}" if key.condition.variant else name


def _value(value: float, objective: Objective) -> str:
    if objective.name == "cost":
        return f"{value:,.4g}"
    return measured(value, objective.unit)


def _losses(joint: JointRecommendation, undecided: Collection[str]) -> tuple[Reason, ...]:
    """The losses by workload; on `undecided` workloads a loss is unknown."""
    regret = {name: loss for name, loss in joint.regret.items() if name not in undecided}
    best = {name: _method(key) for name, key in joint.best_by_workload.items()}
    return losses_of(regret, best)


def _saturation(crossovers: Sequence[Crossover], pick: Recommendation) -> Iterator[Reason]:
    """The concurrency up to which each pairing is faster."""
    for crossover in crossovers:
        key, points, stop = crossover.key, crossover.points, crossover.concurrency
        if _across_loads(key) != pick.condition:
            continue
        known = crossover.with_interval
        if stop is not None and stop > known[0]:
            speedup = next(p.speedup for p in points if p.at == stop)
            yield Kind.USERS_UP_TO(
                configuration=_method(key),
                users=(max(at for at in known if at < stop), "user"),
                verdict=judge(speedup).value,
                stop=stop,
            )


SCHEMA_VERSION = 1

_OF_CONFIGURATION = tuple(
    ["pairing", "method", "num_speculative_tokens", "adaptive", "concurrency", "lossy", "variant"]
)
_OF_SETTING = tuple(  # the axes that distinguish the picks of one workload
    name
    for name in (axis.name for axis in fields(Condition))
    if name not in ("target", "workload", "concurrency", "variant")
)


class _Recommended(NamedTuple):
    """The recommendations of a run, and what else their JSON document is made from."""

    document: Document
    picks: Sequence[Recommendation]
    objective: Objective
    workloads: Sequence[str]


class _Of(NamedTuple):
    """A part of the recommendations, with the run and the objective that it is for."""

    document: Document
    part: Any
    objective: Objective

    def parts(self, parts: Iterable[Any]) -> "list[_Of]":
        return [self._replace(part=part) for part in parts]


def _rate(counted: str, meaning: str, name: str) -> Key:
    """A rate of a candidate in requests or tokens; missing in the other one."""

    def value(of: _Of) -> float | None:
        is_counted = counted == ("requests" if of.objective.name == "goodput" else "tokens")
        return getattr(of.part, name) if is_counted else None

    return Key(float, Doc(meaning, f"{counted}/s", is_optional=True), value)


_LOW = "the same at the lower bound of the speedup"
_CANDIDATE = JsonObject(
    "Candidate",
    "A configuration for a workload.",
    {
        **flat_keys(attrgetter("part.key"), only=_OF_CONFIGURATION),
        "value": Key(float, "in the unit of the objective", attrgetter("part.value")),
        "tokens_per_s": _rate("tokens", "its rate; missing for goodput", "rate"),
        "tokens_per_s_low": _rate("tokens", _LOW, "cautious_rate"),
        "requests_per_s": _rate("requests", "its rate within the limits, only for goodput", "rate"),
        "requests_per_s_low": _rate("requests", _LOW, "cautious_rate"),
        "broken_limits": Key(Several(REASON), "limits that it exceeds", attrgetter("part.broken")),
    },
)
_PICK = JsonObject(
    "Pick",
    "The answer for one workload and setting; concurrency and variant are part of the answer.",
    {
        **flat_keys(attrgetter("part.condition"), only=("workload", "target", *_OF_SETTING)),
        "verdict": Key(
            PickVerdict,
            "`speculate`, `do not speculate`, `undecided`, or `over the limits`",
            lambda of: pick_verdict(of.document, of.part),
        ),
        "answer": Key(Several(REASON), "what to run", lambda of: [recommended(*of)]),
        "text": Key(str, "the answer in words", lambda of: headline(*of)),
        "no_valid_speculative_run": Key(
            bool,
            "`true`: without a valid measurement with drafts",
            lambda of: no_valid_speculative_run(of.document, of.part),
        ),
        "is_undecided": Key(
            bool,
            "`true`: a drafter is undecided or not measured, so `best` is not a recommendation",
            lambda of: is_undecided(of.document, of.part),
        ),
        "best": Key(
            Maybe(_CANDIDATE),
            "one of the candidates; absent: no configuration meets the limits",
            lambda of: of._replace(part=of.part.best) if of.part.best else None,
        ),
        "candidates": Key(
            Several(_CANDIDATE),
            "all candidates, the best first",
            lambda of: of.parts(of.part.candidates),
        ),
        "reasons": Key(
            Several(REASON),
            "why, the most important first",
            lambda of: reasons(of.document, of.part),
        ),
        "warnings": Key(
            Several(REASON),
            "about the measurement that they are from",
            lambda of: _warnings(of.document, of.part),
        ),
    },
)
_CONFIGURATION = JsonObject(
    "Configuration", "A configuration.", flat_keys(lambda key: key, only=_OF_CONFIGURATION)
)
_SHARED = JsonObject(
    "Shared",
    "One configuration for all workloads of a target and setting.",
    {
        **flat_keys(attrgetter("key.condition"), only=("target", *_OF_SETTING)),
        "best": Key(_CONFIGURATION, "the configuration", attrgetter("key")),
        "regret": Key(
            Mapping[str, float],
            Doc("by workload, the share of its best rate that is lost (0.05: 5%)", "fraction"),
        ),
        "open_on": Key(
            tuple[str, ...],
            "workloads whose answer is undecided: what is lost there is unknown",
        ),
    },
)
_AT_CONTEXT = JsonObject(
    "AtContext",
    "The verdict at one context length.",
    {
        **flat_keys(attrgetter("part.key"), only=("context", *_OF_CONFIGURATION)),
        **keys_of(Decision, attrgetter("part"), only=("verdict", "speedup")),
        "memory_left_tokens": Key(
            int | None,
            "how many more tokens of context the GPU has memory for, per request; may be negative",
            lambda at: tokens_left(at.document, at.part.key),
        ),
    },
)


_BY_CONTEXT = JsonObject(
    "ByContext",
    "K by context length, of one pairing and setting.",
    {
        **flat_keys(
            attrgetter("part.condition"),
            only=("workload", "target", *(axis for axis in _OF_SETTING if axis != "context")),
        ),
        "contexts": Key(
            Several(_AT_CONTEXT),
            "one per context length, the shortest first",
            lambda by: by.parts(by.part.decisions),
        ),
        "break_even_k": Key(
            int | None,
            "the K of the longest context with a speedup; absent: none",
            lambda by: by.part.key.draft.k if by.part.key else None,
        ),
        "break_even": Key(
            Interval | None,
            Doc("that of the `context_curve` of this K; absent: not shown", "tokens"),
            attrgetter("part.break_even"),
        ),
    },
)
_GOAL = JsonObject("Goal", "The objective.", {**keys_of(Objective), "unit": Key(str, "of `value`")})
DOCUMENT = JsonObject(
    "Recommend",
    "The output of `specbench recommend --json`.",
    {
        "schema_version": Key(Literal[1], "version of this document", lambda _: SCHEMA_VERSION),
        "run_id": Key(str, "id of the run", attrgetter("document.run.run_id")),
        "synthetic": Key(
            bool,
            "as in the document of a run",
            attrgetter("document.run.settings.decoder.is_synthetic"),
        ),
        "objective": Key(_GOAL, "the quantity that is best"),
        "picks": Key(
            Several(_PICK),
            "one per workload and setting",
            lambda r: [_Of(r.document, pick, r.objective) for pick in r.picks],
        ),
        "shared": Key(
            Several(_SHARED),
            "one configuration for all workloads of a target and setting, unless all are undecided",
            lambda r: joint_recommendations(r.document, r.picks),
        ),
        "by_context": Key(
            Several(_BY_CONTEXT),
            "one per pairing and setting with several context lengths",
            lambda r: [
                _Of(r.document, entry, r.objective)
                for entry in r.document.by_context
                if entry.condition in _settings(r.picks)
            ],
        ),
        "without_recommendation": Key(
            ByName(REASON),
            "workload, and what else distinguishes the setting, to the reason why it has no pick",
            lambda r: without_recommendation(r.document, r.picks, r.workloads),
        ),
    },
)


def recommendation_json(
    document: Document,
    picks: Sequence[Recommendation],
    objective: Objective,
    *,
    workloads: Sequence[str] = (),
) -> dict[str, Any]:
    """The recommendations as a JSON document."""
    return DOCUMENT.of(_Recommended(document, picks, objective, workloads))
