"""Cycles of sessions: measures K = 0 and every K on one machine, one server after another, and
decides which cycle of a target and engine comes next, including the confirmation of winners.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from statistics import fmean

from specbench.bench.blocks import Cell, with_baselines
from specbench.bench.budget import Deadline, mean_session_s
from specbench.bench.extensions import Extensions
from specbench.bench.plan import TargetPlan
from specbench.bench.served.host import Host
from specbench.bench.served.open_session import OpenSession, entered, failed_record, server_record
from specbench.bench.served.race import (
    Sessions,
    SessionTimes,
    confirms_open,
    dropped,
    is_fixed,
    others_left,
    starts_of,
    to_confirm,
)
from specbench.bench.served.running import ServerHandle
from specbench.bench.served.sessions import (
    Answers,
    Session,
    Start,
    cycle_of,
    next_name,
    served_cells,
    sessions_missing,
    was_completed,
)
from specbench.bench.units import Reporter, RunLoop
from specbench.decide.recommend import winners
from specbench.errors import LostError, ModelError, ServerError, SpecbenchError
from specbench.inputs.address import Address
from specbench.metrics.aggregate import aggregate_cells
from specbench.metrics.cell import CellData
from specbench.metrics.machine import machine_kind
from specbench.metrics.speed import noise_of_sessions
from specbench.metrics.summary import summarize
from specbench.probes.gpu import Gpus
from specbench.records import BlockPurpose, BlockRecord, ServerRecord
from specbench.runs import RunStore, StoredRecord, StoredRun
from specbench.servers.server_log import EngineError
from specbench.stats.crossed import (
    FEWEST_PLANNED,
    MIN_CYCLES,
    MOST_PLANNED,
    cycles_needed,
)
from specbench.words.answers import text

Failures = Mapping[Start, Sequence[str]]  # reasons of the latest consecutive failures
LONGEST_REASON = 1_000  # characters of a stored reason
WEIGHTS = (".safetensors", ".gguf", ".bin")
CHUNK_BYTES = 2**24
TRIES = 2  # consecutive failed sessions after which a K is not tried again
_NUMBER = re.compile(r"[\d.]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class Cycle:
    """A unit: all sessions of a cycle, since K = 0 and every K need the same machine."""

    plan: TargetPlan
    engine: str
    running: tuple[Address, ...]  # (): servers are started
    cells: tuple[Cell, ...]
    number: int
    purpose: BlockPurpose
    failures: Failures
    num_prompts: int | None = None  # of a session that confirms; None: as many as chose

    @property
    def sessions(self) -> tuple[Session, ...]:
        return tuple(cycle_of(self.cells, self.number, self.purpose, self.num_prompts))

    @property
    def label(self) -> str:
        return f"{self.plan.target.name}: {self.engine}, cycle {self.number + 1}"

    def records_to_resume(self, records: Sequence[StoredRecord]) -> Iterator[StoredRecord]:
        """The records that another machine needs to resume the unit: all sessions, the blocks of
        this cycle, and the answers at K = 0."""
        ks = {cell.key.id: cell.key.draft.k for cell in served_cells(self.plan, self.engine)}
        for record in records:
            if isinstance(record, ServerRecord) or (
                isinstance(record, BlockRecord)
                and record.order[0] in ks
                and (record.cycle == self.number or ks[record.order[0]] == 0)
            ):
                yield record

    def failure_records(self, stored: StoredRun, reason: str) -> Iterator[StoredRecord]:
        """Failure records, with the reason, for the sessions that are not stored."""
        for session in sessions_missing(self.sessions, stored.servers):
            yield failed_record(session, next_name(session, stored), (reason,))


class CycleRun:
    """Measures a cycle on this machine."""

    def __init__(
        self,
        cycle: Cycle,
        host: Host,
        store: RunStore,
        reporter: Reporter,
        deadline: Deadline,
    ) -> None:
        self._cycle, self._plan, self._host = cycle, cycle.plan, host
        self._store, self._reporter, self._deadline = store, reporter, deadline
        self._failures = dict(cycle.failures)
        self._gpus, self._answers = Gpus(), Answers()
        by_id = {cell.key.id: cell for cell in served_cells(cycle.plan, cycle.engine)}
        for block in store.stored.blocks:
            cell = by_id.get(block.order[0])
            if cell is not None and cell.key.draft.k == 0:
                self._answers.learn(cell, block.requests)

    def measure(self) -> None:
        """Measure all sessions of the cycle, unless all are stored, until the deadline."""
        if self._plan.running_ks is None:
            self._read_models()
        sessions, servers = self._cycle.sessions, self._store.stored.servers
        # A repeated K needs its baseline from the same time, server and node.
        if not sessions_missing(sessions, servers):
            return
        places = {session.place for session in sessions}
        starts = {session.start for session in sessions}
        attempt = 1 + max((s.attempt for s in servers if s.place in places), default=0)
        num_blocks = sum(len(session.cells) for session in sessions)
        loop = RunLoop(self._store, self._reporter, self._deadline, num_blocks)
        due = [s for s in sessions if len(self._failures.get(s.start, ())) < TRIES]
        try:
            with self._host.sharing(due):
                # Without the first cycle there is no answer, so it may use the whole budget.
                purpose = self._cycle.purpose if self._cycle.number else "confirm"
                for session in sessions:
                    if self._deadline.is_over(purpose) or is_over(self._failures, starts):
                        return
                    if len(self._failures.get(session.start, ())) < TRIES:
                        self._reporter.stage(f"{session.target}: {session.label}")
                        self._measure_session(session, attempt, loop)
        except ServerError as error:  # the shared server does not end
            self._reporter.warn(str(error))

    def _read_models(self) -> None:
        """Read the models into the system's page cache, so that all server starts are alike."""
        models = (model for pairing in self._plan.pairings for model in pairing.models)
        for folder in dict.fromkeys(model.folder for model in models if model.folder):
            with suppress(ModelError):  # the engine then reports the error
                read_once(folder)

    def _measure_session(self, session: Session, attempt: int, loop: RunLoop) -> None:
        name = next_name(session, self._store.stored)
        try:
            with asyncio.Runner() as runner, entered(runner, self._host.open(session)) as running:
                try:
                    record = self._serve(session, name, running, runner, loop)
                except (SpecbenchError, OSError) as error:
                    record = server_record(session, name, running, (self._explain(session, error),))
        except (SpecbenchError, OSError) as error:
            record = failed_record(session, name, (self._explain(session, error),))
            if isinstance(error, EngineError):
                record = replace(record, log=f"{error.log.parent.name}/{error.log.name}")
        self._store.append(replace(record, node=self._store.node, attempt=attempt))
        if was_completed(record):
            self._failures[session.start] = ()
            for line in (*record.problems, *map(text, record.warnings)):
                self._reporter.warn(f"{session.label}: {line}")
        else:
            self._host.stop_shared()
            earlier = self._failures.get(session.start, ())
            self._failures[session.start] = (*earlier, *record.problems)

    def _serve(
        self,
        session: Session,
        name: str,
        running: ServerHandle,
        runner: asyncio.Runner,
        loop: RunLoop,
    ) -> ServerRecord:
        """Serve a session under this name and store its blocks. Returns its record; ServerError."""
        self._gpus.start()
        stalls = running.watch(lambda text: self._reporter.warn(f"{session.label}: {text}"))
        server = OpenSession(
            self._plan, session, name, running, runner, self._answers, self._store.node
        )
        try:
            with entered(runner, stalls) as server.stalls:
                server.warm_up()
                loop.serve(session.blocks(self._plan, name), server, after=server.check)
        except LostError:
            running.require_running()  # raises the cause if the server has ended
            raise
        finally:
            used = self._gpus.stop()
        return server.record(used)

    def _explain(self, session: Session, error: Exception) -> str:
        """The reason to store for a failure; printed in full the first time, then only its log."""
        reason = error.reason if isinstance(error, EngineError) else _on_one_line(error)
        text, log = str(error).strip() or reason, getattr(error, "log", None)
        if any(_is_same(reason, earlier) for row in self._failures.values() for earlier in row):
            text = f"the same error as before{f'; log: {log}' if log else ''}"
        self._reporter.warn(f"{session.label}: {text}")
        return reason


