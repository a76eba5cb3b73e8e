"""What to run for an objective: a sentence per workload, the candidates, and why; also as JSON."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from pydantic_core import to_jsonable_python

from specbench.decide.comparisons import Crossover
from specbench.decide.explanation import range_text, speedup_text
from specbench.decide.objective import (
    Candidate,
    JointRecommendation,
    Objective,
    Recommendation,
    left_out_in_words,
    losses_in_words,
    pick,
    shared_pick,
)
from specbench.decide.recommend import SpeedupVerdict, is_undecided, judge
from specbench.records import NO_DRAFTER, CellKey, Condition, Decision, Interval
from specbench.report.document import Document
from specbench.report.grids import Grid
from specbench.report.numbers import listed, measured, plural


def picks_of(
    document: Document,
    objective: Objective,
    *,
    concurrency: int | None = None,
    workloads: Sequence[str] = (),
) -> tuple[Recommendation, ...]:
    """The document's answers for an objective, for so many concurrent requests or any."""
    cells = [
        cell
        for cell in document.cells
        if (concurrency is None or cell.key.condition.concurrency == concurrency)
        and (not workloads or cell.key.condition.workload in workloads)
    ]
    return pick(cells, document.decisions, objective)


def pick_lines(
    document: Document,
    picks: Sequence[Recommendation],
    objective: Objective,
    *,
    workloads: Sequence[str] = (),
) -> list[str]:
    """The answers, each with its reasons indented below; also workloads that have none."""
    lines = []
    for one in picks:
        lines.append(f"{title(one, picks)}: {headline(document, one, objective)}{document.mark}")
        lines += (f"  {reason}" for reason in reasons(document, one))
    questions = [one.condition.without("workload") for one in picks]
    open_ones = [
        one.condition.workload
        for one in picks
        if is_untried(document, one) or open_question(document, one)
    ]
    for shared in shared_picks(picks) if len(open_ones) < len(picks) else ():
        setting = shared.key.condition.without("workload", "concurrency")
        where = "".join(f", {part}" for part in setting.distinct_parts(questions))
        lines.append(
            f"one configuration for all workloads{where}: {_way(shared.key)}; loses "
            f"{_given_up(shared, open_ones)}"
        )
    lines += (f"{name}: {why}" for name, why in unanswered(document, picks, workloads).items())
    return lines


def title(one: Recommendation, picks: Sequence[Recommendation]) -> str:
    """The workload, and what else tells the pick from the others."""
    questions = [other.condition for other in picks]
    return ", ".join(one.condition.distinct_parts(questions, also="workload"))


def unanswered(
    document: Document, picks: Sequence[Recommendation], workloads: Sequence[str]
) -> dict[str, str]:
    """Workloads of the run without an answer, and why; of `workloads` where they are given."""
    answered = {one.condition.workload for one in picks}
    measured_ones = {cell.key.condition.workload for cell in document.cells}
    planned = dict.fromkeys(plan.key.condition.workload for plan in document.run.cells)
    return {
        name: "no answer: no valid K = 0 was measured"
        if name in measured_ones
        else "no answer: not measured"
        for name in planned
        if name not in answered and (not workloads or name in workloads)
    }


def shared_picks(picks: Sequence[Recommendation]) -> tuple[JointRecommendation, ...]:
    """One for every target and setting that was measured on several workloads."""
    groups: dict[object, list[Recommendation]] = {}
    for one in picks:
        groups.setdefault(one.condition.without("workload"), []).append(one)
    found = (shared_pick(group) for group in groups.values())
    return tuple(shared for shared in found if shared is not None)


def pick_grid(
    document: Document,
    one: Recommendation,
    objective: Objective,
    picks: Sequence[Recommendation] = (),
) -> Grid:
    """The ways it was chosen from, best first; `picks` are those that its title tells it from."""
    chosen = "chosen"
    if is_untried(document, one):
        chosen = "not compared"
    elif open_question(document, one) is not None:
        chosen = "undecided"
    units = {
        "latency": "per token",
        "throughput": "all users",
        "goodput": "within the limits",
        "cost": "per million tokens",
    }
    return Grid(
        title=title(one, picks),
        headers=("configuration", "requests", units[objective.name], "lower bound", ""),
        rows=tuple(
            (
                _method(candidate.key) if candidate.key.draft.k else "K=0",
                str(candidate.key.condition.concurrency),
                _value(candidate.value, objective),
                measured(candidate.cautious_rate, objective.unit)
                if objective.name == "goodput"
                else f"{candidate.cautious_rate:,.0f} tok/s",
                chosen if candidate is one.best else "; ".join(candidate.broken),
            )
            for candidate in one.candidates
        ),
        marks=tuple(
            "chosen" if c is one.best and chosen == "chosen" else "" for c in one.candidates
        ),
    )


