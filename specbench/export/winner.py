"""The pairing to deploy after a measured run, and its K for each number of requests."""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from statistics import fmean
from typing import NamedTuple

from specbench.decide.objective import (
    Objective,
    find_shared_k,
    joint_recommendation,
    one_k,
    recommend_for,
)
from specbench.decide.recommend import (
    by_context,
    by_question,
    choose,
    lower_bound,
    verdict_of,
)
from specbench.engines.deployment import Deployment, Export, Exporter, Tier
from specbench.errors import UsageError
from specbench.inputs.pairing import Pairing
from specbench.metrics.aggregate import usable_sessions
from specbench.metrics.cell import CellData
from specbench.records import (
    ASSISTED_DEFAULT,
    NO_DRAFTER,
    CellSummary,
    Condition,
    Decision,
    Kind,
    Reason,
    ServerRecord,
    SpeedupVerdict,
)
from specbench.settings import SERVED


class Selection(NamedTuple):
    """The decisions of a run to export; None: all."""

    workload: str | None = None
    temperature: float | None = None
    concurrency: int | None = None
    engine: str | None = None  # the engine to export to, whose own decisions are preferred
    context: int | None = None  # tokens of the prompts

    def includes(self, condition: Condition) -> bool:
        """Whether decisions of a condition are selected, whatever its engine."""
        return (
            condition.num_samples == 1
            and self.workload in (None, condition.workload)
            and self.temperature in (None, condition.temperature)
            and self.concurrency in (None, condition.concurrency)
            and self.context in (None, condition.context)
        )


def winner(
    pairings: Sequence[Pairing],
    decisions: Iterable[Decision],
    cells: Iterable[CellSummary],
    selection: Selection,
    variants: Mapping[str, Sequence[str]] | None = None,
    explored: Sequence[CellData] = (),
) -> Deployment:
    """The best of `pairings` (those of one target) with its K, by the decisions of `selection`.

    For several workloads K is the one with the smallest maximum regret. The decisions are those of
    one engine, if possible the one to export to. By default they are of the lowest temperature, the
    shortest prompts and the fastest of `variants`, which maps each to its arguments. `explored` has
    the requests, for the interval of what a shared K loses. Raises UsageError without a decision.
    """
    decisions, cells = tuple(decisions), tuple(cells)
    by_name = {pairing.name: pairing for pairing in pairings}
    selected = _select([d for d in decisions if d.leader.pairing in by_name], selection, cells)
    if not selected:
        raise UsageError(
            f"the run has no decision for {', '.join(by_name)}{_in_words(selection)}; measure it "
            "with `specbench sweep-k`, or give K by hand: -k 4"
        )
    name = _best(selected)
    chosen = [d for d in selected if d.leader.pairing == name]
    condition = chosen[0].condition
    temperatures = {
        d.condition.temperature
        for d in decisions
        if (d.leader.pairing, d.condition.engine) == (name, condition.engine)
    }
    known = [cell for cell in cells if cell.key.pairing == name]
    by_concurrency = [
        (concurrency, *_at_concurrency(list(group), known, explored))
        for concurrency, group in groupby(chosen, _concurrency)
    ]
    basis = tuple(reason for *_, reasons in by_concurrency for reason in reasons)
    limits: list[Reason] = []
    undecided = tuple(concurrency for concurrency, tier, _ in by_concurrency if tier is None)
    if undecided and len(undecided) < len(by_concurrency):
        limits.append(Kind.OPEN_CONCURRENCY(at=undecided))
    unmeasured = temperatures - {condition.temperature} if selection.temperature is None else ()
    conditions = [
        Kind.MEASURED_AT(
            temperature=condition.temperature,
            others=tuple(f"{t:g}" for t in sorted(unmeasured)),
            dtype=condition.dtype,
            engine=condition.engine,
        )
    ]
    arguments = tuple((variants or {}).get(condition.variant or "", ()))
    if condition.variant is not None:
        variant = Kind.PLAIN_VARIANT(variant=condition.variant)
        if arguments:
            words = shlex.join(arguments)
            variant = Kind.VARIANT(variant=condition.variant, arguments=words)
        conditions.append(variant)
    settings = {d.leader.without("context").question for d in chosen}
    lengths = [entry for entry in by_context(decisions, ()) if entry.question in settings]
    basis += tuple(
        Kind.BY_CONTEXT(workload=e.condition.workload, because=tuple(e.answer)) for e in lengths
    )
    tiers = _merged([tier or Tier(concurrency, 0) for concurrency, tier, _ in by_concurrency])
    # Engines name the limit of several tiers themselves.
    if selection.concurrency is None and len(tiers) == 1 and tiers[0].num_speculative_tokens:
        most = chosen[-1].condition.concurrency
        limits.append(Kind.NOT_BEYOND(requests=most))
    return Deployment(
        pairing=by_name[name],
        tiers=tiers,
        temperature=condition.temperature,
        dtype=condition.dtype,
        context=condition.context if any(entry.is_split for entry in lengths) else None,
        basis=basis,
        conditions=tuple(conditions),
        limits=tuple(limits),
        measured_with=condition.engine,
        arguments=arguments,
        undecided=undecided,
    )


