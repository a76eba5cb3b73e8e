"""The analysis of a stored run, which every report format renders."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from specbench.decide.comparisons import (
    AdaptiveComparison,
    BestOf,
    ContextCurve,
    Crossover,
    SideBySide,
    compare_adaptive,
    compare_best_of,
    compare_variants,
    context_curves,
    crossovers,
    side_by_side,
)
from specbench.decide.cross_fit import are_enough, cross_fitted
from specbench.decide.explanation import units_of
from specbench.decide.objective import SharedK, across_workloads, find_shared_k
from specbench.decide.recommend import (
    ConfirmedOn,
    ContextDecisions,
    LeadingCell,
    by_context,
    by_question,
    choose,
    decide,
)
from specbench.forecast.forecast_check import CheckedForecast, check_forecasts, is_left_out
from specbench.forecast.run_bound import RunBound, bound_of_run
from specbench.metrics.acceptance import VllmCounts, vllm_counts
from specbench.metrics.aggregate import aggregate_run, lost_sessions
from specbench.metrics.cell import CellData
from specbench.metrics.machine import all_signs, noise_signs
from specbench.metrics.pairs import prompt_speedups
from specbench.metrics.summary import summarize, summarize_imported
from specbench.records import (
    CellKey,
    CellSummary,
    Condition,
    Decision,
    EngineRecord,
    Environment,
    FailureRecord,
    ImportedRecord,
    MemoryRecord,
    ModelIdentity,
    Reason,
    ReferenceRecord,
    RunRecord,
    ServerRecord,
    chosen_threads,
)
from specbench.report.steps import ShownGeneration, generation_of
from specbench.runs import StoredRun, no_collection
from specbench.stats.crossed import MOST_PLANNED
from specbench.stats.spread import MIN_UNITS


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """A run after analysis."""

    folder: Path
    run: RunRecord
    is_complete: bool  # False: interrupted, or still running
    cells: tuple[CellSummary, ...]  # of the exploration phase, in the order of the plan
    missing: tuple[CellKey, ...]  # planned cells without a request
    decisions: tuple[Decision, ...]  # with the confirmation run of each winner
    shared_k: tuple[SharedK, ...]  # of pairings that ran on several workloads
    side_by_side: tuple[SideBySide, ...]  # of runs with several engines
    variants: tuple[SideBySide, ...]  # of runs under several sets of engine arguments
    adaptive: tuple[AdaptiveComparison, ...]  # of runs with an adaptive K and fixed K
    bounds: tuple[RunBound, ...]  # of adaptive K without a forecast
    crossovers: tuple[Crossover, ...]  # of runs with several concurrencies
    context_curves: tuple[ContextCurve, ...]  # of runs with several context lengths
    by_context: tuple[ContextDecisions, ...]  # the same
    best_of: tuple[BestOf, ...]  # of cells with several samples per prompt
    forecasts: tuple[CheckedForecast, ...]  # with the measurements that followed
    prompts: Mapping[CellKey, Mapping[str, float]]  # speedup by prompt of each decision's cell
    generations: Mapping[CellKey, ShownGeneration]  # one request per decision, round by round
    engines: tuple[EngineRecord, ...]
    failures: tuple[FailureRecord, ...]
    models: tuple[ModelIdentity, ...]
    memory: tuple[MemoryRecord, ...]
    longest_context: Mapping[str, int]  # tokens of prompt and output, by target
    servers: tuple[ServerRecord, ...]  # sessions in order of time
    sessions: tuple[Environment, ...]
    vllm: Mapping[CellKey, VllmCounts]
    noise: tuple[Reason, ...]  # signs that the machine was busy or its speed changed
    imported: tuple[ImportedRecord, ...]  # cells measured by another tool

    @property
    def mark(self) -> str:
        """The suffix of every answer of a synthetic run; empty for a real one."""
        return " [synthetic]" if self.run.settings.decoder.is_synthetic else ""

    def is_skipped_for_budget(self, key: CellKey) -> bool:
        """Whether the time budget went to other K of this missing cell's drafter."""
        return (
            self.run.settings.effort.budget_s is not None
            and self.is_complete
            and any(
                cell.key.condition == key.condition and cell.key.draft.drafter == key.draft.drafter
                for cell in self.cells
            )
        )