def reasons(document: Document, one: Recommendation) -> Iterator[str]:
    """Why, for the chosen way: what its decision says, where it saturates, what memory is left.

    Of not speculating what is said of the best way beside it, or why nothing was beside it.
    """
    if one.best is None:
        return
    key = one.best.key
    if key.draft.k:
        yield from next((d.reasons_and_warnings for d in document.decisions if d.leader == key), ())
    elif is_untried(document, one):
        yield from _not_valid(document, key)
    else:
        yield from _lost(document, key)
    yield from _saturation(document.crossovers, one)
    yield from _room(document, key)


def _lost(document: Document, plain: CellKey) -> Iterator[str]:
    """Why the best of what was tried beside a K = 0 does not help."""
    every = list(_beside(document, plain))
    if every:
        undecided = [found for found in every if is_undecided(found[1])]
        speedup, best = _most_promising(document, undecided or every)
        is_lost = speedup.estimate <= 1 or judge(speedup) is SpeedupVerdict.GAINS_NOTHING
        which = "runner-up" if is_lost else "best undecided"
        figure = range_text(speedup) if undecided else speedup_text(speedup)
        yield f"{which}: {_method(best.leader)}, {figure}"
        yield from best.reasons_and_warnings


def _beside(document: Document, plain: CellKey) -> Iterator[tuple[Interval, Decision]]:
    """The decisions for no drafts beside a K = 0, with the speedups that they are about."""
    first_pass = {cell.key: cell.speedup for cell in document.cells}
    for decision in document.decisions:
        if not decision.draft.k and decision.condition == plain.condition:
            speedup = decision.speedup or first_pass.get(decision.leader)
            if speedup is not None:
                yield speedup, decision


def open_question(document: Document, one: Recommendation) -> Decision | None:
    """The most promising undecided way beside a K = 0 that was chosen for want of evidence."""
    if one.best is None or one.best.key.draft.k:
        return None
    beside = _beside(document, one.best.key)
    undecided = [found for found in beside if is_undecided(found[1])]
    return _most_promising(document, undecided)[1] if undecided else None


def _most_promising(
    document: Document, found: Sequence[tuple[Interval, Decision]]
) -> tuple[Interval, Decision]:
    """The highest estimate of a valid cell; only where none is valid, of any."""
    valid = {cell.key for cell in document.cells if cell.valid}
    return max(found, key=lambda one: (one[1].leader in valid, one[0].estimate))


def is_untried(document: Document, one: Recommendation) -> bool:
    """Whether K = 0 was chosen because nothing valid with drafts is there to compare it with."""
    if one.best is None or one.best.key.draft.k:
        return False
    setting = one.best.key.condition
    return not any(
        cell.key.draft.k and cell.valid and cell.speedup is not None
        for cell in document.cells
        if cell.key.condition == setting
    )


def _not_valid(document: Document, plain: CellKey) -> Iterator[str]:
    """The outcome of the configurations with drafts next to a K = 0."""
    setting = plain.condition
    for decision in document.decisions:
        if decision.condition == setting:
            yield from (
                f"{decision.leader.source}: {reason}" for reason in decision.reasons_and_warnings
            )
    names: dict[str, list[str]] = {}
    for key in document.missing:
        if key.condition == setting and key.draft.k:
            names.setdefault(key.source, []).append(key.draft.length.label)
    if names:
        cells = [f"{source} at K = {listed(ks)}" for source, ks in names.items()]
        yield f"planned but not measured: {'; '.join(cells)}"


def headline(document: Document, one: Recommendation, objective: Objective) -> str:
    """The answer for one workload, without its name."""
    if one.best is None:
        broken = "; ".join(one.candidates[0].broken) if one.candidates else "nothing was measured"
        return f"no configuration meets the limits. Fastest: {broken}"
    unit = f" {objective.unit}" if objective.name == "cost" else ""
    value = f"{_value(one.best.value, objective)}{unit}"
    if is_untried(document, one):
        rows = one.best.key.condition.requests
        return f"undecided: no valid measurement with drafts. K=0, {rows}: {value}"
    if (undecided := open_question(document, one)) is not None:
        _, _, said = undecided.sentence.partition("undecided: ")
        rows = one.best.key.condition.requests
        return f"undecided: {undecided.leader.source}, {said}. K=0, {rows}: {value}"
    return f"{_way(one.best.key)}, {value}"


def _way(key: CellKey) -> str:
    return f"{_method(key)}, {key.condition.requests}"


def _method(key: CellKey) -> str:
    if not key.draft.k:
        return "do not speculate"
    return f"{key.source}, K={key.draft.length.label}"


