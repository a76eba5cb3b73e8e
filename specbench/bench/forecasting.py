"""Traces, round costs, forecasts: which of the planned cells are worth measuring for real.

What is decided follows from stored records alone, so a resumed run decides the same.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from specbench.bench.blocks import Block
from specbench.bench.budget import Deadline, block_seconds
from specbench.bench.drafted_cells import DraftedCells, costed, effort, sharing_costs
from specbench.bench.plan import TargetPlan
from specbench.bench.progress import Reporter
from specbench.bench.round_costs import TIME_SHARE, RoundCosts
from specbench.bench.session import OpenTarget
from specbench.bench.traces import Trace, Tracer
from specbench.decide.rank import shortlist
from specbench.engines.expected_errors import EXPECTED_ERRORS
from specbench.errors import UsageError, first_line
from specbench.forecast.cost_curve import CostCurve, curve_from, describe, left_out, measured_here
from specbench.forecast.engine_costs import acceptance_rule
from specbench.forecast.forecast import forecast, replayed
from specbench.records import NO_DRAFTER, BlockRecord, CellKey, Condition, ForecastRecord
from specbench.records.forecasts import Drafting
from specbench.runs import RunStore
from specbench.settings import BUILTIN, AcceptanceRule
from specbench.tracing.text import TargetText

COSTS_SHARE = 0.3  # of the time that exploring may still take, for round costs


class _Between(NamedTuple):
    """Questions whose round costs are measured between the blocks of an exhaustive run."""

    group: list[DraftedCells]
    costs: RoundCosts


class Forecasting:
    """One target's forecasts. `trace` comes before cells warm up, `narrow` after it."""

    def __init__(
        self,
        plan: TargetPlan,
        store: RunStore,
        reporter: Reporter,
        session: OpenTarget,
        deadline: Deadline,
        trace: Trace,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._plan = plan
        self._store = store
        self._reporter = reporter
        self._session = session
        self._deadline = deadline
        self._clock = clock
        self._told = self._store.stored.engine_costs
        self._warned: set[str] = set()
        self._between: list[_Between] = []
        self._measured_s: defaultdict[Condition, float] = defaultdict(float)
        self._tracer = Tracer(plan, store, reporter, session, trace, self._drafting, clock)

    def trace(self, drafters: frozenset[str]) -> None:
        """Trace the named drafters. Rows and KV caches may grow: graphs are made afterwards."""
        loaded = [p for p in self._plan.pairings if p.drafter.name in drafters]
        done = {(f.key.pairing, f.key.condition) for f in self._store.stored.forecasts}
        keys = [self._plan.cells(condition)[0].key for condition in self._plan.conditions]
        waiting = [p for p in loaded if any((p.name, key.condition) not in done for key in keys)]
        if waiting:
            self._tracer.run(waiting, self._deadline)

    def narrow(self, usable: frozenset[str]) -> frozenset[str]:
        """The cells to measure for real: all in an exhaustive run, none where the costs are
        another engine's.

        A drafter that cannot be forecast keeps all of its cells.
        """
        questions = list(self._drafted_cells(usable))
        known = {record.key: record for record in self._store.stored.forecasts}
        groups = sharing_costs(q for q in questions if q.key not in known)
        asked = self._plan.settings.forecasting
        if asked.exhaustive:
            self._between = [_Between(group, self._costs(group)) for group in groups]
            return usable
        made = [
            record
            for left, group in zip(range(len(groups), 0, -1), groups, strict=True)
            for record in self._forecasts(group, left)
        ]
        for record in shortlist(made, known.values(), asked.most_drafters):
            self._store.append(record)
            known[record.key] = record
        if self._told:
            return frozenset()
        left_out: set[str] = set()
        for drafted in questions:
            made_of = known.get(drafted.key)
            if made_of is not None:
                left_out |= {
                    cell.key.id
                    for cell in drafted.cells
                    if cell.key.draft.k not in made_of.to_measure
                }
        return usable - left_out

    def beside(self, block: Block, record: BlockRecord) -> None:
        """A timing repetition after a block of an exhaustive run, where its share of time has come.

        A machine's pace changes by the minute: only so do costs and sweep meet the same one.
        """
        for group, costs in tuple(self._between):
            if block.condition in [drafted.condition for drafted in group]:
                self._measured_s[block.condition] += sum(block_seconds(record).values())
                measured_s = sum(self._measured_s[s] for s in {q.condition for q in group})
                # However soon they are known: the sweep goes on, and its pace may change.
                if costs.spent_s < TIME_SHARE * measured_s:
                    self._visit(costs)

    def conclude(self) -> None:
        """The forecasts of an exhaustive run: they knew nothing of what was measured."""
        for group, costs in self._between:
            for record in self._made(group, self._measured_curves(group, costs), costs.spent_s):
                self._store.append(record)
        self._between = []

    def _drafted_cells(self, usable: frozenset[str]) -> Iterator[DraftedCells]:
        """Those of the loaded drafters that have traces."""
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
        if self._told:
            return self._made(group, self._told_curves(group), 0.0)
        self._reporter.stage(f"{self._plan.target.name}: timing rounds")
        costs, may_go_on = self._costs(group), self._within(COSTS_SHARE / num_groups)
        return self._made(group, self._measured_curves(group, costs, may_go_on), costs.spent_s)

    def _visit(self, costs: RoundCosts) -> None:
        try:
            costs.visit()
        except EXPECTED_ERRORS as error:
            self._refuse(error)
            self._between = [one for one in self._between if one.costs is not costs]

    def _made(
        self, group: Sequence[DraftedCells], curves: dict[CellKey, CostCurve], costs_s: float
    ) -> Iterator[ForecastRecord]:
        for drafted in group:
            curve = curves.get(drafted.key)
            if curve is None:
                continue
            trace_s = self._tracer.seconds(drafted.traces, drafted.condition)
            shared_s = costs_s / len(group)
            try:
                yield forecast(
                    drafted.key,
                    drafted.traces,
                    curve,
                    drafted.ks,
                    rule=self._rule(drafted.condition.temperature),
                    effort=effort(self._plan, drafted, trace_s=trace_s, costs_s=shared_s),
                )
            except ValueError as error:
                name = f"{drafted.pairing.name} on {drafted.condition.workload}"
                self._reporter.warn(f"{name}: not forecast, {first_line(error)}")

    def _told_curves(self, group: Sequence[DraftedCells]) -> dict[CellKey, CostCurve]:
        found = {}
        for drafted in group:
            at, ks = drafted.condition, drafted.ks
            own = [c for c in self._told if c.is_of(at, drafted.pairing.drafter.name)]
            name = f"{drafted.pairing.name} on {at.workload}"
            if not own:
                whose = describe(self._told)
                self._reporter.warn(f"{name}: not forecast, the costs of {whose} say nothing of it")
                continue
            try:
                found[drafted.key] = curve_from(own, concurrency=at.concurrency, ks=ks)
            except UsageError as error:  # known of others, not of this one
                self._reporter.warn(f"{name}: not forecast, {error}")
                continue
            text = left_out(own, concurrency=at.concurrency, ks=ks)
            if text and text not in self._warned:  # others may have the same K
                self._warned.add(text)
                self._reporter.warn(text)
        return found

    def _costs(self, group: Sequence[DraftedCells]) -> RoundCosts:
        settings = dict.fromkeys(drafted.condition for drafted in group)
        return RoundCosts(
            self._session.engine,
            costed(self._plan, group),
            _in_turn([list(self._tracer.texts(condition)) for condition in settings]),
            seed=self._plan.settings.seed,
            clock=self._clock,
        )

    def _measured_curves(
        self,
        group: Sequence[DraftedCells],
        costs: RoundCosts,
        may_go_on: Callable[[], bool] = lambda: True,
    ) -> dict[CellKey, CostCurve]:
        """The costs of each drafter beside one K = 0; none where a cell refuses its texts."""
        try:
            records = costs.finish(may_go_on)
        except EXPECTED_ERRORS as error:
            self._refuse(error)
            return {}
        for record in records:
            self._store.append(record)
        found = {}
        for drafted in group:
            own = [
                record
                for one, record in zip(costs.costed, records, strict=True)
                if one.cell.drafter in (drafted.pairing.drafter.name, NO_DRAFTER)
            ]
            ks = {record.num_speculative_tokens for record in own}
            rounds = {k: known for k in ks if (known := replayed(drafted.traces, k)) is not None}
            curve = measured_here(own, {k: known.of_texts for k, known in rounds.items()})
            if curve is not None:
                found[drafted.key] = curve
        return found

    def _refuse(self, error: Exception) -> None:
        self._reporter.warn(f"round costs: {first_line(error)}; every K is measured instead")

    def _within(self, share: float) -> Callable[[], bool]:
        """Whether no more than a share of the time left by now has gone; always, unlimited."""
        left_s = self._deadline.seconds_left("explore")

        def is_within() -> bool:
            now_s = self._deadline.seconds_left("explore")
            return left_s is None or now_s is None or now_s > left_s * (1 - share)

        return is_within

    def _rule(self, temperature: float) -> AcceptanceRule:
        rule = self._plan.settings.forecasting.acceptance_rule
        return acceptance_rule(rule, self._told, temperature)

    def _drafting(self, temperature: float) -> Drafting:
        return "greedy" if self._rule(temperature) == "greedy_draft" else "own"


def _in_turn(lists: Sequence[list[TargetText]]) -> list[TargetText]:
    """The first of each, then the second of each, until none is left."""
    longest = max(map(len, lists), default=0)
    return [items[i] for i in range(longest) for items in lists if i < len(items)]