def is_over(failures: Failures, starts: Set[Start]) -> bool:
    """Whether the same reason occurred twice and prevented K = 0, or every other K."""
    speculating = {start for start in starts if start[0].k}
    for reason in {row[-1] for row in failures.values() if row}:
        num = sum(_is_same(reason, other) for row in failures.values() for other in row)
        lasts = {start: failures.get(start, ())[-1:] for start in starts}
        failed = {start for start, last in lasts.items() if last and _is_same(reason, last[0])}
        if num >= TRIES and (failed - speculating or failed >= speculating):
            return True
    return False


def _is_same(reason: str, other: str) -> bool:
    """Whether two reasons are equal except for their numbers, such as free memory."""
    return _NUMBER.sub("", reason) == _NUMBER.sub("", other)


def _on_one_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines()]
    return " ".join(filter(None, lines))[:LONGEST_REASON] or type(error).__name__


@cache
def read_once(model: Path) -> int:
    """Read a folder's weights, or one file, once per process. Returns the bytes; ModelError."""
    chunk = bytearray(CHUNK_BYTES)
    num_bytes = 0
    try:
        inside = model.iterdir() if model.is_dir() else ()
        weights = [path for path in inside if path.suffix in WEIGHTS and path.is_file()]
        for path in weights if model.is_dir() else [model]:
            with path.open("rb", buffering=0) as stream:
                while num_read := stream.readinto(chunk):
                    num_bytes += num_read
    except OSError as error:
        raise ModelError(f"{model} cannot be read: {error}") from error
    return num_bytes


