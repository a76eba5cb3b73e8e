"""What a measured run says should be served: the pairing, and K for each number of requests."""

import shlex
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from statistics import fmean
from typing import NamedTuple

from specbench.decide.objective import (
    find_shared_k,
    left_out_in_words,
    losses_in_words,
    other_ks,
)
from specbench.decide.recommend import (
    SpeedupVerdict,
    by_question,
    choose,
    is_undecided,
    judge,
    lower_bound,
)
from specbench.engines.deployment import Deployment, Export, Exporter, Tier
from specbench.errors import UsageError
from specbench.inputs.pairing import Pairing
from specbench.metrics.aggregate import usable_sessions
from specbench.records import (
    ASSISTED_DEFAULT,
    NO_DRAFTER,
    CellSummary,
    Condition,
    Decision,
    ServerRecord,
)

_NO_FIXED_K = "engines take a fixed K, and no fixed K has a proven speedup"
_NO_SHARED_K = "no K has an interval on all of these workloads: export one of them with --workload"


class Selection(NamedTuple):
    """The decisions of a run that count; None: whatever was measured."""

    workload: str | None = None
    temperature: float | None = None
    num_rows: int | None = None
    engine: str | None = None  # that is exported to: its own decisions go first


def winner(
    pairings: Sequence[Pairing],
    decisions: Iterable[Decision],
    cells: Iterable[CellSummary],
    asked: Selection,
) -> Deployment:
    """The best of `pairings` (those of one target) with its K, as the decisions have it.

    K is that of the decision; with several workloads the one whose worst regret is least, as
    long as it helps somewhere. Of several engines the one that is exported to goes first, then our
    own. Of several temperatures the lowest, of several contexts the
    prompts unchanged, unless `asked` says. UsageError where nothing was measured.
    """
    decisions = tuple(decisions)
    by_name = {pairing.name: pairing for pairing in pairings}
    meant = _meant([d for d in decisions if d.leader.pairing in by_name], asked)
    if not meant:
        raise UsageError(
            f"the run has no decision for {', '.join(by_name)}{_in_words(asked)}; measure it with "
            "`specbench sweep-k`, or give K by hand: -k 4"
        )
    name = _best(meant)
    own = [d for d in meant if d.leader.pairing == name]
    temperatures = {
        d.condition.temperature
        for d in decisions
        if (d.leader.pairing, d.condition.engine) == (name, own[0].condition.engine)
    }
    known = [cell for cell in cells if cell.key.pairing == name]
    found = [(rows, *_at_rows(list(group), known)) for rows, group in groupby(own, _rows)]
    basis = tuple(sentence for *_, sentences in found for sentence in sentences)
    if asked.temperature is None and len(temperatures) > 1:
        others = ", ".join(f"{t:g}" for t in sorted(temperatures - {own[0].condition.temperature}))
        here = f"at temperature {own[0].condition.temperature:g}"
        basis = (f"{here}; also measured at {others}: choose with --temperature", *basis)
    tiers = _merged([tier or Tier(rows, 0) for rows, tier, _ in found])
    is_open = asked.num_rows is None and len(tiers) == 1  # engines' words for tiers say it
    if is_open and tiers[0].num_speculative_tokens:
        most = own[-1].condition.concurrency
        at_once = "1 request" if most == 1 else f"{most} requests"
        basis = (*basis, f"beyond {at_once} at once nothing was measured: see --concurrency")
    return Deployment(
        pairing=by_name[name],
        tiers=tiers,
        temperature=own[0].condition.temperature,
        dtype=own[0].condition.dtype,
        basis=basis,
        measured_with=own[0].condition.engine,
        is_undecided=not any(tier.num_speculative_tokens for tier in tiers)
        and (any(map(is_undecided, meant)) or any(tier is None for _, tier, _ in found)),
    )


def _meant(decisions: list[Decision], asked: Selection) -> list[Decision]:
    """Those of one engine, temperature and context, by rows; streams in open loop left out."""
    left = [
        d
        for d in decisions
        if d.condition.request_rate is None
        and d.condition.num_samples == 1
        and d.leader.draft.method != ASSISTED_DEFAULT  # whose K is the engine's own
    ]
    if asked.workload is not None:
        left = [d for d in left if d.condition.workload == asked.workload]
    if asked.temperature is not None:
        left = [d for d in left if d.condition.temperature == asked.temperature]
    if asked.num_rows is not None:
        left = [d for d in left if d.condition.concurrency == asked.num_rows]
    if not left:
        return []
    left = [d for d in left if d.condition.engine == asked.engine] or left
    first = _across(min(left, key=lambda d: d.condition.order))
    alike = [d for d in left if _across(d) == first]
    return sorted(alike, key=_rows)


def _best(decisions: Sequence[Decision]) -> str:
    """The pairing whose worst lower bound, at the fewest rows, is highest: over the workloads that
    all of them were measured on, or without such among those with the most workloads.

    Where worst ones are equal, as where none helps on some workload, the mean decides.
    """
    lows: dict[str, dict[str, float]] = {}
    for decision in decisions:
        if _rows(decision) == _rows(decisions[0]):
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


