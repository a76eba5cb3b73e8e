"""The sessions of a cycle, in an order that makes drift affect every K alike."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specbench.bench.blocks import Block, Cell
from specbench.bench.plan import TargetPlan
from specbench.metrics.aggregate import usable_sessions
from specbench.records import SESSIONS_PER_K, BlockPurpose, DraftConfig, ServerRecord
from specbench.runs import StoredRun

UP, DOWN = range(SESSIONS_PER_K)


@dataclass(frozen=True, kw_only=True, slots=True)
class Session:
    """The requests at one K and temperature that one server start, or a running server, serves."""

    engine: str
    target: str
    draft: DraftConfig
    temperature: float
    purpose: BlockPurpose
    cycle: int  # from 0; the confirmation has separate numbers
    leg: int  # UP or DOWN
    cells: tuple[Cell, ...]  # one per condition

    @property
    def place(self) -> str:
        """The id of the session, the same for every attempt at it."""
        at = f"{self.target}|{self.engine}|{self.draft.drafter}|{self.draft.length.id}"
        return f"{at}|t{self.temperature:g}|{self.purpose}|c{self.cycle}.{self.leg}"

    @property
    def repeat(self) -> int:
        """The number of the session among those of its K, from which its repeats are counted."""
        return self.cycle * SESSIONS_PER_K + self.leg

    @property
    def label(self) -> str:
        """For people: `vllm, draft K=4, cycle 2, on the way back`."""
        back = ", on the way back" if self.leg == DOWN else ""
        return f"{self.engine}, {self.draft.label}, cycle {self.cycle + 1}{back}"

    def blocks(self, plan: TargetPlan, name: str = "") -> Iterator[Block]:
        """A block per condition, its prompts in the same shuffled order at every K.

        `name`: the name of this attempt at the session.
        """
        for cell in self.cells:
            condition, effort = cell.key.condition, plan.settings.effort
            workload = plan.workload(condition.workload)
            prompts = list(plan.measured(workload))
            if effort.num_requests is not None:
                prompts = [prompts[i % len(prompts)] for i in range(effort.num_requests)]
            if condition.is_stream:
                prompts = list(plan.pass_prompts(workload, condition))
            seed = f"{plan.settings.seed}|{self.repeat}|{workload.name}"
            random.Random(seed).shuffle(prompts)
            yield Block(
                condition=condition,
                prompts=tuple(prompts),
                repeat=self.repeat,
                purpose=self.purpose,
                cells=(cell,),
                session=name,
                cycle=self.cycle,
            )


def served_cells(plan: TargetPlan, engine: str) -> tuple[Cell, ...]:
    """The plan's cells of one serving engine."""
    return tuple(cell for cell in plan.all_cells if cell.key.condition.engine == engine)


def cycle_of(
    cells: Sequence[Cell], cycle: int, purpose: BlockPurpose = "explore"
) -> Iterator[Session]:
    """The sessions of a cycle: K = 0, every K, then the same in reverse.

    A steady drift within a cycle affects all of them alike.
    """
    starts: dict[tuple[DraftConfig, float], list[Cell]] = {}
    for cell in cells:
        starts.setdefault((cell.key.draft, cell.key.condition.temperature), []).append(cell)
    up = sorted(starts.items(), key=lambda start: start[0][0].k > 0)  # K = 0 at both ends
    for leg, order in ((UP, up), (DOWN, up[::-1])):
        for (draft, temperature), session_cells in order:
            at = session_cells[0].key.condition
            yield Session(
                engine=at.engine,
                target=at.target,
                draft=draft,
                temperature=temperature,
                purpose=purpose,
                cycle=cycle,
                leg=leg,
                cells=tuple(session_cells),
            )


def sessions_missing(sessions: Sequence[Session], servers: Sequence[ServerRecord]) -> list[Session]:
    """The sessions of a cycle that have no usable record."""
    held = {server.place for server in usable_sessions(servers).values()}
    return [session for session in sessions if session.place not in held]


def next_name(session: Session, stored: StoredRun) -> str:
    """A name for the next attempt at a session, unused even by killed attempts."""
    names = {b.session for b in stored.blocks} | {s.session for s in stored.servers}
    attempt = 1
    while (name := f"{session.place}#{attempt}") in names:
        attempt += 1
    return name


def was_held(server: ServerRecord) -> bool:
    """Whether the session was completed, with or without problems."""
    return server.seconds > 0