EFFECT = 0.05  # minimum detectable speedup of a sweep without --restart-cycles
FIRST_CONFIRMING = 100  # cycle number after all of the exploration, so that repeats are new


class ServedRun:
    """All cycles of one engine; stored cycles are not measured again."""

    def __init__(
        self,
        plan: TargetPlan,
        engine: str,
        running: Sequence[Address],
        store: RunStore,
        deadline: Deadline,
    ) -> None:
        self.plan, self.deadline = plan, deadline
        self._engine, self._running, self._store = engine, tuple(running), store
        self._cells = served_cells(plan, engine)
        self._first = len(store.stored.servers)  # earlier failures are tried again
        self._num_begun: Counter[BlockPurpose] = Counter()
        self._winners: tuple[Cell, ...] | None = None  # None: not known yet
        self._num_confirming: int | None = None  # prompts of a session; None: as many as chose
        drafters = (cell.drafter for cell in self._cells if cell.key.draft.k)
        self._extensions = Extensions(store, frozenset(drafters))

    def next_unit(self, num_running: int) -> Cycle | None:
        """The next cycle of the exploration, or of the confirmation once all of it is stored.

        None if no cycle can start until one of `num_running` ends; if this is 0, all are done.
        """
        if self._winners is None:
            if not self._extensions.is_taken("confirm", self._cells[0]):
                num_cycles = partial(self._num_cycles, num_running)
                cells_of = partial(self._racing, num_running=num_running)
                cycle = self._next_of("explore", cells_of, num_cycles, num_running)
                if cycle is not None or num_running:
                    return cycle
            self._winners = self._find_winners()
        won, has_budget = self._winners, self.plan.settings.effort.budget_s is not None
        most = max(MOST_PLANNED, self.plan.cycles)
        as_often = (most if has_budget else self._num_begun["explore"]) if won else 0
        return self._next_of("confirm", lambda _: won, lambda: as_often, num_running)

    def _racing(self, num_cycles: int, num_running: int) -> tuple[Cell, ...]:
        """The cells of the exploration after so many cycles. Under a budget starts are dropped
        after 1, 2 and 4 cycles if the time left is too short for all; a resumed run follows."""
        cells = self._cells
        explored = {s.cycle for s in self._servers() if s.cycle < FIRST_CONFIRMING}
        # Of a cycle that runs elsewhere, or that is repeated, some K are not measured.
        num_ended = self._num_begun["explore"] - num_running
        num_known = min(num_cycles, num_ended, len(explored))
        for num in (1, 2, 4) if self.plan.settings.effort.budget_s is not None else ():
            if num <= num_known:
                decide = partial(self._dropped, cells, max(self.plan.cycles - num, 1))
                lost = self._extensions.take("drop", decide, cells[0], num)
                cells = tuple(cell for cell in cells if cell.key.id not in lost)
        return cells

    def _dropped(self, cells: Sequence[Cell], num_cycles: int) -> frozenset[str]:
        """The cells without which so many cycles fit the time left to explore."""
        left_s = self.deadline.seconds_left("explore")
        session_s = self._session_s("explore", cells)
        if left_s is None or not session_s:
            return frozenset()
        measured = {cell.key.id: cell for cell in summarize(self._gathered())}
        return dropped(cells, measured, left_s / (session_s * num_cycles))

    def _next_of(
        self,
        purpose: BlockPurpose,
        cells_of: Callable[[int], Sequence[Cell]],
        num_cycles: Callable[[], int],
        num_running: int,
    ) -> Cycle | None:
        """The next cycle with missing sessions; None if all are complete, or no time is left."""
        while self._num_begun[purpose] < num_cycles():
            first = FIRST_CONFIRMING if purpose == "confirm" else 0
            cycle = Cycle(
                plan=self.plan,
                engine=self._engine,
                running=self._running,
                cells=tuple(cells_of(self._num_begun[purpose])),
                number=first + self._num_begun[purpose],
                purpose=purpose,
                failures=self._failures(),
                num_prompts=self._num_confirming if purpose == "confirm" else None,
            )
            sessions = cycle.sessions
            is_due = (
                bool(sessions_missing(sessions, self._store.stored.servers))
                and not is_over(cycle.failures, {session.start for session in sessions})
                and any(len(cycle.failures[session.start]) < TRIES for session in sessions)
            )
            if is_due and not self._has_time(cycle, len(sessions) * (1 + num_running)):
                return None
            self._num_begun[purpose] += 1
            if is_due:
                return cycle
        return None

    def _has_time(self, cycle: Cycle, num_sessions: int) -> bool:
        left_s = self.deadline.seconds_left(cycle.purpose)
        needed_s = self._session_s(cycle.purpose, cycle.cells) * num_sessions
        return left_s is None or (left_s > 0 and left_s >= needed_s)

    def _session_s(self, purpose: BlockPurpose, cells: Sequence[Cell]) -> float:
        """Mean seconds of a session of these cells, with its warm-up and stop; 0 before the first
        one."""
        num_confirming = self._num_confirming if purpose == "confirm" else None
        return self._times(cells).session_s(num_confirming or self._num_explored)

    def _times(self, cells: Sequence[Cell]) -> SessionTimes:
        """The seconds of the sessions so far, with the mean speed of the starts of these cells:
        K = 0, which is often slower, is a larger part of a cycle with fewer K."""
        servers = self._servers()
        completed = [server for server in servers if was_completed(server)]
        if not completed:
            return SessionTimes(0.0, 0.0)
        served: dict[object, list[tuple[float, int]]] = {}
        for server in completed:
            is_again = server.cycle >= FIRST_CONFIRMING
            num = (is_again and self._num_confirming) or self._num_explored
            start = server.drafter, server.num_speculative_tokens, server.variant
            served.setdefault(start, []).append((server.seconds, num))
        keys = ((cell.key.draft, cell.key.condition.variant) for cell in cells)
        starts = {(draft.drafter, draft.k, variant) for draft, variant in keys}
        sums = [map(sum, zip(*served[s], strict=True)) for s in starts & served.keys() or served]
        served_s = sum(server.seconds for server in completed)
        # Failed sessions took time as well; if they failed at once, the others took all of it.
        start_s = max(
            (mean_session_s(completed) or 0.0) - served_s / len(completed),
            (self.deadline.spent_s - served_s) / len(servers),
        )
        return SessionTimes(start_s, fmean(seconds / num for seconds, num in sums))

    @property
    def _num_explored(self) -> int:
        """The prompts of each workload in a session of the exploration."""
        return min(len(self.plan.measured(workload)) for workload in self.plan.workloads)

    def _failures(self) -> Failures:
        """The consecutive failures of each start since this run was resumed."""
        starts: dict[tuple[str, int, str | None], Start] = {}
        for draft, at in ((cell.key.draft, cell.key.condition) for cell in self._cells):
            starts[draft.drafter, draft.k, at.variant] = draft, at.variant
        failures: dict[Start, tuple[str, ...]] = dict.fromkeys(starts.values(), ())
        for server in self._servers(self._first):
            start = starts[server.drafter, server.num_speculative_tokens, server.variant]
            failures[start] = () if was_completed(server) else (*failures[start], *server.problems)
        return failures

    def _servers(self, first: int = 0) -> list[ServerRecord]:
        """The sessions of this target and engine, from the `first` stored one on."""
        at = (self.plan.target.name, self._engine)
        servers = self._store.stored.servers[first:]
        return [server for server in servers if (server.target, server.engine) == at]

    def _num_cycles(self, num_running: int) -> int:
        """Cycles of the exploration: the requested number, or one that fits the noise so far.

        The noise is independent of which K is best, so this rule does not favor any K.
        """
        if self.plan.settings.servers.cycles is not None:
            return self.plan.settings.servers.cycles
        if self.plan.settings.effort.budget_s is not None:
            has_choice = len(starts_of(self._cells)) > 1
            is_over = has_choice and len(starts_of(self._racing(MIN_CYCLES, num_running))) == 1
            return MIN_CYCLES if is_over else MOST_PLANNED
        cells = self._gathered()
        sound = (noise_of_sessions(cell) for cell in cells if not cell.client_bound)
        noises = [noise for noise in sound if noise is not None]
        if not noises:
            return FEWEST_PLANNED
        num_bound = max(cell.num_bound_cycles for cell in cells)
        return min((cycles_needed(noises, EFFECT) or MOST_PLANNED) + num_bound, MOST_PLANNED)

    def _find_winners(self) -> tuple[Cell, ...]:
        """The cells to confirm, and their K = 0; empty if no winner was chosen.

        Under a budget, also those that may win, and with as many prompts as the time left allows
        for: the exploration has few.
        """
        cells, explored = self._cells, self._gathered()
        summaries = summarize(explored)
        if self.plan.settings.effort.budget_s is None or len(starts_of(cells)) < 2:
            return with_baselines(cells, set(winners(summaries)))

        most, fixed = others_left(self.plan), is_fixed(self.plan)
        are_together = all(cell.key.condition.is_stream for cell in cells)
        left_s = self.deadline.seconds_left("confirm") or 0.0

        def sessions_of(left: Sequence[Cell]) -> Sessions:
            return self._times(left).confirming(
                left_s,
                len([*cycle_of(left, 0)]),
                self._num_explored if fixed else most,
                machine_kind(next(cell for cell in explored if cell.key.draft.k)),
                is_fixed=fixed,
                are_together=are_together,
            )

        def decide() -> tuple[frozenset[str], int] | None:
            also_open = confirms_open(self.plan)
            won = with_baselines(cells, set(winners(summaries, also_open=also_open)))
            if not won:  # a resumed run may still find one
                return None
            measured = {cell.key.id: cell for cell in summaries}
            kept, sessions = to_confirm(won, measured, sessions_of)
            ids = frozenset(cell.key.id for cell in kept if cell.key.draft.k)
            return ids, 0 if fixed else sessions.num_prompts

        ids, num = self._extensions.take_confirmation(decide, cells[0])
        self._num_confirming = num or None
        return with_baselines(cells, ids)

    def _gathered(self) -> tuple[CellData, ...]:
        """The measured cells of the exploration."""
        stored = self._store.stored
        keys = [cell.key for cell in self._cells]
        slo = self.plan.settings.load.slo
        device = stored.run.environment.device
        return aggregate_cells(keys, stored.blocks, servers=stored.servers, slo=slo, device=device)
