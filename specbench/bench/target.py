"""Measures one target with all its pairings: load, warm up, explore, confirm."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Literal, Protocol

import torch

from specbench.bench.deadline import Deadline
from specbench.bench.floors import measure_floors
from specbench.bench.memory import MemoryMeter
from specbench.bench.plan import Block, Cell, TargetPlan, confirm_block
from specbench.bench.session import Session, first_line
from specbench.bench.watch import Watch
from specbench.config import Drafter
from specbench.engines.engine import Engine, EngineRequest
from specbench.errors import CompatibilityError, ModelError, UsageError, WorkloadError
from specbench.metrics.cell import gather_cells
from specbench.pairing.recommend import by_question, choose
from specbench.probes.probe import Probe
from specbench.records import NO_DRAFTER, CellKey, CellSummary, FailureRecord, Sampling
from specbench.stats.summary import summarise
from specbench.store import RunWriter, StoredRun, load_run

WARM_UP_TOKENS = 12
# What a machine or a model may refuse; it is a stored result then, and the rest goes on.
REFUSALS = (ModelError, CompatibilityError, UsageError, WorkloadError, torch.OutOfMemoryError)


class OpenEngine(Protocol):
    """Loads a target; raises ModelError."""

    def __call__(self) -> Engine: ...


class TargetRun:
    """One target's share of a run; every result is stored as soon as it is there."""

    def __init__(
        self,
        plan: TargetPlan,
        writer: RunWriter,
        probe: Probe,
        meter: MemoryMeter,
        watch: Watch,
        deadline: Deadline,
    ) -> None:
        self._plan = plan
        self._writer = writer
        self._probe = probe
        self._meter = meter
        self._watch = watch
        self._deadline = deadline
        self._precise: set[CellKey] = set()  # questions known well enough, by their K = 0

    def measure(self, open_engine: OpenEngine) -> None:
        """All blocks of this target that are not stored yet, as far as the deadline lets."""
        target = self._plan.target.name
        self._watch.stage(f"{target}: loading")
        try:
            engine = open_engine()
        except REFUSALS as error:
            self._fail(target, "load", error)
            return
        references = self._stored().references
        session = Session(engine, self._probe, self._writer, references, self._plan)
        self._writer.append(engine.identity)
        self._watch.stage(f"{target}: warming up")
        try:
            prompt_ids = self._sample_prompt(engine, session)
            cells = self._warm_up(engine, prompt_ids, self._load_drafters(engine, prompt_ids))
        except REFUSALS as error:
            self._fail(target, "warm_up", error)
            return
        for note in engine.notes:
            self._watch.warn(note)
        usable = {cell.key.id for cell in cells}
        self._explore(session, engine, usable)
        self._confirm(session, usable)

    def _sample_prompt(self, engine: Engine, session: Session) -> tuple[int, ...]:
        """Token ids of the first prompt that the target can answer; the first error if none."""
        errors: list[Exception] = []
        for workload in self._plan.workloads:
            for prompt in self._plan.prompts(workload):
                try:
                    prompt_ids = session.first_turn(workload.name, prompt)
                    _short(engine, prompt_ids, NO_DRAFTER, 0)
                except REFUSALS as error:
                    errors.append(error)
                else:
                    return prompt_ids
        raise errors[0]

    def _load_drafters(self, engine: Engine, prompt_ids: tuple[int, ...]) -> tuple[Cell, ...]:
        """Memory of the target alone, then of each drafter beside it; the cells that can run."""
        self._writer.append(
            self._meter.target_alone(engine, lambda: _short(engine, prompt_ids, NO_DRAFTER, 0))
        )
        usable = {NO_DRAFTER}
        for pairing in self._plan.pairings:
            drafter, k = pairing.drafter, max(self._plan.ks(pairing))
            if k == 0:
                continue
            load_and_run = partial(self._load_and_run, engine, drafter, prompt_ids, k)
            try:
                memory = self._meter.with_drafter(engine, drafter.name, load_and_run)
            except REFUSALS as error:
                self._fail(pairing.name, "load", error)
                continue
            self._writer.append(memory)
            usable.add(drafter.name)
        return tuple(cell for cell in self._plan.all_cells if cell.drafter in usable)

    def _load_and_run(
        self, engine: Engine, drafter: Drafter, prompt_ids: tuple[int, ...], k: int
    ) -> None:
        identity = engine.add_drafter(drafter)
        if identity is not None:
            self._writer.append(identity)
        _short(engine, prompt_ids, drafter.name, k)

    def _warm_up(
        self, engine: Engine, prompt_ids: tuple[int, ...], cells: Sequence[Cell]
    ) -> tuple[Cell, ...]:
        """Run every shape once before it counts, recording nothing; the cells that can run."""
        shapes: dict[tuple[object, ...], list[Cell]] = {}
        for cell in cells:
            k = cell.key.num_speculative_tokens
            shapes.setdefault((cell.drafter, k, cell.key.temperature), []).append(cell)
        usable: list[Cell] = []
        for cell, *others in shapes.values():
            k = cell.key.num_speculative_tokens
            request = EngineRequest(
                prompt_ids=prompt_ids,
                max_new_tokens=WARM_UP_TOKENS,
                sampling=cell.sampling,
                seed=0,
                stop_at_eos=False,
            )
            try:
                engine.generate(request, cell.drafter, k)
            except REFUSALS as error:
                if k == 0:
                    raise
                self._fail(cell.key.pairing, "warm_up", error, at=f"K={k}: ")
            else:
                usable += [cell, *others]
        return tuple(usable)

    def _explore(self, session: Session, engine: Engine, usable: set[str]) -> None:
        blocks = [_only(block, usable) for block in self._plan.explore_blocks()]
        done = 0
        for block in blocks:
            self._watch.stage(f"{block.target}: {block.workload}")
            if block.id not in self._writer.finished_blocks:
                if self._deadline.is_over("explore") or self._is_precise(block):
                    continue
                record = session.run_block(block)
                for cost in measure_floors(engine, block.cells, record):
                    self._writer.append(cost)
            done += 1
            self._watch.advance(done, len(blocks), self._deadline.seconds_left("explore"))

    def _is_precise(self, block: Block) -> bool:
        """Whether the best K of every pairing of the block's question is known well enough."""
        precision, question = self._plan.settings.precision, block.cells[0].key
        if precision is None or question in self._precise:
            return precision is not None
        leaders = [choose(group).leader for group in by_question(self._summaries(block.cells))]
        if leaders and all(_half_width(leader) <= precision for leader in leaders):
            self._precise.add(question)
        return question in self._precise

    def _confirm(self, session: Session, usable: set[str]) -> None:
        """Measure every winner again on fresh repeats: the best of many is biased upward."""
        winners = [choose(group).to_confirm for group in by_question(self._summaries(self._plan.all_cells))]
        chosen = {key.id for key in winners if key is not None} & usable
        explored = [
            block
            for block in self._plan.explore_blocks()
            if _only(block, usable).id in self._writer.finished_blocks
        ]
        # Repeats past all planned ones are fresh, and the same ones in every session.
        blocks = [
            confirm_block(
                block,
                (block.cells[0], *_only(block, chosen).cells),
                self._plan.repeats(block.cells[0].key.temperature),
            )
            for block in explored
            if _only(block, chosen).cells
        ]
        for done, block in enumerate(blocks):
            self._watch.stage(f"{block.target}: {block.workload}, the winners again")
            if block.id not in self._writer.finished_blocks:
                if self._deadline.is_over("confirm"):
                    continue
                session.run_block(block)
            self._watch.advance(done + 1, len(blocks), self._deadline.seconds_left("confirm"))

    def _summaries(self, cells: Sequence[Cell]) -> tuple[CellSummary, ...]:
        return summarise(gather_cells([cell.key for cell in cells], self._stored().blocks))

    def _stored(self) -> StoredRun:
        return load_run(self._writer.folder, self._writer.folder.parent)

    def _fail(
        self, pairing: str, stage: Literal["load", "warm_up"], error: Exception, at: str = ""
    ) -> None:
        """Store and tell a refusal; one that an earlier session met too is stored once."""
        reason = at + first_line(error)
        self._watch.warn(f"{pairing}: {reason}")
        failure = FailureRecord(pairing=pairing, workload="", stage=stage, reason=reason)
        if failure not in self._stored().failures:
            self._writer.append(failure)


def _short(engine: Engine, prompt_ids: tuple[int, ...], drafter: str, k: int) -> None:
    request = EngineRequest(
        prompt_ids=prompt_ids, max_new_tokens=WARM_UP_TOKENS, sampling=Sampling(), seed=0
    )
    engine.generate(request, drafter, k)


def _only(block: Block, ids: set[str]) -> Block:
    """The block with those of its cells that have one of the ids."""
    return replace(block, cells=tuple(cell for cell in block.cells if cell.key.id in ids))


def _half_width(cell: CellSummary | None) -> float:
    """Relative half-width of the speed-up's interval; infinite while there is none."""
    if cell is None or cell.speedup is None or cell.speedup.low is None:
        return math.inf
    assert cell.speedup.high is not None
    return (cell.speedup.high - cell.speedup.low) / 2 / cell.speedup.estimate