_DIFFERING = ("workload", "concurrency", "variant")  # of decisions for one deployment


def _select(
    decisions: list[Decision], selection: Selection, cells: Sequence[CellSummary]
) -> list[Decision]:
    """The closed-loop decisions of one engine, temperature, context and variant, sorted by
    concurrency."""
    left = [
        d
        for d in decisions
        if selection.includes(d.condition)
        and d.condition.request_rate is None
        and d.leader.draft.method != ASSISTED_DEFAULT  # whose K is the engine's own
    ]
    if not left:
        return []
    left = [d for d in left if d.condition.engine == selection.engine] or left
    shared = min((d.condition for d in left), key=attrgetter("order")).without(*_DIFFERING)
    alike = [d for d in left if d.condition.without(*_DIFFERING) == shared]
    conditions = {d.condition for d in alike}
    picks = recommend_for([c for c in cells if c.key.condition in conditions], alike, Objective())
    known = [best.key for best in (joint_recommendation(picks), *(p.best for p in picks)) if best]
    fastest = known[0].condition.variant if known else alike[0].condition.variant
    return sorted((d for d in alike if d.condition.variant == fastest), key=_concurrency)


def _best(decisions: Sequence[Decision]) -> str:
    """The pairing with the highest worst lower bound at the lowest concurrency.

    Pairings are compared on the workloads that all of them share. If they share none, only those
    with the most workloads are compared. The mean decides between equal worst bounds.
    """
    lows: dict[str, dict[str, float]] = {}
    for decision in decisions:
        if _concurrency(decision) == _concurrency(decisions[0]):
            low = lower_bound(decision) if decision.draft.k else 0.0
            lows.setdefault(decision.leader.pairing, {})[decision.condition.workload] = low
    shared = set.intersection(*map(set, lows.values()))
    most = max(map(len, lows.values()))
    compared = {
        name: [low for workload, low in of.items() if not shared or workload in shared]
        for name, of in lows.items()
        if shared or len(of) == most
    }
    return max(compared, key=lambda name: (min(compared[name]), fmean(compared[name])))