def _at_rows(
    decisions: list[Decision], cells: Sequence[CellSummary]
) -> tuple[Tier | None, list[str]]:
    """K for one number of rows, with the sentences that it rests on; None without enough evidence
    for any K although one helps.
    """
    rows = decisions[0].condition.concurrency
    said = [
        d.sentence if rows == 1 else f"{rows} requests at once: {d.sentence}" for d in decisions
    ]
    if not any(d.draft.k for d in decisions):
        return Tier(rows, 0), said
    meant = {(d.condition, d.leader.draft.way) for d in decisions}
    same = [
        cell
        for cell in cells
        if cell.key.draft.is_fixed and (cell.key.condition, cell.key.draft.way) in meant
    ]
    if len(decisions) == 1 and decisions[0].leader.draft.is_fixed:
        return Tier(rows, decisions[0].draft.k), said
    if len(decisions) == 1:
        leader = next((choose(group).leader for group in by_question(same)), None)
        verdict = judge(leader.speedup) if leader else SpeedupVerdict.NOT_SHOWN
        if leader is None or verdict is not SpeedupVerdict.HELPS:
            tier = None if verdict is SpeedupVerdict.NOT_SHOWN else Tier(rows, 0)
            return tier, [*said, _NO_FIXED_K]
        k = leader.key.draft.k
        return Tier(rows, k), [*said, f"engines take a fixed K: the best fixed one is K={k}"]
    shared = find_shared_k(same, decisions)
    if shared is None:
        return None, [*said, _NO_SHARED_K if same else _NO_FIXED_K]
    k = shared.num_speculative_tokens
    losses = ", ".join(losses_in_words(shared.regret, other_ks(shared.best_k, k)))
    losses += left_out_in_words([f"K={own}" for own in shared.left_out])
    return Tier(rows, k), [*said, f"one K for these workloads: K={k}; loses {losses}"]


def _across(decision: Decision) -> Condition:
    return decision.condition.without("workload", "concurrency")


def _merged(tiers: Sequence[Tier]) -> tuple[Tier, ...]:
    """Neighbours with the same K become one; a K that holds everywhere has no limit."""
    merged: list[Tier] = []
    for tier in tiers:
        if merged and merged[-1].num_speculative_tokens == tier.num_speculative_tokens:
            merged.pop()
        merged.append(tier)
    return tuple(merged) if len(merged) > 1 else (Tier(None, merged[0].num_speculative_tokens),)


def _rows(decision: Decision) -> int:
    return decision.condition.concurrency


def _in_words(asked: Selection) -> str:
    parts = [
        f"on {asked.workload}" if asked.workload else "",
        f"at temperature {asked.temperature:g}" if asked.temperature is not None else "",
        f"with {asked.num_rows} requests at once" if asked.num_rows else "",
    ]
    return "".join(f" {part}" for part in parts if part)


def export_as_measured(
    exporter: Exporter, deployment: Deployment, version: str | None, config_name: str
) -> Export:
    """For the measured release, or the newest that the exporter knows; UsageError."""
    releases = [] if version is None else [version, version.partition("-")[0]]
    for release in dict.fromkeys(releases):  # llama.cpp's have a commit behind the build
        try:
            return exporter.export(deployment, release, config_name)
        except UsageError:
            continue
    return exporter.export(deployment, None, config_name)


def version_there(
    deployment: Deployment, engine: str, servers: Sequence[ServerRecord]
) -> str | None:
    """The engine's version in the sessions that the deployment rests on, the newest if several."""
    found = [server.version for server in _sessions(deployment, engine, servers)]
    return found[-1] if found else None


def basis_there(
    deployment: Deployment, engine: str, servers: Sequence[ServerRecord], arguments: Sequence[str]
) -> Iterator[str]:
    """That the figures are this engine's own, and what else it was told: the user's `arguments`."""
    own = list(_sessions(deployment, engine, servers))
    if not own:
        return
    versions = ", ".join(dict.fromkeys(server.version for server in own))
    if all(server.command for server in own):
        yield f"measured with {engine} {versions} itself, started with these flags"
    else:
        yield f"measured with {engine} {versions} itself, which was running: flags not known"
    if arguments:
        yield f"it was also told: {shlex.join(arguments)}"


def _sessions(
    deployment: Deployment, engine: str, servers: Sequence[ServerRecord]
) -> Iterator[ServerRecord]:
    if deployment.measured_with != engine:
        return
    ks = {tier.num_speculative_tokens for tier in deployment.tiers}
    for server in usable_sessions(servers).values():
        is_meant = (server.engine, server.target) == (engine, deployment.pairing.target.name)
        is_used = server.num_speculative_tokens in ks
        if is_meant and is_used and server.drafter in (deployment.pairing.drafter.name, NO_DRAFTER):
            yield server
