"""Everything a stored run says, analysed once; each report format only renders it."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from specbench.decide.comparisons import (
    AdaptiveComparison,
    BestOf,
    ContextCurve,
    Crossover,
    SideBySide,
    compare_adaptive,
    compare_best_of,
    context_curves,
    crossovers,
    side_by_side,
)
from specbench.decide.objective import SharedK, across_workloads, find_compromise
from specbench.decide.recommend import by_question, choose, decide
from specbench.forecast.forecast_check import (
    CheckedForecast,
    check_forecasts,
    is_left_out,
)
from specbench.metrics.acceptance import VllmCounts, vllm_counts
from specbench.metrics.aggregate import aggregate_run, lost_sessions
from specbench.metrics.cell import CellData
from specbench.metrics.generation import DecodedRequest, generation_of
from specbench.metrics.machine import Moment, moments, noise_signs
from specbench.metrics.pairs import prompt_speedups
from specbench.metrics.summary import summarize, summarize_imported
from specbench.no_collection import no_collection
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
    PassRecord,
    ReferenceRecord,
    RunRecord,
    ServerRecord,
    chosen_threads,
)
from specbench.runs import StoredRun
from specbench.settings import DecoderSettings


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """A run after analysis."""

    run: RunRecord
    is_complete: bool  # False: interrupted, or still running
    cells: tuple[CellSummary, ...]  # the first pass, in the order of the plan
    missing: tuple[CellKey, ...]  # planned, yet without a single request
    decisions: tuple[Decision, ...]  # quoting the second measurement of each winner
    compromises: tuple[SharedK, ...]  # where a pairing ran on several workloads
    side_by_side: tuple[SideBySide, ...]  # where several engines ran
    adaptive: tuple[AdaptiveComparison, ...]  # where K = auto ran beside fixed ones
    crossovers: tuple[Crossover, ...]  # where several concurrencies ran
    context_curves: tuple[ContextCurve, ...]  # where several context lengths ran
    best_of: tuple[BestOf, ...]  # where the best of several samples was picked
    forecasts: tuple[CheckedForecast, ...]  # made before K were measured, with what came of them
    time_lines: Mapping[CellKey, PassRecord]  # the first pass of every adaptive cell
    prompts: Mapping[CellKey, Mapping[str, float]]  # of each decision's cell: speed-up by prompt
    generations: Mapping[CellKey, DecodedRequest]  # by decision's cell: one of it, round by round
    moments: tuple[Moment, ...]  # what the machine did over the run
    engines: tuple[EngineRecord, ...]
    failures: tuple[FailureRecord, ...]
    models: tuple[ModelIdentity, ...]
    memory: tuple[MemoryRecord, ...]
    longest_context: Mapping[str, int]  # per target, tokens of prompt and output together
    servers: tuple[ServerRecord, ...]  # sessions, in the order they were held
    sessions: tuple[Environment, ...]
    vllm: Mapping[CellKey, VllmCounts]
    noise: tuple[str, ...]  # what shows that the machine did not keep its speed
    imported: tuple[ImportedRecord, ...]  # cells that another tool measured

    @property
    def mark(self) -> str:
        """The end of every answer of a synthetic run; empty for a real one."""
        return _mark(self.run.settings.decoder)

    def is_unpaid(self, key: CellKey) -> bool:
        """Whether a missing cell is a K in whose place a budget paid for others of its drafter."""
        return (
            self.run.settings.effort.budget_s is not None
            and self.is_complete
            and any(
                one.key.condition == key.condition and one.key.draft.drafter == key.draft.drafter
                for one in self.cells
            )
        )


def num_usable(stored: StoredRun, condition: Condition) -> int | None:
    """Prompts that a workload has for the target; None in runs that did not say it."""
    in_file = stored.run.workload_prompts.get(condition.workload)
    if in_file is None:
        return None
    too_long = (
        failure.num_prompts
        for failure in stored.failures
        if (failure.pairing, failure.workload) == (condition.target, condition.workload)
    )
    return in_file - sum(too_long)


@no_collection()
def build_document(stored: StoredRun) -> Document:
    """Metrics, intervals and decisions of a stored run, finished or not."""
    environment, *sessions = _with_threads(stored)
    explored = aggregate_run(stored)
    repeated = aggregate_run(stored, "confirm")
    cells = summarize(explored)
    confirmed = {cell.key: cell for cell in summarize(repeated)}
    imported = summarize_imported(
        [plan.key for plan in stored.run.cells], stored.imported, stored.run.settings.load.slo
    )
    made_up = stored.run.settings.decoder.is_synthetic
    decisions = [
        decide(
            choice,
            confirmed.get(choice.to_confirm) if choice.to_confirm else None,
            workload_prompts=num_usable(stored, choice.cells[0].key.condition),
            is_synthetic=made_up,
            is_imported=bool(stored.imported),
        )
        for choice in map(choose, by_question((*cells, *(c for c in imported if c.speedup))))
    ]
    measured = {cell.key for cell in (*cells, *imported)}
    unmeasured = (plan.key for plan in stored.run.cells if plan.key not in measured)
    missing = tuple(key for key in unmeasured if not is_left_out(key, stored.forecasts))
    return Document(
        run=replace(stored.run, environment=environment),
        is_complete=stored.is_complete,
        cells=(*cells, *imported),
        missing=missing,
        decisions=tuple(
            replace(decision, sentence=decision.sentence + _mark(stored.run.settings.decoder))
            for decision in decisions
        ),
        compromises=tuple(_compromises(cells, decisions)),
        side_by_side=side_by_side(explored),
        adaptive=compare_adaptive(explored, repeated),
        crossovers=crossovers(cells),
        context_curves=context_curves(cells),
        best_of=compare_best_of(explored),
        forecasts=check_forecasts(stored.forecasts, stored.traces, explored, cells),
        time_lines={
            c.key: c.passes[0].record for c in explored if c.key.draft.is_adaptive and c.passes
        },
        prompts=_by_prompt(decisions, explored, repeated),
        generations=_generations(decisions, explored, stored.references),
        moments=moments(
            stored.blocks, stored.run.keys, [cell.key for cell in cells if not cell.valid]
        ),
        engines=tuple(
            {(record.target, record.engine): record for record in stored.engines}.values()
        ),
        failures=(*stored.failures, *lost_sessions(stored.servers)),
        servers=stored.servers,
        models=tuple(dict.fromkeys(stored.models)),  # each session of a run states them again
        memory=tuple(
            {(record.target, record.drafter): record for record in stored.memory}.values()
        ),
        longest_context=_longest_context(explored),
        sessions=tuple(sessions),
        vllm={cell.key: counts for cell in explored if (counts := vllm_counts(cell))},
        noise=noise_signs(
            (*explored, *repeated), device=environment.device, threads=environment.threads
        ),
        imported=stored.imported,
    )


def _by_prompt(
    decisions: Iterable[Decision], explored: Iterable[CellData], repeated: Iterable[CellData]
) -> dict[CellKey, dict[str, float]]:
    """From the measurement that a decision quotes: the second one where there is one."""
    cells = {cell.key: cell for cell in (*explored, *repeated)}
    return {d.leader: prompt_speedups(cells[d.leader]) for d in decisions if d.leader in cells}


def _generations(
    decisions: Iterable[Decision],
    explored: Iterable[CellData],
    references: Collection[ReferenceRecord],
) -> dict[CellKey, DecodedRequest]:
    cells = {cell.key: cell for cell in explored}
    leaders = (cells[d.leader] for d in decisions if d.leader in cells)
    found = (generation_of(cell, references) for cell in leaders)
    return {one.key: one for one in found if one is not None}


def _compromises(
    cells: tuple[CellSummary, ...], decisions: Sequence[Decision]
) -> Iterator[SharedK]:
    groups: dict[CellKey, list[CellSummary]] = {}
    for cell in cells:
        if cell.key.draft.k > 0 and cell.key.draft.is_fixed:
            groups.setdefault(across_workloads(cell.key), []).append(cell)
    for group in groups.values():
        found = find_compromise(group, decisions)
        if found is not None and len(found.regret) > 1:
            yield found


def _with_threads(stored: StoredRun) -> Iterator[Environment]:
    """The machine of every session, with the number of threads that all its targets had."""
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


def _mark(decoder: DecoderSettings) -> str:
    return " [synthetic]" if decoder.is_synthetic else ""
