"""Recommendations for an objective as sentences, tables and JSON."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from enum import StrEnum
from typing import Annotated, Any, Literal, NamedTuple

from specbench.decide.comparisons import Crossover
from specbench.decide.objective import (
    Candidate,
    JointRecommendation,
    Objective,
    Recommendation,
    joint_recommendation,
    losses_of,
    recommend_for,
)
from specbench.decide.recommend import ContextDecisions, judge
from specbench.doc import Doc, Key, docs_of, json_object, several, type_of
from specbench.records import CellKey, Condition, Decision, Interval, Kind, Reason, SpeedupVerdict
from specbench.records.keys import AXES, FlatKey
from specbench.report.answers import context_lines
from specbench.report.comparisons import variant_reasons
from specbench.report.document import Document
from specbench.report.grids import Grid, grid_of
from specbench.report.memory import memory_left, tokens_left
from specbench.report.sections import setting_name
from specbench.words.answers import MOST_REASONS, REASON, joined, reason_json, text
from specbench.words.numbers import listed, measured


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
        lines += (f"  {warning}" for warning in _warnings(document, pick))
    lines += (text(reason) for reason in joint_reasons(document, picks))
    lines += context_lines(document, _settings(picks))
    missing = without_recommendation(document, picks, workloads)
    return [*lines, *(f"{name}: {text(reason)}" for name, reason in missing.items())]


def joint_reasons(document: Document, picks: Sequence[Recommendation]) -> Iterator[Reason]:
    """One configuration for all workloads of a setting, unless all of them are undecided."""
    settings = [pick.condition.without("workload") for pick in picks]
    undecided = [pick.condition.workload for pick in picks if is_open(document, pick)]
    for joint in joint_recommendations(picks) if len(undecided) < len(picks) else ():
        setting = joint.key.condition.without("workload", "concurrency", "variant")
        yield Kind.ONE_CONFIGURATION(
            setting="".join(f", {part}" for part in setting.distinct_parts(settings)),
            configuration=_configuration(joint.key),
            losses=_losses(joint, undecided),
            open_on=tuple(sorted(undecided)),
            left_out=tuple(_method(key) for key in joint.left_out),
        )


def _settings(picks: Sequence[Recommendation]) -> set[Condition]:
    """The settings of the chosen configurations, without the context."""
    return {pick.best.key.condition.without("context") for pick in picks if pick.best}


def is_open(document: Document, pick: Recommendation) -> bool:
    """Whether K = 0 was recommended without a decision against drafts."""
    return no_valid_speculative_run(document, pick) or best_undecided(document, pick) is not None


def title(pick: Recommendation, picks: Sequence[Recommendation]) -> str:
    """The workload, and what else distinguishes the pick from the others."""
    return setting_name(pick.condition, [other.condition for other in picks])


def without_recommendation(
    document: Document, picks: Sequence[Recommendation], workloads: Sequence[str]
) -> dict[str, Reason]:
    """Workloads of the run without a recommendation, and why; only `workloads` if given."""
    answered = {pick.condition.workload for pick in picks}
    with_cells = {cell.key.condition.workload for cell in document.cells}
    planned = dict.fromkeys(plan.key.condition.workload for plan in document.run.cells)
    return {
        name: Kind.NO_VALID_BASELINE() if name in with_cells else Kind.UNANSWERED()
        for name in planned
        if name not in answered and (not workloads or name in workloads)
    }


def joint_recommendations(picks: Sequence[Recommendation]) -> tuple[JointRecommendation, ...]:
    """One for each target and setting with several workloads."""
    groups: dict[object, list[Recommendation]] = {}
    for pick in picks:
        groups.setdefault(pick.condition.without("workload"), []).append(pick)
    return tuple(filter(None, map(joint_recommendation, groups.values())))


def candidate_grid(
    document: Document,
    pick: Recommendation,
    objective: Objective,
    picks: Sequence[Recommendation] = (),
) -> Grid:
    """The candidates of a pick, best first; its title distinguishes it from the other `picks`."""
    chosen = "chosen"
    if no_valid_speculative_run(document, pick):
        chosen = "not compared"
    elif best_undecided(document, pick) is not None:
        chosen = "undecided"
    units = {
        "latency": "per token",
        "throughput": "all users",
        "goodput": "within the limits",
        "cost": "per million tokens",
    }
    candidates = pick.candidates
    remarks = [chosen if c is pick.best else joined(c.broken) for c in candidates]
    bounds = [
        measured(candidate.cautious_rate, objective.unit)
        if objective.name == "goodput"
        else f"{candidate.cautious_rate:,.0f} tok/s"
        for candidate in candidates
    ]
    return grid_of(
        title(pick, picks),
        ("configuration", [_method(candidate.key, "K=0") for candidate in candidates]),
        ("requests", [str(candidate.key.condition.concurrency) for candidate in candidates]),
        (units[objective.name], [_value(candidate.value, objective) for candidate in candidates]),
        ("lower bound", bounds),
        ("", remarks),
        num_remarks=1,
        marks=["chosen" if remark == "chosen" else "" for remark in remarks],
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
        yield from _runner_up(document, key)
    else:
        for decision in document.decisions:
            if decision.leader == key:
                yield from decision.reasons[:MOST_REASONS]
    yield from _saturation(document.crossovers, pick)
    yield from memory_left(document, key)


def _warnings(document: Document, pick: Recommendation) -> tuple[str, ...]:
    """The warnings about the measurement that the reasons are from."""
    if pick.best is None or no_valid_speculative_run(document, pick):
        return ()
    decided = _best_without_drafts(document, pick.best.key)
    if pick.best.key.draft.k:
        decided = next((d for d in document.decisions if d.leader == pick.best.key), None)
    return decided.warnings if decided else ()


def _best_without_drafts(document: Document, plain: CellKey) -> Decision | None:
    """The most promising decision for K = 0 at the setting of `plain`, an undecided one first."""
    decisions = list(_no_draft_decisions(document, plain))
    undecided = [pair for pair in decisions if pair[1].verdict is SpeedupVerdict.UNDECIDED]
    return _most_promising(document, undecided or decisions)[1] if decisions else None


def _runner_up(document: Document, plain: CellKey) -> Iterator[Reason]:
    """Why the best configuration with drafts at the setting of a K = 0 does not help."""
    decisions = list(_no_draft_decisions(document, plain))
    if decisions:
        undecided = [pair for pair in decisions if pair[1].verdict is SpeedupVerdict.UNDECIDED]
        speedup, best = _most_promising(document, undecided or decisions)
        is_lost = speedup.estimate <= 1 or judge(speedup) is SpeedupVerdict.NO_SPEEDUP
        kind = Kind.OPEN_RUNNER_UP if is_lost else Kind.BEST_OPEN
        if not undecided:
            kind = Kind.RUNNER_UP
        yield kind(configuration=_method(best.leader), speedup=speedup)
        yield from best.reasons[:MOST_REASONS]


def _no_draft_decisions(document: Document, plain: CellKey) -> Iterator[tuple[Interval, Decision]]:
    """The decisions for K = 0 at the setting of `plain`, with the speedups that they are about."""
    first_pass = {cell.key: cell.speedup for cell in document.cells}
    for decision in document.decisions:
        if not decision.draft.k and decision.condition == plain.condition:
            speedup = decision.speedup or first_pass.get(decision.leader)
            if speedup is not None:
                yield speedup, decision


def best_undecided(document: Document, pick: Recommendation) -> Decision | None:
    """The most promising undecided decision at the setting of a recommended K = 0."""
    if pick.best is None or pick.best.key.draft.k:
        return None
    decisions = _no_draft_decisions(document, pick.best.key)
    undecided = [pair for pair in decisions if pair[1].verdict is SpeedupVerdict.UNDECIDED]
    return _most_promising(document, undecided)[1] if undecided else None


def _most_promising(
    document: Document, decisions: Sequence[tuple[Interval, Decision]]
) -> tuple[Interval, Decision]:
    """The highest estimate of a valid cell, or of any if none is valid."""
    valid = {cell.key for cell in document.cells if cell.valid}
    return max(decisions, key=lambda pair: (pair[1].leader in valid, pair[0].estimate))


def no_valid_speculative_run(document: Document, pick: Recommendation) -> bool:
    """Whether K = 0 was chosen because no valid cell with drafts can be compared with it."""
    if pick.best is None or pick.best.key.draft.k:
        return False
    setting = pick.best.key.condition
    return not any(
        cell.key.draft.k and cell.valid and cell.speedup is not None
        for cell in document.cells
        if cell.key.condition == setting
    )


def _not_valid(document: Document, plain: CellKey) -> Iterator[Reason]:
    """Why no cell with drafts at the setting of a K = 0 is valid."""
    setting = plain.condition
    for decision in document.decisions:
        if decision.condition == setting:
            because: tuple[Reason | str, ...] = (*decision.reasons, *decision.warnings)
            yield Kind.SOURCE_INVALID(pairing=decision.leader.source, because=because)
    names: dict[str, list[str]] = {}
    for key in document.missing:
        if key.condition == setting and key.draft.k:
            names.setdefault(key.source, []).append(key.draft.length.label)
    if names:
        cells = tuple(f"{source} at K = {listed(ks)}" for source, ks in names.items())
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
    return Kind.RECOMMENDED(
        configuration=_configuration(pick.best.key),
        value=value,
        tied=_tied_variants(document, pick.best.key),
    )


def headline(document: Document, pick: Recommendation, objective: Objective) -> str:
    """The recommendation for one workload in words, without its name."""
    is_undecided = pick_verdict(document, pick) is PickVerdict.UNDECIDED
    words = "undecided: " if is_undecided else ""
    return f"{words}{text(recommended(document, pick, objective))}{document.mark}"


def _tied_variants(document: Document, key: CellKey) -> tuple[str, ...]:
    """The variants than which the chosen one is not shown to be faster."""
    pairs = [{pair.cell, pair.peer} for pair in document.variants if pair.is_undecided]
    return tuple(
        str(other.condition.variant) for both in pairs if key in both for other in both - {key}
    )


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
        if key.condition.without("concurrency", "variant") != pick.condition:
            continue
        known = crossover.with_interval
        if stop is not None and stop > known[0]:
            speedup = next(p.speedup for p in points if p.at == stop)
            is_lost = speedup is not None and speedup.estimate <= 1
            yield Kind.USERS_UP_TO(
                configuration=_method(key),
                users=(max(at for at in known if at < stop), "user"),
                verdict=(SpeedupVerdict.NO_SPEEDUP if is_lost else SpeedupVerdict.UNDECIDED).value,
                stop=stop,
            )


SCHEMA_VERSION = 1

_OF_CONFIGURATION = tuple(
    ["pairing", "method", "num_speculative_tokens", "adaptive", "concurrency", "lossy", "variant"]
)
_NOT_IN_CONFIGURATION = {*AXES} - {*_OF_CONFIGURATION}
_NOT_IN_SETTING = {*AXES} - {axis.name for axis in fields(Condition)} | {"concurrency", "variant"}
_CANDIDATE = type_of(
    "Candidate",
    "A configuration for a workload.",
    (FlatKey, _NOT_IN_CONFIGURATION),
    value=Annotated[float, Doc("in the unit of the objective")],
    tokens_per_s=Annotated[
        float, Doc("its rate; missing for goodput", "tokens/s", is_optional=True)
    ],
    tokens_per_s_low=Annotated[
        float, Doc("the same at the lower bound of the speedup", "tokens/s", is_optional=True)
    ],
    requests_per_s=Annotated[
        float, Doc("its rate within the limits, only for goodput", "requests/s", is_optional=True)
    ],
    requests_per_s_low=Annotated[
        float, Doc("the same at the lower bound of the speedup", "requests/s", is_optional=True)
    ],
    broken_limits=Annotated[several(REASON), Doc("limits that it exceeds")],
)
_PICK = type_of(
    "Pick",
    "The answer for one workload and setting; concurrency and variant are part of the answer.",
    (FlatKey, _NOT_IN_SETTING),
    verdict=Annotated[
        PickVerdict, Doc("`speculate`, `do not speculate`, `undecided`, or `over the limits`")
    ],
    answer=Annotated[several(REASON), Doc("what to run")],
    text=Annotated[str, Doc("the answer in words")],
    no_valid_speculative_run=Annotated[
        bool, Doc("`true`: without a valid measurement with drafts")
    ],
    is_undecided=Annotated[
        bool,
        Doc("`true`: a configuration with drafts is undecided, so `best` is not a recommendation"),
    ],
    best=Annotated[
        _CANDIDATE | None, Doc("one of the candidates; absent: no configuration meets the limits")
    ],
    candidates=Annotated[several(_CANDIDATE), Doc("all candidates, the best first")],
    reasons=Annotated[several(REASON), Doc("why, the most important first")],
    warnings=Annotated[tuple[str, ...], Doc("about the measurement that they are from")],
)
_SHARED = type_of(
    "Shared",
    "One configuration for all workloads of a target and setting.",
    (FlatKey, {*_NOT_IN_SETTING, "workload"}),
    best=Annotated[
        type_of("Configuration", "A configuration.", (FlatKey, _NOT_IN_CONFIGURATION)),
        Doc("the configuration"),
    ],
    regret=Annotated[
        Mapping[str, float],
        Doc("by workload, the share of its best rate that is lost (0.05: 5%)", "fraction"),
    ],
)
_AT_CONTEXT = type_of(
    "AtContext",
    "The verdict at one context length.",
    (FlatKey, {*_NOT_IN_CONFIGURATION} - {"context"}),
    verdict=Annotated[str, Doc("`faster`, `no speedup` or `undecided`")],
    speedup=Annotated[Interval | None, docs_of(Decision)["speedup"]],
    memory_left_tokens=Annotated[
        int | None,
        Doc("how many more tokens of context the GPU has memory for, per request; may be negative"),
    ],
)
_BY_CONTEXT = type_of(
    "ByContext",
    "K by context length, of one pairing and setting.",
    (FlatKey, {*_NOT_IN_SETTING, "context"}),
    contexts=Annotated[several(_AT_CONTEXT), Doc("one per context length, the shortest first")],
    break_even_k=Annotated[
        int | None, Doc("the K of the longest context with a speedup; absent: none")
    ],
    break_even=Annotated[
        Interval | None, Doc("that of the `context_curve` of this K; absent: not shown", "tokens")
    ],
)


class _Recommended(NamedTuple):
    """The recommendations of a run, and what else their JSON document is made from."""

    document: Document
    picks: Sequence[Recommendation]
    objective: Objective
    workloads: Sequence[str]


KEYS: Mapping[str, Key] = {
    "schema_version": Key(Literal[1], "version of this document", lambda _: SCHEMA_VERSION),
    "run_id": Key(str, "id of the run", lambda r: r.document.run.run_id),
    "synthetic": Key(
        bool,
        "as in the document of a run",
        lambda r: r.document.run.settings.decoder.is_synthetic,
    ),
    "objective": Key(
        type_of("Goal", "The objective.", (Objective, ()), unit=Annotated[str, Doc("of `value`")]),
        "the quantity that is best",
        lambda r: asdict(r.objective) | {"unit": r.objective.unit},
    ),
    "picks": Key(
        several(_PICK),
        "one per workload and setting",
        lambda r: [_pick_json(r.document, pick, r.objective) for pick in r.picks],
    ),
    "shared": Key(
        several(_SHARED),
        "one configuration for all workloads of a target and setting",
        lambda r: list(map(_shared_json, joint_recommendations(r.picks))),
    ),
    "by_context": Key(
        several(_BY_CONTEXT),
        "one per pairing and setting with several context lengths",
        lambda r: [
            _by_context_json(r.document, entry)
            for entry in r.document.by_context
            if entry.condition in _settings(r.picks)
        ],
    ),
    "without_recommendation": Key(
        Mapping[str, REASON],
        "workload to the reason why it has no pick",
        lambda r: {
            name: reason_json(reason)
            for name, reason in without_recommendation(r.document, r.picks, r.workloads).items()
        },
    ),
}


def recommendation_json(
    document: Document,
    picks: Sequence[Recommendation],
    objective: Objective,
    *,
    workloads: Sequence[str] = (),
) -> dict[str, Any]:
    """The recommendations as a JSON document."""
    return json_object(KEYS, _Recommended(document, picks, objective, workloads))


def _pick_json(document: Document, pick: Recommendation, objective: Objective) -> dict[str, Any]:
    return {
        "workload": pick.condition.workload,
        "target": pick.condition.target,
        **_setting_json(pick.condition),
        "verdict": pick_verdict(document, pick),
        "answer": [reason_json(recommended(document, pick, objective))],
        "text": headline(document, pick, objective),
        "no_valid_speculative_run": no_valid_speculative_run(document, pick),
        "is_undecided": best_undecided(document, pick) is not None,
        "best": _candidate_json(pick.best, objective) if pick.best else None,
        "candidates": [_candidate_json(candidate, objective) for candidate in pick.candidates],
        "reasons": list(map(reason_json, reasons(document, pick))),
        "warnings": _warnings(document, pick),
    }


def _shared_json(joint: JointRecommendation) -> dict[str, Any]:
    return {
        "target": joint.key.condition.target,
        **_setting_json(joint.key.condition),
        "best": _key_json(joint.key),
        "regret": dict(joint.regret),
    }


def _by_context_json(document: Document, entry: ContextDecisions) -> dict[str, Any]:
    return {
        "workload": entry.condition.workload,
        "target": entry.condition.target,
        **_setting_json(entry.condition, "context"),
        "contexts": [
            {
                "context": decision.condition.context,
                **_key_json(decision.key),
                "verdict": decision.verdict,
                "speedup": decision.speedup,
                "memory_left_tokens": tokens_left(document, decision.key),
            }
            for decision in entry.decisions
        ],
        "break_even_k": entry.key.draft.k if entry.key else None,
        "break_even": entry.break_even,
    }


def _candidate_json(candidate: Candidate, objective: Objective) -> dict[str, Any]:
    counted = "requests" if objective.name == "goodput" else "tokens"
    return {
        **_key_json(candidate.key),
        "value": candidate.value,
        f"{counted}_per_s": candidate.rate,
        f"{counted}_per_s_low": candidate.cautious_rate,
        "broken_limits": list(map(reason_json, candidate.broken)),
    }


def _setting_json(at: Condition, *without: str) -> dict[str, Any]:
    """The axes that distinguish the picks of one workload, without concurrency and variant."""
    left_out = ("target", "workload", "concurrency", "variant", *without)
    return {name: value for name, value in at.flat.items() if name not in left_out}


def _key_json(key: CellKey) -> dict[str, Any]:
    return {name: key.flat[name] for name in _OF_CONFIGURATION}
