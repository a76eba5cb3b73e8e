"""Measures one target with all its pairings: load, warm up, explore, confirm."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Literal, Protocol

import torch

from specbench.bench.deadline import Deadline
from specbench.bench.memory import MemoryMeter
from specbench.bench.passes import Passes
from specbench.bench.plan import Cell, TargetPlan
from specbench.bench.session import Session, first_line
from specbench.bench.watch import Watch
from specbench.config import Drafter, Pairing
from specbench.engines.engine import Engine, EngineRequest
from specbench.errors import (
    CompatibilityError,
    ModelError,
    ModelMemoryError,
    UsageError,
    WorkloadError,
)
from specbench.probes.probe import Probe
from specbench.records import NO_DRAFTER, FailureRecord, Sampling
from specbench.store import RunWriter, StoredRun, load_run

WARM_UP_TOKENS = 12
# What a machine or a model may refuse; it is a stored result then, and the rest goes on.
REFUSALS = (ModelError, CompatibilityError, UsageError, WorkloadError, torch.OutOfMemoryError)
NO_MEMORY = (ModelMemoryError, torch.OutOfMemoryError)


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
            self._writer.append(
                self._meter.target_alone(engine, lambda: _short(engine, prompt_ids, NO_DRAFTER, 0))
            )
            for loaded, share in self._drafters_that_fit(engine, prompt_ids):
                usable = self._warm_up(engine, prompt_ids, loaded)
                deadline = self._deadline.part(share)
                passes = Passes(self._plan, self._writer, self._watch, deadline, usable)
                passes.explore(session, engine)
                passes.confirm(session)
        except REFUSALS as error:
            self._fail(target, "warm_up", error)

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

    def _drafters_that_fit(
        self, engine: Engine, prompt_ids: tuple[int, ...]
    ) -> Iterator[tuple[frozenset[str], float]]:
        """Load drafters beside the target, as many at once as there is memory for.

        Yields the names loaded, the baseline's among them, and their share of the time left:
        drafters that are loaded together share blocks and a K = 0. The first names come even if
        no drafter could be loaded.
        """
        waiting = [p for p in self._plan.pairings if max(self._plan.ks(p)) > 0]
        is_first = True
        while waiting or is_first:
            loaded, waiting = self._load(engine, prompt_ids, waiting)
            for note in engine.notes:
                self._watch.warn(note)
            if loaded or is_first:
                share = len(loaded) / (len(loaded) + len(waiting)) if waiting else 1.0
                yield frozenset({NO_DRAFTER, *loaded}), share
            for name in loaded:
                engine.remove_drafter(name)
            is_first = False

    def _load(
        self, engine: Engine, prompt_ids: tuple[int, ...], pairings: Sequence[Pairing]
    ) -> tuple[list[str], list[Pairing]]:
        """Names that were loaded, and the pairings that found no memory beside them."""
        loaded: list[str] = []
        waiting: list[Pairing] = []
        for pairing in pairings:
            drafter, k = pairing.drafter, max(self._plan.ks(pairing))
            load_and_run = partial(self._load_and_run, engine, drafter, prompt_ids, k)
            try:
                memory = self._meter.with_drafter(engine, drafter.name, load_and_run)
            except NO_MEMORY as error:
                engine.remove_drafter(drafter.name)
                if loaded:
                    waiting.append(pairing)
                else:
                    self._fail(pairing.name, "load", error)
            except REFUSALS as error:
                self._fail(pairing.name, "load", error)
            else:
                self._writer.append(memory)
                loaded.append(drafter.name)
        return loaded, waiting

    def _load_and_run(
        self, engine: Engine, drafter: Drafter, prompt_ids: tuple[int, ...], k: int
    ) -> None:
        identity = engine.add_drafter(drafter)
        if identity is not None:
            self._writer.append(identity)
        _short(engine, prompt_ids, drafter.name, k)

    def _warm_up(
        self, engine: Engine, prompt_ids: tuple[int, ...], drafters: frozenset[str]
    ) -> frozenset[str]:
        """Run every shape once before it counts, recording nothing; ids of cells that can run."""
        shapes: dict[tuple[object, ...], list[Cell]] = {}
        for cell in self._plan.all_cells:
            if cell.drafter not in drafters:
                continue
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
        return frozenset(cell.key.id for cell in usable)

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