def is_cut_short(run: RunRecord, cell: CellSummary, confirmed: CellSummary | None = None) -> bool:
    """Whether a time budget ended before a cell had all its prompts or passes, which are enough
    for an interval, or before a server had the most cycles, in the confirmation if it has one."""
    if run.settings.effort.budget_s is None:
        return False
    plan = next(plan for plan in run.cells if plan.key == cell.key)
    units = units_of(cell)
    if units.are_cycles:
        cycles = run.settings.servers.cycles
        if confirmed is not None:
            return units_of(confirmed).count < max(MOST_PLANNED, cycles or 0)
        return units.count < (cycles or MOST_PLANNED)
    count, planned = cell.num_prompts, plan.num_prompts
    if units.name == "pass":
        count, planned = units.count, plan.num_repeats
    return count < planned and planned >= MIN_UNITS


def num_usable(stored: StoredRun, condition: Condition) -> int | None:
    """How many prompts of a workload fit the target; None if the run does not record it."""
    return stored.run.workload_prompts.get(condition.target, {}).get(condition.workload)


def _num_quotable(
    stored: StoredRun, choice: LeadingCell, confirmed: CellSummary | None, on: ConfirmedOn
) -> int | None:
    """How many prompts more time can quote: where a budget sets how many confirm a server's K, the
    others chose it."""
    num, leader = num_usable(stored, choice.cells[0].key.condition), choice.leader
    if num is None or leader is None or confirmed is None or on != "other":
        return num
    is_race = stored.run.settings.effort.budget_s is not None and units_of(leader).are_cycles
    return num - leader.num_prompts if is_race else num


@no_collection()
def build_document(stored: StoredRun) -> Document:
    """The analysis of a stored run, complete or not."""
    environment, *sessions = _with_threads(stored)
    explored = aggregate_run(stored)
    confirmation = aggregate_run(stored, "confirm")
    cells = summarize(explored)
    confirmed = {cell.key: cell for cell in summarize(confirmation)}
    keys = stored.run.keys
    imported = summarize_imported(keys, stored.imported, stored.run.settings.load.slo)
    measured = {cell.key for cell in (*cells, *imported)}
    missing = tuple(
        key for key in keys if key not in measured and not is_left_out(key, stored.forecasts)
    )
    has_budget = stored.run.settings.effort.budget_s is not None
    choices = list(
        map(choose, by_question((*cells, *(c for c in imported if c.speedup or not c.valid))))
    )
    evidence = [_evidence(stored, c, explored, confirmation, confirmed) for c in choices]
    decisions = [
        decide(
            choice,
            *of_choice,
            workload_prompts=_num_quotable(stored, choice, *of_choice),
            is_synthetic=stored.run.settings.decoder.is_synthetic,
            is_imported=bool(stored.imported),
            is_cut_short=choice.leader is not None
            and is_cut_short(stored.run, choice.leader, of_choice[0]),
            num_unmeasured=has_budget * sum(_competes(key, choice) for key in missing),
        )
        for choice, of_choice in zip(choices, evidence, strict=True)
    ]
    quoted = {summary.key for summary, on in evidence if summary and on != "halves"}
    curves = context_curves(cells)
    adaptive = compare_adaptive(explored, confirmation)
    return Document(
        folder=stored.folder,
        run=replace(stored.run, environment=environment),
        is_complete=stored.is_complete,
        cells=(*cells, *imported),
        missing=missing,
        decisions=tuple(decisions),
        shared_k=tuple(_shared_k(cells, decisions, explored)),
        side_by_side=side_by_side(explored),
        variants=compare_variants(explored),
        adaptive=adaptive,
        bounds=tuple(_bounds(stored, adaptive, explored)),
        crossovers=crossovers(cells),
        context_curves=curves,
        by_context=by_context(decisions, curves),
        best_of=compare_best_of(explored),
        forecasts=check_forecasts(stored.forecasts, stored.traces, explored, cells, adaptive),
        prompts=_speedups_of_prompts(
            decisions, explored, [cell for cell in confirmation if cell.key in quoted]
        ),
        generations=_generations(decisions, explored, stored.references),
        engines=tuple(
            {(record.target, record.engine): record for record in stored.engines}.values()
        ),
        failures=(*stored.failures, *lost_sessions(stored.servers)),
        servers=stored.servers,
        models=tuple(dict.fromkeys(stored.models)),  # each session of a run stores them again
        memory=tuple(
            {(record.target, record.drafter): record for record in stored.memory}.values()
        ),
        longest_context=_longest_context(explored),
        sessions=tuple(sessions),
        vllm={cell.key: counts for cell in explored if (counts := vllm_counts(cell))},
        noise=all_signs(
            stored.run.busy,
            noise_signs(
                (*explored, *confirmation), device=environment.device, threads=environment.threads
            ),
        ),
        imported=stored.imported,
    )


