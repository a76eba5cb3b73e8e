"""Traces, round costs and forecasts, which decide the planned cells that are measured.

Decisions depend only on stored records, so a resumed run decides the same.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from specbench.bench.blocks import Block, Cell, interleaved
from specbench.bench.budget import Deadline, block_seconds
from specbench.bench.plan import TargetPlan
from specbench.bench.round_costs import TIME_SHARE, RoundCosts, TimedCell
from specbench.bench.session import OpenTarget
from specbench.bench.traces import Trace, Tracer
from specbench.decide.rank import shortlist
from specbench.errors import UsageError, first_line
from specbench.forecast.adaptive_bound import with_bound
from specbench.forecast.cost_curve import CostCurve, curve_from, describe, left_out, measured_here
from specbench.forecast.engine_costs import forecast_acceptance_rule
from specbench.forecast.forecast import Effort, forecast, middle_context, replayed
from specbench.inputs.pairing import Pairing
from specbench.models.library_errors import EXPECTED_ERRORS
from specbench.records import (
    NO_DRAFTER,
    BlockRecord,
    CellKey,
    Condition,
    ForecastRecord,
    TraceRecord,
)
from specbench.records.forecasts import Drafting
from specbench.settings import BUILTIN, AcceptanceRule
from specbench.stats.rounds import RoundCounts

_ALIKE = 256  # tokens of context: up to it, and within each doubling beyond, costs are shared


class DraftedCells(NamedTuple):
    """The cells of one forecast: a drafter under a condition."""

    pairing: Pairing
    condition: Condition
    cells: tuple[Cell, ...]  # one per fixed K > 0
    traces: list[TraceRecord]

    @property
    def key(self) -> CellKey:
        """The key of the deepest K, which identifies the forecast."""
        return max((c.key for c in self.cells), key=lambda key: key.draft.k)

    @property
    def ks(self) -> list[int]:
        return [cell.key.draft.k for cell in self.cells]


def sharing_costs(forecasts: Iterable[DraftedCells]) -> list[list[DraftedCells]]:
    """Groups with similar contexts that differ only in workload and drafter."""
    groups: dict[tuple[object, ...], list[DraftedCells]] = {}
    for drafted in forecasts:
        same = drafted.cells[0].key.condition.without("workload")
        size = max(middle_context(drafted.traces), _ALIKE)
        groups.setdefault((same, (size - 1).bit_length()), []).append(drafted)
    return list(groups.values())


def timed_cells(plan: TargetPlan, group: Sequence[DraftedCells]) -> list[TimedCell]:
    """A cell for each drafter and K, from the first workload that has it, and one at K = 0."""
    cells_by_k: dict[tuple[str, int], list[tuple[Cell, RoundCounts, float]]] = {}
    for drafted in group:
        baseline = next(c for c in plan.cells(drafted.condition) if c.key.is_baseline)
        repeats = effort_of(plan, drafted).sweep
        for cell in (baseline, *drafted.cells):
            replay = replayed(drafted.traces, cell.key.draft.k)
            if replay is None:
                continue
            known = cells_by_k.setdefault((cell.drafter, cell.key.draft.k), [])
            if cell not in [each for each, *_ in known]:
                known.append((cell, replay.pooled, repeats * replay.pooled.num_rounds))
    return [
        TimedCell(
            cell=known[0][0],
            cell_ids=tuple(cell.key.id for cell, *_ in known),
            tokens_per_round=max(r.num_emitted / r.num_rounds for _, r, _ in known),
            num_rounds=sum(num_rounds for *_, num_rounds in known),  # of the whole sweep
        )
        for known in cells_by_k.values()
    ]


def effort_of(
    plan: TargetPlan, drafted: DraftedCells, *, trace_s: float = 0.0, costs_s: float = 0.0
) -> Effort:
    """The decoding that each traced prompt represents, in the sweep and after the forecast."""
    condition = drafted.condition
    repeats: float = plan.repeats(condition)
    workload = plan.workload(condition.workload)
    num_traced = len({trace.prompt_id for trace in drafted.traces})
    if condition.is_stream:  # requests decode together
        share = len(plan.pass_prompts(workload, condition)) / condition.concurrency
        sweep = after = repeats * share / num_traced
    else:
        sweep = repeats * len(plan.prompts(workload)) / num_traced
        after = repeats * len(plan.after_forecast(workload)) / num_traced
    return Effort(sweep=sweep, after=after, trace_s=trace_s, costs_s=costs_s)


COSTS_SHARE = 0.3  # of the time that exploring may still take, for round costs


class _InterleavedTimings(NamedTuple):
    """Forecasts whose round costs are timed between the blocks of an exhaustive run."""

    group: list[DraftedCells]
    costs: RoundCosts


class TargetForecaster:
    """One target's forecasts. Call `trace` before cells warm up, and `narrow` afterwards."""

    def __init__(self, session: OpenTarget, deadline: Deadline, trace: Trace) -> None:
        self._session, self._deadline = session, deadline
        self._plan, self._store, self._reporter = session.plan, session.store, session.reporter
        self._engine_costs = self._store.stored.engine_costs
        self._warned: set[str] = set()
        self._between: list[_InterleavedTimings] = []
        self._measured_s: defaultdict[Condition, float] = defaultdict(float)
        self._tracer = Tracer(session, trace, self._drafting)

    def trace(self, drafters: frozenset[str]) -> None:
        """Trace the named drafters, before graphs are captured, since KV caches may grow."""
        loaded = [p for p in self._plan.pairings if p.drafter.name in drafters]
        done = {(f.key.pairing, f.key.condition) for f in self._store.stored.forecasts}
        keys = [self._plan.cells(condition)[0].key for condition in self._plan.conditions]
        waiting = [p for p in loaded if any((p.name, key.condition) not in done for key in keys)]
        if waiting:
            self._tracer.run(waiting, self._deadline)

    def narrow(self, usable: frozenset[str]) -> frozenset[str]:
        """The cells to measure: all in an exhaustive run, none if the costs are from another
        engine.

        A drafter that cannot be forecast keeps all of its cells.
        """
        forecasts = list(self._drafted_cells(usable))
        known = {record.key: record for record in self._store.stored.forecasts}
        groups = sharing_costs(drafted for drafted in forecasts if drafted.key not in known)
        settings = self._plan.settings.forecasting
        if settings.exhaustive:
            self._between = [_InterleavedTimings(group, self._costs(group)) for group in groups]
            return usable
        new = [
            record
            for left, group in zip(range(len(groups), 0, -1), groups, strict=True)
            for record in self._forecasts(group, left)
        ]
        for record in shortlist(new, known.values(), settings.most_drafters):
            self._store.append(record)
            known[record.key] = record
        if self._engine_costs:
            return frozenset()
        left_out: set[str] = set()
        for drafted in forecasts:
            if (made := known.get(drafted.key)) is not None:
                left_out |= {
                    cell.key.id for cell in drafted.cells if cell.key.draft.k not in made.to_measure
                }
        return usable - left_out

    def measure_after_block(self, block: Block, record: BlockRecord) -> None:
        """Run a timing repetition after a block of an exhaustive run, up to a share of the time.

        The speed of a machine changes by the minute, so costs and sweep are timed together.
        """
        for group, costs in tuple(self._between):
            if block.condition in [drafted.condition for drafted in group]:
                self._measured_s[block.condition] += sum(block_seconds(record).values())
                measured_s = sum(self._measured_s[s] for s in {q.condition for q in group})
                # Even if the costs are precise: the machine's speed may change during the sweep.
                if costs.spent_s < TIME_SHARE * measured_s:
                    self._repeat(costs)

    def conclude(self) -> None:
        """Store the forecasts of an exhaustive run, which do not use its measurements."""
        for group, costs in self._between:
            curves = self._measured_curves(group, costs)
            for record in self._forecasts_from(group, curves, costs.spent_s):
                self._store.append(record)
        self._between = []

    def _drafted_cells(self, usable: frozenset[str]) -> Iterator[DraftedCells]:
        """The cells of loaded drafters that have traces."""
        for condition in self._plan.conditions:
            for pairing in self._plan.pairings:
                cells = tuple(
                    cell
                    for cell in self._plan.cells(condition)
                    if cell.key.id in usable
                    and (cell.key.condition.engine, cell.drafter) == (BUILTIN, pairing.drafter.name)
                    and cell.key.draft.is_fixed
                )
                traces = self._tracer.traces(pairing, condition) if cells else []
                if replayed(traces, 0) is not None:
                    yield DraftedCells(pairing, condition, cells, traces)

    def _forecasts(
        self, group: Sequence[DraftedCells], num_groups: int
    ) -> Iterator[ForecastRecord]:
        if self._engine_costs:
            return self._forecasts_from(group, self._engine_curves(group), 0.0)
        self._reporter.stage(f"{self._plan.target.name}: timing rounds")
        costs, is_within = self._costs(group), self._deadline.start_share()
        curves = self._measured_curves(group, costs, lambda: is_within(COSTS_SHARE / num_groups))
        return self._forecasts_from(group, curves, costs.spent_s)

    def _repeat(self, costs: RoundCosts) -> None:
        try:
            costs.repeat()
        except EXPECTED_ERRORS as error:
            self._warn_unmeasured(error)
            self._between = [between for between in self._between if between.costs is not costs]

    def _forecasts_from(
        self, group: Sequence[DraftedCells], curves: dict[CellKey, CostCurve], costs_s: float
    ) -> Iterator[ForecastRecord]:
        for drafted in group:
            curve = curves.get(drafted.key)
            if curve is None:
                continue
            trace_s = self._tracer.seconds(drafted.traces, drafted.condition)
            shared_s = costs_s / len(group)
            try:
                record = forecast(
                    drafted.key,
                    drafted.traces,
                    curve,
                    drafted.ks,
                    rule=self._rule(drafted.condition.temperature),
                    effort=effort_of(self._plan, drafted, trace_s=trace_s, costs_s=shared_s),
                )
                yield with_bound(record, drafted.traces, curve)
            except ValueError as error:
                name = f"{drafted.pairing.name} on {drafted.condition.workload}"
                self._reporter.warn(f"{name}: not forecast, {first_line(error)}")

    def _engine_curves(self, group: Sequence[DraftedCells]) -> dict[CellKey, CostCurve]:
        curves = {}
        for drafted in group:
            at, ks = drafted.condition, drafted.ks
            costs = [c for c in self._engine_costs if c.is_of(at, drafted.pairing.drafter.name)]
            name = f"{drafted.pairing.name} on {at.workload}"
            if not costs:
                engine = describe(self._engine_costs)
                self._reporter.warn(f"{name}: not forecast, the costs of {engine} do not cover it")
                continue
            try:
                curves[drafted.key] = curve_from(costs, concurrency=at.concurrency, ks=ks)
            except UsageError as error:
                self._reporter.warn(f"{name}: not forecast, {error}")
                continue
            text = left_out(costs, concurrency=at.concurrency, ks=ks)
            if text and text not in self._warned:
                self._warned.add(text)
                self._reporter.warn(text)
        return curves

    def _costs(self, group: Sequence[DraftedCells]) -> RoundCosts:
        conditions = dict.fromkeys(drafted.condition for drafted in group)
        return RoundCosts(
            self._session.engine,
            timed_cells(self._plan, group),
            list(interleaved([self._tracer.texts(condition) for condition in conditions])),
            seed=self._plan.settings.seed,
        )

    def _measured_curves(
        self,
        group: Sequence[DraftedCells],
        costs: RoundCosts,
        should_continue: Callable[[], bool] = lambda: True,
    ) -> dict[CellKey, CostCurve]:
        """The costs of each drafter and of the shared K = 0; empty if a cell cannot be timed."""
        try:
            records = costs.finish(should_continue)
        except EXPECTED_ERRORS as error:
            self._warn_unmeasured(error)
            return {}
        for record in records:
            self._store.append(record)
        curves = {}
        for drafted in group:
            costs_of_drafter = [
                record
                for timed, record in zip(costs.cells, records, strict=True)
                if timed.cell.drafter in (drafted.pairing.drafter.name, NO_DRAFTER)
            ]
            ks = {record.num_speculative_tokens for record in costs_of_drafter}
            replays = {k: replay for k in ks if (replay := replayed(drafted.traces, k)) is not None}
            rounds = {k: replay.of_texts for k, replay in replays.items()}
            curve = measured_here(costs_of_drafter, rounds)
            if curve is not None:
                curves[drafted.key] = curve
        return curves

    def _warn_unmeasured(self, error: Exception) -> None:
        self._reporter.warn(f"round costs: {first_line(error)}; every K is measured instead")

    def _rule(self, temperature: float) -> AcceptanceRule:
        rule = self._plan.settings.forecasting.acceptance_rule
        return forecast_acceptance_rule(rule, self._engine_costs, temperature)

    def _drafting(self, temperature: float) -> Drafting:
        return "greedy" if self._rule(temperature) == "greedy_draft" else "own"
