"""One target on one serving engine: how many cycles of sessions, then the winners again."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specbench.bench.blocks import Cell
from specbench.bench.deadline import Deadline
from specbench.bench.plan import TargetPlan
from specbench.bench.served.cycle_run import (
    TRIES,
    CycleRun,
    Failures,
    is_over,
    next_name,
    sessions_missing,
    was_held,
)
from specbench.bench.served.host import host_of
from specbench.bench.served.recording import unusable
from specbench.bench.served.sessions import Session, cycle_of, served_cells
from specbench.bench.spent import mean_session_s
from specbench.bench.watch import Watch
from specbench.decide.recommend import by_question, choose
from specbench.inputs.address import Address
from specbench.metrics.aggregate import gather_cells
from specbench.metrics.cell import CellData
from specbench.metrics.pairs import paired_decode
from specbench.metrics.summary import summarise
from specbench.records import BlockPurpose, BlockRecord, Draft, ServerRecord
from specbench.runs import Ledger, StoredRecord, StoredRun
from specbench.stats.crossed import (
    FEWEST_PLANNED,
    MIN_CYCLES,
    MOST_PLANNED,
    SessionNoise,
    cycles_needed,
    session_noise,
)

EFFECT = 0.05  # minimum detectable speed-up of a sweep whose length nobody set
FIRST_CONFIRMING = 100  # cycle number past all of the first pass, so that repeats are fresh


@dataclass(frozen=True, kw_only=True, slots=True)
class Cycle:
    """A unit of work: all sessions of a cycle, for K = 0 and every K need the same machine."""

    plan: TargetPlan
    engine: str
    running: tuple[Address, ...]  # (): servers are started
    cells: tuple[Cell, ...]
    number: int
    purpose: BlockPurpose
    failures: Failures

    @property
    def sessions(self) -> tuple[Session, ...]:
        return tuple(cycle_of(self.cells, self.number, self.purpose))

    @property
    def label(self) -> str:
        return f"{self.plan.target.name}: {self.engine}, cycle {self.number + 1}"

    def measure(self, ledger: Ledger, watch: Watch, deadline: Deadline) -> None:
        host = host_of(self.plan, self.engine, self.running, ledger.folder)
        run = CycleRun(self.plan, self.engine, host, ledger, watch, deadline, self.failures)
        run.hold(self.sessions, self.purpose)

    def known(self, records: Sequence[StoredRecord]) -> Iterator[StoredRecord]:
        """All sessions, the blocks of this cycle, and the answers at K = 0."""
        own = {cell.key.id: cell.key.draft.k for cell in served_cells(self.plan, self.engine)}
        for record in records:
            if isinstance(record, ServerRecord) or (
                isinstance(record, BlockRecord)
                and record.order[0] in own
                and (record.cycle == self.number or own[record.order[0]] == 0)
            ):
                yield record

    def lost(self, stored: StoredRun, reason: str) -> Iterator[StoredRecord]:
        for session in sessions_missing(self.sessions, stored.servers):
            yield unusable(session, next_name(session, stored), (reason,))


class ServedRun:
    """All cycles of one engine; those that are stored are not held again."""

    def __init__(
        self,
        plan: TargetPlan,
        engine: str,
        running: Sequence[Address],
        ledger: Ledger,
        deadline: Deadline,
    ) -> None:
        self.plan, self.deadline = plan, deadline
        self._engine, self._running, self._ledger = engine, tuple(running), ledger
        self._cells = served_cells(plan, engine)
        self._first = len(ledger.stored.servers)  # of earlier runs: what failed is tried again
        self._num_begun: Counter[BlockPurpose] = Counter()
        self._winners: tuple[Cell, ...] | None = None  # None: still to be found

    def measure(self, watch: Watch) -> None:
        """Hold one cycle after the other, as far as the deadline lets."""
        while (cycle := self.next_cycle(0)) is not None:
            cycle.measure(self._ledger, watch, self.deadline)

    def next_cycle(self, num_running: int) -> Cycle | None:
        """Cycles of the first pass; once all of it is stored, its winners again.

        None: not now beside `num_running` others, or with none running never.
        """
        if self._winners is None:
            found = self._next_of("explore", self._cells, self._num_cycles(), num_running)
            if found is not None or num_running:
                return found
            self._winners = self._find_winners()
        as_often = self._num_begun["explore"] if self._winners else 0
        return self._next_of("confirm", self._winners, as_often, num_running)

    def _next_of(
        self, purpose: BlockPurpose, cells: Sequence[Cell], num_cycles: int, num_running: int
    ) -> Cycle | None:
        """The next cycle with sessions left; None where there is none, or no time for it."""
        while self._num_begun[purpose] < num_cycles:
            first = FIRST_CONFIRMING if purpose == "confirm" else 0
            cycle = Cycle(
                plan=self.plan,
                engine=self._engine,
                running=self._running,
                cells=tuple(cells),
                number=first + self._num_begun[purpose],
                purpose=purpose,
                failures=self._failures(),
            )
            sessions = cycle.sessions
            is_due = (
                bool(sessions_missing(sessions, self._ledger.stored.servers))
                and not is_over(cycle.failures, {session.draft for session in sessions})
                and any(len(cycle.failures[session.draft]) < TRIES for session in sessions)
            )
            if is_due and not self._has_time(len(sessions) * (1 + num_running), purpose):
                return None
            self._num_begun[purpose] += 1
            if is_due:
                return cycle
        return None

    def _has_time(self, num_sessions: int, purpose: BlockPurpose) -> bool:
        left_s = self.deadline.seconds_left(purpose)
        session_s = mean_session_s(self._servers()) or 0.0
        return left_s is None or (left_s > 0 and left_s >= session_s * num_sessions)

    def _failures(self) -> Failures:
        """Of this run."""
        drafts = {(d.drafter, d.k): d for d in (cell.key.draft for cell in self._cells)}
        failures: dict[Draft, tuple[str, ...]] = dict.fromkeys(drafts.values(), ())
        for server in self._servers(self._first):
            draft = drafts[server.drafter, server.num_speculative_tokens]
            failures[draft] = () if was_held(server) else (*failures[draft], *server.problems)
        return failures

    def _servers(self, first: int = 0) -> list[ServerRecord]:
        """The sessions of this target and engine, from the `first` stored one on."""
        own = (self.plan.target.name, self._engine)
        servers = self._ledger.stored.servers[first:]
        return [server for server in servers if (server.target, server.engine) == own]

    def _num_cycles(self) -> int:
        """Cycles of the first pass: as asked, else by the noise so far.

        The noise says nothing about which K is best, so stopping by it favours none.
        """
        if self.plan.settings.servers.cycles is not None:
            return self.plan.settings.servers.cycles
        if self.plan.settings.effort.budget_s is not None:
            return MOST_PLANNED
        cells = self._gathered()
        noises = list(_noises(cells))
        if not noises:
            return FEWEST_PLANNED
        num_bound = max(cell.num_bound_cycles for cell in cells)
        return min((cycles_needed(noises, EFFECT) or MOST_PLANNED) + num_bound, MOST_PLANNED)

    def _find_winners(self) -> tuple[Cell, ...]:
        """The cells to measure again, with K = 0 beside them; empty where none was picked."""
        groups = by_question(summarise(self._gathered()))
        chosen = {choose(group).to_confirm for group in groups} - {None}
        asked = {key.condition for key in chosen if key is not None}
        return tuple(
            cell
            for cell in self._cells
            if cell.key in chosen or (cell.key.is_baseline and cell.key.condition in asked)
        )

    def _gathered(self) -> tuple[CellData, ...]:
        stored = self._ledger.stored
        keys = [cell.key for cell in self._cells]
        slo = self.plan.settings.load.slo
        return gather_cells(keys, stored.blocks, servers=stored.servers, slo=slo)


def _noises(cells: Sequence[CellData]) -> Iterator[SessionNoise]:
    for cell in cells:
        seconds = None if cell.client_bound else paired_decode(cell)
        if seconds is not None and len(seconds.base_s) >= MIN_CYCLES:
            noise = session_noise(*seconds)
            if noise is not None:
                yield noise
