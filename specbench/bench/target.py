"""Measures one loaded target with all its pairings: warm up, explore, confirm."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Literal

import torch

from specbench.bench.blocks import Block, Cell, work_of
from specbench.bench.budget import Deadline
from specbench.bench.forecasting import TargetForecaster
from specbench.bench.limits import MemoryMeter, count_launches
from specbench.bench.passes import Passes
from specbench.bench.plan import TargetPlan, methods_in
from specbench.bench.session import OpenTarget, losses_kept
from specbench.bench.traces import Trace
from specbench.bench.units import Reporter
from specbench.decode.adaptive_k import default_ks
from specbench.engines.engine import Engine, InProcess, Load, Work
from specbench.errors import ModelMemoryError, first_line
from specbench.forward.scoring import next_logits
from specbench.inputs.pairing import DrafterSpec, Pairing
from specbench.metrics.aggregate import aggregate_cells
from specbench.metrics.cell import have_same_text
from specbench.metrics.validity import HALF_PRECISION
from specbench.models.library_errors import EXPECTED_ERRORS, raise_if_device_lost
from specbench.probes.gpu import Probe
from specbench.records import (
    NO_DRAFTER,
    FailureRecord,
    FirstDifference,
    KernelChoice,
    MemoryRecord,
    Request,
)
from specbench.runs import RunStore
from specbench.settings import BUILTIN
from specbench.tracing.trace import Traceable, trace_conversation
from specbench.verify.reference_model import rounding_step

Stage = Literal["load", "warm_up"]
WARM_UP_TOKENS = 12
MAX_EXAMINED = 3  # outputs per cell that differ from K = 0
NO_MEMORY = (ModelMemoryError, torch.OutOfMemoryError)


class TargetRun:
    """The measurement of one target; every result is stored immediately."""

    def __init__(
        self,
        plan: TargetPlan,
        store: RunStore,
        probe: Probe,
        meter: MemoryMeter,
        reporter: Reporter,
        deadline: Deadline,
        trace: Trace = trace_conversation,
    ) -> None:
        self._plan = plan
        self._store = store
        self._probe = probe
        self._meter = meter
        self._reporter = reporter
        self._deadline = deadline
        self._trace = trace
        self._left_out: set[tuple[str, str]] = set()  # an engine and a drafter that it cannot load

    def measure(self, engines: Mapping[str, Engine], threads: KernelChoice | None) -> None:
        """Measure the blocks of this target that are not stored yet, until the deadline.

        `engines`: by name, in order, with the target loaded; `threads`: the choice of their number,
        if it was chosen by timing.
        """
        target, self._threads = self._plan.target.name, threads
        session = OpenTarget(engines, self._probe, self._store, self._plan, self._reporter)
        engine = session.engine
        self._store.append(engine.identity)
        self._reporter.stage(f"{target}: warming up")
        try:
            prompt_ids = self._sample_prompt(engine, session)
            short = partial(answer_shortly, engine, prompt_ids, engine.baseline)
            self._store_memory(self._meter.record_target(engine, short))
            unprofiled: list[tuple[frozenset[str], frozenset[str]]] = []
            for loaded, share in self._drafters_that_fit(session, prompt_ids):
                deadline = self._deadline.part(share)
                forecasting = None
                if self._plan.settings.forecasting.forecast:
                    forecasting = TargetForecaster(session, deadline, self._trace)
                    forecasting.trace(loaded)
                usable = self._warm_up(engines, prompt_ids, loaded)
                self._store_engine_records(engines)
                usable = forecasting.narrow(usable) if forecasting else usable
                passes = Passes(session, deadline, usable)
                passes.explore(forecasting.measure_after_block if forecasting else None)
                if forecasting:
                    forecasting.conclude()
                passes.confirm()
                self._store_engine_records(engines)  # again: fallbacks may have been added
                if share == 1:
                    self._count_launches(engine, prompt_ids, usable)
                else:  # a profiler slows later measurements
                    unprofiled.append((loaded, usable))
            self._examine_differences(session)
            for loaded, usable in unprofiled:
                self._count_launches(engine, prompt_ids, usable, reload=loaded)
        except EXPECTED_ERRORS as error:
            self.fail(target, "warm_up", error, self._plan.all_cells)

    def _sample_prompt(self, engine: Engine, session: OpenTarget) -> tuple[int, ...]:
        """Token ids of the first prompt that the target can answer; raises an error without one."""
        errors: list[Exception] = []
        for workload in self._plan.workloads:
            for prompt in self._plan.prompts(workload):
                try:
                    prompt_ids = session.first_turn(workload.name, prompt)
                    answer_shortly(engine, prompt_ids, engine.baseline)
                except EXPECTED_ERRORS as error:
                    errors.append(error)
                else:
                    return prompt_ids
        raise errors[0]

    def _drafters_that_fit(
        self, session: OpenTarget, prompt_ids: tuple[int, ...]
    ) -> Iterator[tuple[frozenset[str], float]]:
        """Load drafters in groups that fit into memory together, until all were loaded.

        Yields the loaded names, including the baseline's, and their share of the time left.
        A group shares blocks and K = 0. Yields nothing if no drafter can be loaded, since K = 0
        has nothing to be compared with then.
        """
        waiting = [p for p in self._plan.pairings if self._plan.largest_k(p)]
        if not waiting:
            yield frozenset({NO_DRAFTER}), 1.0
        while waiting:
            loaded, waiting = self._load(session, prompt_ids, waiting)
            if loaded:
                share = len(loaded) / (len(loaded) + len(waiting))
                yield frozenset({NO_DRAFTER, *loaded}), share
            for name in loaded:
                session.remove_drafter(name)

    def _load(
        self, session: OpenTarget, prompt_ids: tuple[int, ...], pairings: Sequence[Pairing]
    ) -> tuple[list[str], list[Pairing]]:
        """The names of loaded drafters, and the pairings that did not fit into memory with them."""
        loaded: list[str] = []
        waiting: list[Pairing] = []
        for pairing in pairings:
            drafter, k = pairing.drafter, self._plan.largest_k(pairing)
            load_and_run = partial(self._load_and_run, session, drafter, prompt_ids, k)
            try:
                with losses_kept(self._store, self._cells_of(drafter.name), "load"):
                    memory = self._meter.with_drafter(session.engine, drafter.name, load_and_run)
            except EXPECTED_ERRORS as error:
                session.remove_drafter(drafter.name)
                if loaded and isinstance(error, NO_MEMORY):
                    waiting.append(pairing)
                else:
                    self.fail(pairing.name, "load", error, self._cells_of(drafter.name))
            else:
                self._store_memory(memory)
                loaded.append(drafter.name)
        return loaded, waiting

    def _load_and_run(
        self, session: OpenTarget, drafter: DrafterSpec, prompt_ids: tuple[int, ...], k: int
    ) -> None:
        """Load the drafter in every engine that has its method; run it in the first of them."""
        has_run = False
        for name, engine in session.engines.items():
            methods = methods_in(name, drafter)
            if not methods:
                continue
            try:
                identity = engine.add_drafter(drafter)
            except EXPECTED_ERRORS as error:
                if engine is session.engine:
                    raise
                self._left_out.add((name, drafter.name))
                cells = [c for c in self._cells_of(drafter.name) if c.key.condition.engine == name]
                pairing = f"{self._plan.target.name}/{drafter.name}"
                self.fail(pairing, "load", error, cells, at=f"{name}: ")
                continue
            if not has_run:
                has_run = True
                if identity is not None:
                    self._store.append(identity)
                k = self._plan.within_reach(drafter.name, k)
                answer_shortly(
                    engine, prompt_ids, Work(drafter=drafter.name, method=methods[0], k=k)
                )

    def _store_memory(self, memory: MemoryRecord | None) -> None:
        if memory is not None:
            self._store.append(memory)

    def _store_engine_records(self, engines: Mapping[str, Engine]) -> None:
        """Store the records of the engines, and print their notes as warnings."""
        for engine in engines.values():
            for note in engine.record.notes:
                self._reporter.warn(note)
            record = replace(engine.record, threads=self._threads)
            if record not in self._store.stored.engines:
                self._store.append(record)

    def _warm_up(
        self,
        engines: Mapping[str, Engine],
        prompt_ids: tuple[int, ...],
        drafters: frozenset[str],
    ) -> frozenset[str]:
        """Run every shape once without recording it; return the ids of the cells that ran."""
        shapes: dict[tuple[object, ...], list[Cell]] = {}
        for cell in self._plan.all_cells:
            if (
                cell.drafter not in drafters
                or (cell.key.condition.engine, cell.drafter) in self._left_out
            ):
                continue
            rows = cell.key.condition.concurrency, cell.key.condition.num_samples
            shape = (cell.key.condition.engine, work_of(cell), rows, cell.sampling)
            shapes.setdefault(shape, []).append(cell)
        usable: list[Cell] = []
        output_ids: tuple[int, ...] = ()
        for cell, *same_shape in shapes.values():
            request = Request(
                prompt_ids=prompt_ids,
                max_new_tokens=WARM_UP_TOKENS,
                sampling=cell.sampling,
                stop_at_eos=not cell.has_known_text,  # as in the blocks
                # Half of an output as the prediction, so that rounds also run after it.
                prediction_ids=output_ids[: len(output_ids) // 2],
                is_sample=cell.key.condition.num_samples > 1,
            )
            load = Load(concurrency=cell.key.condition.batch_size)
            engine = engines[cell.key.condition.engine]
            try:
                with losses_kept(self._store, [cell, *same_shape], "warm_up"):
                    for work in warm_up_works(cell, self._plan.depths.get(cell.drafter)):
                        served = engine.serve([request] * load.concurrency, work, load)
                        output_ids = served.results[0].output_ids
            except EXPECTED_ERRORS as error:
                k = cell.key.draft.k
                is_first = engine is next(iter(engines.values()))
                if is_first and work_of(cell) == engine.baseline and load.concurrency == 1:
                    raise
                at = f"{cell.key.draft.method} K={k}: "
                self.fail(cell.key.pairing, "warm_up", error, [cell, *same_shape], at=at)
            else:
                usable += [cell, *same_shape]
        return frozenset(cell.key.id for cell in usable)

    def _count_launches(
        self,
        engine: Engine,
        prompt_ids: tuple[int, ...],
        usable: frozenset[str],
        reload: frozenset[str] = frozenset(),
    ) -> None:
        """Store the host's launches and waits per round of the measured cells on a GPU.

        `reload`: drafters that were unloaded to free memory for others and are loaded again here.
        """
        device, stored = torch.device(self._store.run.environment.device), self._store.stored
        if device.type != "cuda" or not isinstance(engine, InProcess):
            return
        measured = {request.cell_id for block in stored.blocks for request in block.requests}
        counted = {r.cell_id for r in stored.limits if r.launches_per_round is not None}
        cells = [
            cell
            for cell in self._plan.all_cells
            if cell.key.id in (usable & measured) - counted
            and cell.key.condition.engine == BUILTIN
            and not cell.key.draft.is_adaptive
        ]
        if not cells:
            return
        request = Request(prompt_ids=prompt_ids, max_new_tokens=WARM_UP_TOKENS)
        self._reporter.stage(f"{self._plan.target.name}: counting launches")
        drafters = [p.drafter for p in self._plan.pairings if p.drafter.name in reload]
        with suppress(*EXPECTED_ERRORS):  # measuring is complete; the cells then have no count
            for drafter in drafters:
                engine.add_drafter(drafter)
            for limit in count_launches(engine, cells, request, device):
                self._store.append(limit)
        for drafter in drafters:
            engine.remove_drafter(drafter.name)

    def _examine_differences(self, session: OpenTarget) -> None:
        """For half precision, store the gap between the logits at the first difference from K = 0.

        One forward for each of up to `MAX_EXAMINED` outputs per cell, until the deadline.
        """
        engine, stored = session.engine, self._store.stored
        cells = {
            cell.key: cell
            for cell in self._plan.all_cells
            if cell.has_known_text
            and cell.key.condition.engine == BUILTIN
            and cell.key.condition.dtype in HALF_PRECISION
        }
        if not isinstance(engine, Traceable) or not cells:
            return
        self._reporter.stage(f"{self._plan.target.name}: comparing logits at differences from K=0")
        examined = {difference.cell_id for difference in stored.differences}
        for data in aggregate_cells(
            tuple(cells), stored.blocks, device=stored.run.environment.device
        ):
            key = data.key
            differing = [pair for pair in data.pairs if not have_same_text(*pair)]
            for base, spec in differing[:MAX_EXAMINED] if key.id not in examined else ():
                if self._deadline.is_over("confirm"):
                    return
                prompts = self._plan.workload(key.condition.workload).prompts
                block = Block(
                    condition=key.condition,
                    prompts=tuple(prompt for prompt in prompts if prompt.id == spec.prompt_id),
                    repeat=spec.repeat,
                    purpose="explore",
                    cells=(cells[key],),
                )
                try:
                    pairs = enumerate(zip(base.output_ids, spec.output_ids, strict=True))
                    position, tokens = next((i, pair) for i, pair in pairs if len(set(pair)) == 2)
                    texts = session.texts(block, cells[key])
                    prompt_ids = next(t.prompt_ids for t in texts if t.turn == spec.turn)
                    text = (*prompt_ids, *spec.output_ids[:position])
                    logits_V = next_logits(engine.runner, text).to(engine.runner.dtype)
                except Exception as error:  # measuring is complete: a warning is enough
                    raise_if_device_lost(error)
                    self._reporter.warn(f"{key.pairing}: {first_line(error)}")
                    return
                base_logit, spec_logit = logits_V[list(tokens)].double().tolist()
                difference = FirstDifference(
                    cell_id=key.id,
                    prompt_id=spec.prompt_id,
                    turn=spec.turn,
                    repeat=spec.repeat,
                    position=position,
                    gap=abs(base_logit - spec_logit),
                    spacing=float(rounding_step(logits_V[None])),
                )
                self._store.append(difference)

    def _cells_of(self, drafter: str) -> list[Cell]:
        return [cell for cell in self._plan.all_cells if cell.drafter == drafter]

    def fail(
        self, pairing: str, stage: Stage, error: Exception, cells: Sequence[Cell], at: str = ""
    ) -> None:
        """Print a warning, and store the failure unless an earlier session has stored it."""
        reason = at + first_line(error)
        failure = FailureRecord(
            pairing=pairing,
            workload="",
            stage=stage,
            reason=reason,
            cell_ids=tuple(cell.key.id for cell in cells),
        )
        self._reporter.warn(f"{pairing}: {reason}")
        if failure not in self._store.stored.failures:
            self._store.append(failure)


def answer_shortly(engine: Engine, prompt_ids: tuple[int, ...], work: Work) -> None:
    """Decode a few greedy tokens after the prompt."""
    engine.generate(Request(prompt_ids=prompt_ids, max_new_tokens=WARM_UP_TOKENS), work)


def warm_up_works(cell: Cell, max_k: int | None) -> Iterator[Work]:
    """The work that warms up a cell: the cell's work, or every K that an adaptive cell may choose.

    `max_k`: the drafter's limit. The round costs of an adaptive cell are not measured here, since
    they are part of its time.
    """
    work = work_of(cell)
    if not work.adaptive:
        yield work
        return
    for k in default_ks(min(work.k, max_k or work.k)):
        yield Work(drafter=work.drafter, method=work.method, k=k)