def _bounds(
    stored: StoredRun, adaptive: Sequence[AdaptiveComparison], explored: Sequence[CellData]
) -> Iterator[RunBound]:
    """What an adaptive K could gain where no forecast says it, and the rounds do."""
    known = {record.key.question for record in stored.forecasts}
    for row in adaptive:
        if row.adaptive.question not in known:
            bound = bound_of_run(explored, row.adaptive)
            if bound is not None:
                yield bound


def _evidence(
    stored: StoredRun,
    choice: LeadingCell,
    explored: Sequence[CellData],
    confirmation: Sequence[CellData],
    confirmed: Mapping[CellKey, CellSummary],
) -> tuple[CellSummary | None, ConfirmedOn]:
    """The summary that confirms a winner, and the prompts that it is over.

    In a run that has ended without confirmation blocks, the winner's prompts were exhausted. If its
    budget ended before five others, the exploration decides. So it does about a leader that
    needs no confirmation, unless it has one on other prompts, or with all of them at once.
    """
    leader = choice.leader
    if leader is None:
        return None, "same"
    key = leader.key
    of_key = [{r.prompt_id for r in c.requests} for c in (*explored, *confirmation) if c.key == key]
    confirming = confirmed.get(key)
    on: ConfirmedOn = "other" if len(of_key) == 2 and not of_key[0] & of_key[1] else "same"
    if choice.to_confirm is None:
        is_new = on == "other" or key.condition.overlaps
        return (confirming if is_new and _has_interval(confirming) else None), on
    num_left = (num_usable(stored, key.condition) or 0) - len(of_key[0])
    is_missing = confirming is None and not are_enough(num_left, len(of_key[0]))
    if stored.is_complete and (is_missing or (confirming and confirming.num_prompts < MIN_UNITS)):
        cells = [cell for cell in explored if _competes(cell.key, choice)]
        if halves := cross_fitted(cells, leader):
            return halves, "halves"
    return confirming, on


def _has_interval(cell: CellSummary | None) -> bool:
    speedup = None if cell is None else cell.as_decided.speedup
    return speedup is not None and speedup.low is not None


def _speedups_of_prompts(
    decisions: Iterable[Decision], explored: Iterable[CellData], quoted: Iterable[CellData]
) -> dict[CellKey, dict[str, float]]:
    """Speedup by prompt of each decision's cell, from its confirmation run if that is `quoted`."""
    cells = {cell.key: cell for cell in (*explored, *quoted)}
    return {d.leader: prompt_speedups(cells[d.leader]) for d in decisions if d.leader in cells}


def _generations(
    decisions: Iterable[Decision],
    explored: Iterable[CellData],
    references: Collection[ReferenceRecord],
) -> dict[CellKey, ShownGeneration]:
    cells = {cell.key: cell for cell in explored}
    leaders = (d.leader for d in decisions if d.leader in cells)
    shown = ((key, generation_of(cells[key], references)) for key in leaders)
    return {key: generation for key, generation in shown if generation is not None}


def _competes(key: CellKey, choice: LeadingCell) -> bool:
    """Whether a K > 0 belongs to the question of a choice."""
    return key.draft.k > 0 and key.question == choice.cells[0].key.question


def _shared_k(
    cells: tuple[CellSummary, ...], decisions: Sequence[Decision], explored: Sequence[CellData]
) -> Iterator[SharedK]:
    groups: dict[CellKey, list[CellSummary]] = {}
    for cell in cells:
        if cell.key.draft.k > 0 and cell.key.draft.is_fixed:
            groups.setdefault(across_workloads(cell.key), []).append(cell)
    for key, group in groups.items():
        same = [cell for cell in explored if across_workloads(cell.key) == key]
        shared = find_shared_k(group, decisions, same)
        if shared is not None and len(shared.regret) > 1:
            yield shared


def _with_threads(stored: StoredRun) -> Iterator[Environment]:
    """The environment of every session, with the thread count that its targets had in common."""
    chosen = chosen_threads(stored.engines)
    threads = chosen[0] if len(chosen) == 1 else stored.run.environment.threads
    for environment in (stored.run.environment, *stored.sessions):
        yield replace(environment, threads=environment.threads or threads)


def _longest_context(cells: tuple[CellData, ...]) -> dict[str, int]:
    longest: dict[str, int] = {}
    for cell in cells:
        for request in cell.finished:
            length = request.num_prompt_tokens + request.num_output_tokens
            longest[cell.key.condition.target] = max(
                longest.get(cell.key.condition.target, 0), length
            )
    return longest