def _at_concurrency(
    decisions: list[Decision], cells: Sequence[CellSummary], explored: Sequence[CellData]
) -> tuple[Tier | None, list[Reason]]:
    """The tier of one concurrency with its reasons; None if the evidence is not enough for a K."""
    concurrency = decisions[0].condition.concurrency
    reasons = [
        Kind.DECIDED(
            requests=concurrency,
            workload=d.condition.workload_label,
            verdict=d.verdict,
            because=d.answer,
            mark=d.mark,
        )
        for d in decisions
    ]
    if not any(d.draft.k for d in decisions):
        is_undecided = any(d.verdict is SpeedupVerdict.UNDECIDED for d in decisions)
        return None if is_undecided else Tier(concurrency, 0), reasons
    if all(d.draft.k and not d.leader.draft.is_fixed for d in decisions):
        first = decisions[0]
        if first.condition.engine in SERVED:  # its own scheme, which drafts up to this K
            return Tier(concurrency, first.draft.k), reasons
    questions = {d.leader.question for d in decisions}
    same = [cell for cell in cells if cell.key.draft.is_fixed and cell.key.question in questions]
    if len(decisions) == 1 and decisions[0].leader.draft.is_fixed:
        return Tier(concurrency, decisions[0].draft.k), reasons
    if len(decisions) == 1:
        leader = next((choose(group).leader for group in by_question(same)), None)
        verdict = verdict_of(leader) if leader else SpeedupVerdict.UNDECIDED
        if leader is None or verdict is not SpeedupVerdict.FASTER:
            tier = None if verdict is SpeedupVerdict.UNDECIDED else Tier(concurrency, 0)
            return tier, [*reasons, Kind.NO_FIXED_K()]
        k = leader.key.draft.k
        return Tier(concurrency, k), [*reasons, Kind.BEST_FIXED_K(k=k)]
    keys = {cell.key for cell in same}
    shared = find_shared_k(same, decisions, [cell for cell in explored if cell.key in keys])
    if shared is None:
        return None, [*reasons, Kind.NO_SHARED_K() if same else Kind.NO_FIXED_K()]
    k = shared.num_speculative_tokens
    return Tier(concurrency, k), [*reasons, one_k(shared)]


def _merged(tiers: Sequence[Tier]) -> tuple[Tier, ...]:
    """The tiers with adjacent ones of equal K joined; a single tier has no limit."""
    merged: list[Tier] = []
    for tier in tiers:
        if merged and merged[-1].num_speculative_tokens == tier.num_speculative_tokens:
            merged.pop()
        merged.append(tier)
    return tuple(merged) if len(merged) > 1 else (Tier(None, merged[0].num_speculative_tokens),)


def _concurrency(decision: Decision) -> int:
    return decision.condition.concurrency


def _in_words(selection: Selection) -> str:
    parts = [
        f"on {selection.workload}" if selection.workload else "",
        f"at temperature {selection.temperature:g}" if selection.temperature is not None else "",
        f"with {selection.concurrency} concurrent requests" if selection.concurrency else "",
        f"with prompts of {selection.context:,} tokens" if selection.context else "",
    ]
    return "".join(f" {part}" for part in parts if part)


def export_as_measured(
    exporter: Exporter, deployment: Deployment, version: str | None, config_name: str
) -> Export:
    """The export for the measured release, or the newest that the exporter knows; UsageError."""
    releases = [] if version is None else [version, version.partition("-")[0]]
    for release in dict.fromkeys(releases):  # llama.cpp's have a commit behind the build
        try:
            return exporter.export(deployment, release, config_name)
        except UsageError:
            continue
    return exporter.export(deployment, None, config_name)


def sessions_of(
    deployment: Deployment, engine: str, servers: Sequence[ServerRecord]
) -> list[ServerRecord]:
    """The engine's sessions that measured the deployment; none if another engine measured it."""
    if deployment.measured_with != engine:
        return []
    target, drafters = deployment.pairing.target.name, {deployment.pairing.drafter.name, NO_DRAFTER}
    ks = {tier.num_speculative_tokens for tier in deployment.tiers}
    return [
        server
        for server in usable_sessions(servers).values()
        if (server.engine, server.target) == (engine, target)
        and server.drafter in drafters
        and server.num_speculative_tokens in ks
    ]


def session_notes(sessions: Sequence[ServerRecord], arguments: Sequence[str]) -> Iterator[Reason]:
    """Notes on an engine's own measurement, with the user's additional `arguments`."""
    if not sessions:
        return
    versions = ", ".join(dict.fromkeys(server.version for server in sessions))
    is_started = all(server.command for server in sessions)
    kind = Kind.WITH_FLAGS if is_started else Kind.WITHOUT_FLAGS
    yield kind(engine=f"{sessions[0].engine} {versions}")
    if arguments:
        yield Kind.MORE_ARGUMENTS(arguments=shlex.join(arguments))
