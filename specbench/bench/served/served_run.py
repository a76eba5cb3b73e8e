"""Decides the cycles of sessions of one target on one serving engine, and confirms winners."""

from collections import Counter
from collections.abc import Iterator, Sequence

from specbench.bench.blocks import Cell
from specbench.bench.budget import Deadline, mean_session_s
from specbench.bench.extensions import winners, with_baselines
from specbench.bench.plan import TargetPlan
from specbench.bench.served.cycle import TRIES, Cycle, Failures, is_over
from specbench.bench.served.sessions import served_cells, sessions_missing, was_held
from specbench.inputs.address import Address
from specbench.metrics.aggregate import aggregate_cells
from specbench.metrics.cell import CellData
from specbench.metrics.pairs import paired_decode
from specbench.metrics.summary import summarize
from specbench.records import BlockPurpose, DraftConfig, ServerRecord
from specbench.runs import RunStore
from specbench.stats.crossed import (
    FEWEST_PLANNED,
    MIN_CYCLES,
    MOST_PLANNED,
    SessionNoise,
    cycles_needed,
    session_noise,
)

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

    def next_unit(self, num_running: int) -> Cycle | None:
        """The next cycle of the exploration, or of the confirmation once all of it is stored.

        None if there is none until one of `num_running` cycles ends; no more at all if it is 0.
        """
        if self._winners is None:
            cycle = self._next_of("explore", self._cells, self._num_cycles(), num_running)
            if cycle is not None or num_running:
                return cycle
            self._winners = self._find_winners()
        as_often = self._num_begun["explore"] if self._winners else 0
        return self._next_of("confirm", self._winners, as_often, num_running)

    def _next_of(
        self, purpose: BlockPurpose, cells: Sequence[Cell], num_cycles: int, num_running: int
    ) -> Cycle | None:
        """The next cycle with missing sessions; None if there is none, or no time for it."""
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
                bool(sessions_missing(sessions, self._store.stored.servers))
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
        """The consecutive failures of each draft configuration since this run was resumed."""
        drafts = {(d.drafter, d.k): d for d in (cell.key.draft for cell in self._cells)}
        failures: dict[DraftConfig, tuple[str, ...]] = dict.fromkeys(drafts.values(), ())
        for server in self._servers(self._first):
            draft = drafts[server.drafter, server.num_speculative_tokens]
            failures[draft] = () if was_held(server) else (*failures[draft], *server.problems)
        return failures

    def _servers(self, first: int = 0) -> list[ServerRecord]:
        """The sessions of this target and engine, from the `first` stored one on."""
        at = (self.plan.target.name, self._engine)
        servers = self._store.stored.servers[first:]
        return [server for server in servers if (server.target, server.engine) == at]

    def _num_cycles(self) -> int:
        """Cycles of the exploration: the requested number, else one that fits the noise so far.

        The noise is independent of which K is best, so this rule does not favor any K.
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
        """The cells to confirm, and their K = 0; empty if no winner was chosen."""
        return with_baselines(self._cells, set(winners(summarize(self._gathered()))))

    def _gathered(self) -> tuple[CellData, ...]:
        stored = self._store.stored
        keys = [cell.key for cell in self._cells]
        slo = self.plan.settings.load.slo
        return aggregate_cells(keys, stored.blocks, servers=stored.servers, slo=slo)


def _noises(cells: Sequence[CellData]) -> Iterator[SessionNoise]:
    for cell in cells:
        seconds = None if cell.client_bound else paired_decode(cell)
        if seconds is not None and len(seconds.base_s) >= MIN_CYCLES:
            noise = session_noise(*seconds)
            if noise is not None:
                yield noise