def _value(value: float, objective: Objective) -> str:
    if objective.name == "cost":
        return f"{value:,.4g}"
    return measured(value, objective.unit)


def _given_up(shared: JointRecommendation, undecided: Collection[str]) -> str:
    """`undecided`: workloads on which nothing is decided, so nothing is known to be lost."""
    regret = {name: loss for name, loss in shared.regret.items() if name not in undecided}
    others = {name: _method(key) for name, key in shared.others.items()}
    left_out = left_out_in_words([_method(key) for key in shared.left_out])
    open_ones = f"; undecided on {listed(sorted(undecided))}" if undecided else ""
    return listed(losses_in_words(regret, others)) + left_out + open_ones


def _saturation(crossovers: Sequence[Crossover], one: Recommendation) -> Iterator[str]:
    """Where more users make speculation stop paying, for the pairings at hand."""
    for found in crossovers:
        key = found.key
        if key.condition.without("concurrency") != one.condition:
            continue
        # A point without an interval does not say that it still paid there.
        known = [p.at for p in found.points if p.valid and p.speedup and p.speedup.low is not None]
        if found.concurrency is not None and found.concurrency > known[0]:
            below = max(at for at in known if at < found.concurrency)
            at = next(p.speedup for p in found.points if p.at == found.concurrency)
            is_lost = at is not None and at.estimate <= 1
            gain = "no speedup" if is_lost else "undecided"
            yield (
                f"{key.source}, K={key.draft.length.label}: speedup up to {plural(below, 'user')}; "
                f"{gain} at {found.concurrency}"
            )


def _room(document: Document, key: CellKey) -> Iterator[str]:
    """Tokens of context for which this GPU has memory left beside the chosen pair."""
    total = document.run.environment.gpu_memory_bytes
    drafter = key.draft.drafter if key.draft.k else NO_DRAFTER
    memory = next(
        (m for m in document.memory if (m.target == key.condition.target and m.drafter == drafter)),
        None,
    )
    if total is None or memory is None or memory.peak_reserved_bytes is None:
        return
    if memory.kv_bytes_per_token:
        left = (total - memory.peak_reserved_bytes) // memory.kv_bytes_per_token
        each = left // key.condition.batch_size
        if key.condition.context is not None and each <= 0:
            yield f"memory left: not enough for {key.condition.context:,} tokens of context"
        else:
            yield f"memory left: {max(each, 0):,} more tokens of context per request"


SCHEMA_VERSION = 1


def recommendation_json(
    document: Document,
    picks: Sequence[Recommendation],
    objective: Objective,
    *,
    workloads: Sequence[str] = (),
) -> dict[str, Any]:
    """The JSON document: `picks` with their candidates, `shared`, `without_recommendation`."""
    document_json: dict[str, Any] = to_jsonable_python(
        {
            "schema_version": SCHEMA_VERSION,
            "run_id": document.run.run_id,
            "synthetic": document.run.settings.decoder.is_synthetic,
            "objective": asdict(objective) | {"unit": objective.unit},
            "picks": [
                {
                    "workload": one.condition.workload,
                    "target": one.condition.target,
                    **_setting_json(one.condition),
                    "sentence": headline(document, one, objective) + document.mark,
                    "no_valid_speculative_run": is_untried(document, one),
                    "is_undecided": open_question(document, one) is not None,
                    "best": _candidate_json(one.best, objective) if one.best else None,
                    "candidates": [_candidate_json(c, objective) for c in one.candidates],
                    "reasons": list(reasons(document, one)),
                }
                for one in picks
            ],
            "shared": [
                {
                    "target": shared.key.condition.target,
                    **_setting_json(shared.key.condition),
                    "best": _key_json(shared.key),
                    "regret": dict(shared.regret),
                }
                for shared in shared_picks(picks)
            ],
            "without_recommendation": unanswered(document, picks, workloads),
        }
    )
    return document_json


def _candidate_json(candidate: Candidate, objective: Objective) -> dict[str, Any]:
    counted = "requests" if objective.name == "goodput" else "tokens"
    return {
        **_key_json(candidate.key),
        "value": candidate.value,
        f"{counted}_per_s": candidate.rate,
        f"{counted}_per_s_low": candidate.cautious_rate,
        "broken_limits": list(candidate.broken),
    }


def _setting_json(at: Condition) -> dict[str, Any]:
    """The axes that distinguish the picks of one workload; the batch size is part of the answer."""
    answered = ("target", "workload", "concurrency")
    return {name: value for name, value in at.flat.items() if name not in answered}


def _key_json(key: CellKey) -> dict[str, Any]:
    first = ("pairing", "method", "num_speculative_tokens", "adaptive", "concurrency", "lossy")
    return key.entries(*first, without={*key.condition.flat, "drafter"} - {"concurrency"})
