"""Traces, round costs, forecasts: which of the planned cells are worth measuring for real.

What is decided follows from stored records alone, so a resumed run decides the same.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from specbench.bench.blocks import Cell, Setting
from specbench.bench.deadline import Deadline
from specbench.bench.plan import BUILTIN, TargetPlan
from specbench.bench.round_costs import Costed, measure_round_costs
from specbench.bench.session import Session
from specbench.bench.traces import Trace, Tracer
from specbench.bench.watch import Watch
from specbench.config import Pairing
from specbench.engines.engine import REFUSALS
from specbench.errors import first_line
from specbench.metrics.setting import is_baseline, setting_of
from specbench.pairing.cost_curve import CostCurve, measured_here, told
from specbench.pairing.engine_costs import acceptance_rule
from specbench.pairing.forecast import Effort, forecast, middle_context, replayed
from specbench.pairing.rank import shortlist
from specbench.pairing.replay import Replayed
from specbench.records import (
    NO_DRAFTER,
    AcceptanceRule,
    CellKey,
    ForecastRecord,
    TraceRecord,
)
from specbench.records.traces import Drafting
from specbench.store import RunWriter, StoredRun, load_run
from specbench.tracing.text import Text

COSTS_SHARE = 0.3  # of the time that exploring may still take, for round costs
_ALIKE = 256  # tokens of context: within so many, and within doublings beyond, costs are shared


class _Question(NamedTuple):
    """What one forecast is about."""

    pairing: Pairing
    setting: Setting
    cells: tuple[Cell, ...]  # its K > 0, of one fixed K each
    traces: list[TraceRecord]


class Forecasting:
    """One target's forecasts. `trace` comes before cells warm up, `narrow` after it."""

    def __init__(
        self,
        plan: TargetPlan,
        writer: RunWriter,
        watch: Watch,
        session: Session,
        deadline: Deadline,
        trace: Trace,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._plan = plan
        self._writer = writer
        self._watch = watch
        self._session = session
        self._deadline = deadline
        self._clock = clock
        self._told = self._stored().engine_costs
        self._tracer = Tracer(plan, writer, watch, session, trace, self._drafting, clock)

    def trace(self, drafters: frozenset[str]) -> None:
        """Trace the named drafters. Rows and KV caches may grow: graphs are made afterwards."""
        loaded = [p for p in self._plan.pairings if p.drafter.name in drafters]
        done = {(f.key.pairing, setting_of(f.key)) for f in self._stored().forecasts}
        keys = [self._plan.cells(setting)[0].key for setting in self._plan.all_settings]
        waiting = [p for p in loaded if any((p.name, setting_of(key)) not in done for key in keys)]
        if waiting:
            self._tracer.run(waiting, self._deadline)

    def narrow(self, usable: frozenset[str]) -> frozenset[str]:
        """The cells to measure for real; none where the costs are another engine's.

        A drafter that cannot be forecast keeps all of its cells.
        """
        questions = list(self._questions(usable))
        known = {record.key: record for record in self._stored().forecasts}
        waiting = [q for q in questions if _deepest(q) not in known]
        groups = self._groups(waiting)
        made = [
            record
            for left, group in zip(range(len(groups), 0, -1), groups, strict=True)
            for record in self._forecasts(group, left)
        ]
        for record in shortlist(made, known.values(), self._plan.settings.most_drafters):
            self._writer.append(record)
            known[record.key] = record
        if self._told:
            return frozenset()
        left_out: set[str] = set()
        for question in questions:
            made_of = known.get(_deepest(question))
            if made_of is not None:
                left_out |= {
                    cell.key.id
                    for cell in question.cells
                    if cell.key.num_speculative_tokens not in made_of.to_measure
                }
        return usable - left_out

    def _questions(self, usable: frozenset[str]) -> Iterator[_Question]:
        """Those of the loaded drafters that have traces."""
        for setting in self._plan.all_settings:
            for pairing in self._plan.pairings:
                cells = tuple(
                    cell
                    for cell in self._plan.cells(setting)
                    if cell.key.id in usable
                    and (cell.key.engine, cell.drafter) == (BUILTIN, pairing.drafter.name)
                    and not cell.key.adaptive
                )
                traces = self._tracer.traces(pairing, setting) if cells else []
                if replayed(traces, 0) is not None:
                    yield _Question(pairing, setting, cells, traces)

    def _groups(self, questions: Sequence[_Question]) -> list[list[_Question]]:
        """Questions that share round costs: they differ in workload and drafter alone, and their
        contexts are alike."""
        groups: dict[tuple[object, ...], list[_Question]] = {}
        for question in questions:
            same = setting_of(question.cells[0].key)._replace(workload="")
            size = max(middle_context(question.traces), _ALIKE)
            groups.setdefault((same, (size - 1).bit_length()), []).append(question)
        return list(groups.values())

    def _forecasts(self, group: Sequence[_Question], num_groups: int) -> Iterator[ForecastRecord]:
        began_s = self._clock()
        curves = (
            self._told_curves(group) if self._told else self._measured_curves(group, num_groups)
        )
        costs_s = 0.0 if self._told else (self._clock() - began_s) / len(group)
        for question in group:
            curve = curves.get(_deepest(question))
            ks = [cell.key.num_speculative_tokens for cell in question.cells]
            if curve is None:
                continue
            try:
                yield forecast(
                    _deepest(question),
                    question.traces,
                    curve,
                    ks,
                    rule=self._rule(question.setting.temperature),
                    effort=self._effort(question, costs_s),
                )
            except ValueError as error:
                name = f"{question.pairing.name} on {question.setting.workload}"
                self._watch.warn(f"{name}: not forecast, {first_line(error)}")

    def _told_curves(self, group: Sequence[_Question]) -> dict[CellKey, CostCurve]:
        curves = {}
        for question in group:
            ks = [cell.key.num_speculative_tokens for cell in question.cells]
            rows = question.setting.concurrency
            curves[_deepest(question)] = told(self._told, concurrency=rows, ks=ks)
        return curves

    def _measured_curves(
        self, group: Sequence[_Question], num_groups: int
    ) -> dict[CellKey, CostCurve]:
        """The costs of each drafter beside one K = 0; none where a cell refuses its texts."""
        self._watch.stage(f"{self._plan.target.name}: timing rounds")
        costed = self._costed(group)
        settings = dict.fromkeys(question.setting for question in group)
        texts = _in_turn([list(self._tracer.texts(setting)) for setting in settings])
        try:
            costs = list(
                measure_round_costs(
                    self._session.engine,
                    costed,
                    texts,
                    seed=self._plan.settings.seed,
                    may_go_on=self._within(COSTS_SHARE / num_groups),
                    clock=self._clock,
                )
            )
        except REFUSALS as error:
            self._watch.warn(f"round costs: {first_line(error)}; every K is measured instead")
            return {}
        for cost in costs:
            self._writer.append(cost)
        found = {}
        for question in group:
            own = [
                cost
                for one, cost in zip(costed, costs, strict=True)
                if one.cell.drafter in (question.pairing.drafter.name, NO_DRAFTER)
            ]
            ks = {cost.num_speculative_tokens for cost in own}
            rounds = {k: known for k in ks if (known := replayed(question.traces, k)) is not None}
            curve = measured_here(own, {k: known.per_text for k, known in rounds.items()})
            if curve is not None:
                found[_deepest(question)] = curve
        return found

    def _within(self, share: float) -> Callable[[], bool]:
        """Whether no more than a share of the time left by now has gone; always, unlimited."""
        left_s = self._deadline.seconds_left("explore")

        def is_within() -> bool:
            now_s = self._deadline.seconds_left("explore")
            return left_s is None or now_s is None or now_s > left_s * (1 - share)

        return is_within

    def _costed(self, group: Sequence[_Question]) -> list[Costed]:
        """A cell for each drafter and K, the first of its workloads, and one without drafts."""
        cells: dict[tuple[str, int], Cell] = {}
        ids: dict[tuple[str, int], list[str]] = {}
        rounds: dict[tuple[str, int], list[Replayed]] = {}
        scale: dict[tuple[str, int], float] = {}
        for question in group:
            baseline = next(c for c in self._plan.cells(question.setting) if is_baseline(c.key))
            repeats = self._effort(question, 0.0).sweep
            for cell in (baseline, *question.cells):
                place = (cell.drafter, cell.key.num_speculative_tokens)
                replay = replayed(question.traces, cell.key.num_speculative_tokens)
                if replay is None or cell.key.id in ids.get(place, ()):
                    continue
                cells.setdefault(place, cell)
                ids.setdefault(place, []).append(cell.key.id)
                rounds.setdefault(place, []).append(replay.pooled)
                scale[place] = repeats
        return [
            Costed(
                cell=cell,
                cell_ids=tuple(ids[place]),
                tokens_per_round=max(r.num_emitted / r.num_rounds for r in rounds[place]),
                num_rounds=scale[place] * sum(r.num_rounds for r in rounds[place]),
            )
            for place, cell in cells.items()
        ]

    def _effort(self, question: _Question, costs_s: float) -> Effort:
        """How much decoding each traced prompt stands for, in the sweep and after the forecast."""
        plan, setting = self._plan, question.setting
        repeats: float = plan.repeats(setting)
        workload = next(w for w in plan.workloads if w.name == setting.workload)
        num_traced = len({trace.prompt_id for trace in question.traces})
        if setting.is_stream:  # rows decode side by side
            share = len(plan.pass_prompts(workload, setting.concurrency)) / setting.concurrency
            sweep = after = repeats * share / num_traced
        else:
            sweep = repeats * len(plan.prompts(workload)) / num_traced
            after = repeats * len(plan.measured(workload)) / num_traced
        trace_s = self._tracer.seconds(question.traces, setting)
        return Effort(sweep=sweep, after=after, trace_s=trace_s, costs_s=costs_s)

    def _rule(self, temperature: float) -> AcceptanceRule:
        return acceptance_rule(self._plan.settings.acceptance_rule, self._told, temperature)

    def _drafting(self, temperature: float) -> Drafting:
        return "greedy" if self._rule(temperature) == "greedy_draft" else "own"

    def _stored(self) -> StoredRun:
        return load_run(self._writer.folder, self._writer.folder.parent)


def _deepest(question: _Question) -> CellKey:
    return max((c.key for c in question.cells), key=lambda key: key.num_speculative_tokens)


def _in_turn(lists: Sequence[list[Text]]) -> list[Text]:
    """The first of each, then the second of each, until none is left."""
    longest = max(map(len, lists), default=0)
    return [items[i] for i in range(longest) for items in lists if i < len(items)]
