"""Everything a stored run says, analysed once; each report format only renders it."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from pydantic_core import to_jsonable_python

from specbench.decide.adaptive import AdaptiveComparison, compare_adaptive
from specbench.decide.best_of import BestOf, compare_best_of
from specbench.decide.compromise import find_compromise
from specbench.decide.peers import SideBySide, side_by_side
from specbench.decide.recommend import Recommendation, by_question, choose, decide
from specbench.decide.scaling import ContextCurve, Crossover, context_curves, crossovers
from specbench.forecast.forecast_check import (
    CheckedForecast,
    check_forecasts,
    forecast_json,
    is_left_out,
)
from specbench.metrics.cell import CellData, gather_cells
from specbench.metrics.imported import import_warnings, summarise_imported
from specbench.metrics.summary import summarise
from specbench.metrics.vllm_names import VllmCounts, vllm_counts
from specbench.records import (
    BlockPurpose,
    CellKey,
    CellSummary,
    EngineRecord,
    Environment,
    FailureRecord,
    ImportedRecord,
    MemoryRecord,
    ModelIdentity,
    PassRecord,
    RunRecord,
    RunSettings,
)
from specbench.runs import StoredRun

JSON_VERSION = 1  # of the machine document; keys are added without a new version


_SHARED_K_KEY = (
    "pairing",
    "engine",
    "method",
    "concurrency",
    "temperature",
    "dtype",
    "context",
    "request_rate",
    "num_samples",
    "lossy",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedK:
    """One K for all workloads of a pairing, and the share of the best speed-up each gives up."""

    key: CellKey  # of its cells, without workload and K
    num_speculative_tokens: int
    regret: Mapping[str, float]  # per workload, 0.05: 5 % slower than that workload's best K


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """A run after analysis."""

    run: RunRecord
    is_complete: bool  # False: interrupted, or still running
    cells: tuple[CellSummary, ...]  # the first pass, in the order of the plan
    missing: tuple[CellKey, ...]  # planned, yet without a single request
    decisions: tuple[Recommendation, ...]  # quoting the second measurement of each winner
    compromises: tuple[SharedK, ...]  # where a pairing ran on several workloads
    side_by_side: tuple[SideBySide, ...]  # where several engines ran
    adaptive: tuple[AdaptiveComparison, ...]  # where K = auto ran beside fixed ones
    crossovers: tuple[Crossover, ...]  # where several concurrencies ran
    context_curves: tuple[ContextCurve, ...]  # where several context lengths ran
    best_of: tuple[BestOf, ...]  # where the best of several samples was picked
    forecasts: tuple[CheckedForecast, ...]  # made before K were measured, with what came of them
    time_lines: Mapping[CellKey, PassRecord]  # the first pass of every adaptive cell
    engines: tuple[EngineRecord, ...]
    failures: tuple[FailureRecord, ...]
    models: tuple[ModelIdentity, ...]
    memory: tuple[MemoryRecord, ...]
    longest_context: Mapping[str, int]  # per target, tokens of prompt and output together
    sessions: tuple[Environment, ...]
    vllm: Mapping[CellKey, VllmCounts]
    imported: tuple[ImportedRecord, ...]  # cells that another tool measured; no decision has them
    warnings: tuple[str, ...]

    @property
    def mark(self) -> str:
        """What every answer of a synthetic run ends with; empty for a real one."""
        return _mark(self.run.settings)


def build_document(stored: StoredRun) -> Document:
    """Metrics, intervals and decisions of a stored run, finished or not."""
    explored = _gather(stored, "explore")
    repeated = _gather(stored, "confirm")
    cells = summarise(explored)
    confirmed = {cell.key: cell for cell in summarise(repeated)}
    made_up = stored.run.settings.is_synthetic
    decisions = [
        decide(
            choice,
            confirmed.get(choice.to_confirm) if choice.to_confirm else None,
            workload_prompts=stored.run.workload_prompts.get(choice.cells[0].key.workload),
            is_synthetic=made_up,
        )
        for choice in map(choose, by_question(cells))
    ]
    imported = summarise_imported([plan.key for plan in stored.run.cells], stored.imported)
    measured = {cell.key for cell in (*cells, *imported)}
    unmeasured = (plan.key for plan in stored.run.cells if plan.key not in measured)
    missing = tuple(key for key in unmeasured if not is_left_out(key, stored.forecasts))
    return Document(
        run=stored.run,
        is_complete=stored.is_complete,
        cells=(*cells, *imported),
        missing=missing,
        decisions=tuple(
            replace(decision, sentence=decision.sentence + _mark(stored.run.settings))
            for decision in decisions
        ),
        compromises=tuple(_compromises(cells)),
        side_by_side=side_by_side(explored),
        adaptive=compare_adaptive(explored, repeated),
        crossovers=crossovers(cells),
        context_curves=context_curves(cells),
        best_of=compare_best_of(explored),
        forecasts=check_forecasts(stored.forecasts, stored.traces, explored, cells),
        time_lines={c.key: c.passes[0].record for c in explored if c.key.adaptive and c.passes},
        engines=_newest_engines(stored.engines),
        failures=stored.failures,
        models=tuple(dict.fromkeys(stored.models)),  # each session of a run states them again
        memory=_newest(stored.memory),
        longest_context=_longest_context(explored),
        sessions=stored.sessions,
        vllm={cell.key: counts for cell in explored if (counts := vllm_counts(cell))},
        imported=stored.imported,
        warnings=(
            *import_warnings(stored.imported),
            *_synthetic(stored.run.settings),
            *_lossy(stored.run),
            *stored.run.warnings,
            *_warnings(stored, missing),
        ),
    )


def to_json(document: Document) -> dict[str, Any]:
    """The machine document that report/schema.json and docs/json.md describe."""
    run = document.run
    return {
        "schema_version": JSON_VERSION,
        "run_id": run.run_id,
        "complete": document.is_complete,
        "synthetic": run.settings.is_synthetic,
        "environment": to_jsonable_python(run.environment),
        "settings": to_jsonable_python(run.settings),
        "models": to_jsonable_python(document.models),
        "cells": [_cell_json(cell, document.vllm.get(cell.key)) for cell in document.cells],
        "decisions": [_decision_json(decision) for decision in document.decisions],
        "compromises": [_compromise_json(shared) for shared in document.compromises],
        "side_by_side": to_jsonable_python(document.side_by_side),
        "adaptive_comparisons": to_jsonable_python(document.adaptive),
        "crossovers": to_jsonable_python(document.crossovers),
        "context_curves": to_jsonable_python(document.context_curves),
        "best_of": to_jsonable_python(document.best_of),
        "forecasts": [forecast_json(checked) for checked in document.forecasts],
        "engines": to_jsonable_python(document.engines),
        "failures": to_jsonable_python(document.failures, exclude={"__all__": {"cell_ids"}}),
        "imported": to_jsonable_python(document.imported),
        "warnings": list(document.warnings),
    }


def _cell_json(cell: CellSummary, counts: VllmCounts | None) -> dict[str, Any]:
    flat = asdict(cell)
    key = flat.pop("key")
    vllm = {"vllm": asdict(counts)} if counts else {}
    json: dict[str, Any] = to_jsonable_python({**key, **flat, **vllm})
    return json


def _decision_json(decision: Recommendation) -> dict[str, Any]:
    leader = decision.leader
    json: dict[str, Any] = to_jsonable_python(asdict(decision))
    del json["leader"]
    return {
        **json,
        "adaptive": leader.adaptive and decision.num_speculative_tokens > 0,
        "context": leader.context,
        "request_rate": leader.request_rate,
        "num_samples": leader.num_samples,
        "lossy": leader.lossy,
    }


def _compromise_json(shared: SharedK) -> dict[str, Any]:
    flat = asdict(shared)
    key = flat.pop("key")
    return {**{name: key[name] for name in _SHARED_K_KEY}, **flat}


def _gather(stored: StoredRun, purpose: BlockPurpose) -> tuple[CellData, ...]:
    return gather_cells(
        [plan.key for plan in stored.run.cells],
        stored.blocks,
        memories=stored.memory,
        forwards=stored.forwards,
        limits=stored.limits,
        purpose=purpose,
    )


def _compromises(cells: tuple[CellSummary, ...]) -> Iterator[SharedK]:
    groups: dict[CellKey, list[CellSummary]] = {}
    for cell in cells:
        if cell.key.num_speculative_tokens > 0 and not cell.key.adaptive:
            across = replace(cell.key, workload="", num_speculative_tokens=0)
            groups.setdefault(across, []).append(cell)
    for key, group in groups.items():
        found = find_compromise(group)
        if found is not None and len(found.regret) > 1:
            yield SharedK(
                key=key,
                num_speculative_tokens=found.num_speculative_tokens,
                regret=found.regret,
            )


def _newest(memory: tuple[MemoryRecord, ...]) -> tuple[MemoryRecord, ...]:
    """A resumed run measures memory again; the last word counts."""
    return tuple({(record.target, record.drafter): record for record in memory}.values())


def _newest_engines(engines: tuple[EngineRecord, ...]) -> tuple[EngineRecord, ...]:
    return tuple({(record.target, record.engine): record for record in engines}.values())


def _longest_context(cells: tuple[CellData, ...]) -> dict[str, int]:
    longest: dict[str, int] = {}
    for cell in cells:
        for request in cell.finished:
            length = request.num_prompt_tokens + request.num_output_tokens
            longest[cell.key.target] = max(longest.get(cell.key.target, 0), length)
    return longest


def _mark(settings: RunSettings) -> str:
    return " [synthetic]" if settings.is_synthetic else ""


def _synthetic(settings: RunSettings) -> Iterator[str]:
    made_up = []
    if settings.acceptance is not None:
        made_up.append(f"synthetic acceptance {', '.join(f'{a:g}' for a in settings.acceptance)}")
    if settings.dummy_weights:
        made_up.append("dummy weights")
    if made_up:
        yield f"{', '.join(made_up)}: the times are real, the text and what was accepted are not"


def _lossy(run: RunRecord) -> Iterator[str]:
    for pairing, rule in {key.pairing: key.lossy for key in run.keys}.items():
        if rule is not None:
            yield (
                f"{pairing} is lossy by choice (rule {rule}): it keeps drafts that the target "
                "would not have said, so its text is not the target's"
            )


def _warnings(stored: StoredRun, missing: tuple[CellKey, ...]) -> Iterator[str]:
    if not stored.is_complete:
        yield (
            "interrupted or still running: this is what was measured so far; "
            f"an interrupted run goes on with --resume {stored.run.run_id}"
        )
    if missing:
        names = ", ".join(dict.fromkeys(f"{key.pairing} on {key.workload}" for key in missing))
        yield f"{len(missing)} of {len(stored.run.cells)} planned cells were not measured: {names}"
    first = stored.run.environment
    for session in stored.sessions:
        changed = ", ".join(_changes(first, session))
        if changed:
            yield f"resumed {session.created_at} under other conditions: {changed}"


def _changes(first: Environment, later: Environment) -> Iterator[str]:
    for field in fields(Environment):
        before, after = getattr(first, field.name), getattr(later, field.name)
        if before == after or field.name in {"created_at", "command"}:
            continue
        if isinstance(before, Mapping):
            names = sorted(n for n in {*before, *after} if before.get(n) != after.get(n))
            yield from (f"{n} {before.get(n)} -> {after.get(n)}" for n in names)
        else:
            yield f"{field.name} {before} -> {after}"
