"""One cycle of sessions, held on one machine; each is stored when it ends."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from specbench.bench.deadline import Deadline
from specbench.bench.plan import TargetPlan
from specbench.bench.served.host import Host
from specbench.bench.served.questions import Answers
from specbench.bench.served.recording import broken_off, unusable
from specbench.bench.served.session_run import SessionRun
from specbench.bench.served.sessions import Session, served_cells
from specbench.bench.watch import Watch
from specbench.errors import ModelError, SpecbenchError
from specbench.metrics.sessions import usable_sessions
from specbench.probes.gpus import Gpus
from specbench.records import BlockPurpose, ServerRecord
from specbench.runs import Ledger, StoredRun
from specbench.servers.page_cache import read_once

LONGEST_REASON = 1_000  # characters of what is stored of a failure
TRIES = 2  # sessions in a row that break off before a K is given up


class CycleRun:
    """Holds the sessions of a cycle."""

    def __init__(
        self,
        plan: TargetPlan,
        engine: str,
        host: Host,
        ledger: Ledger,
        watch: Watch,
        deadline: Deadline,
        failures: Mapping[str, int],
    ) -> None:
        self._plan, self._engine, self._host = plan, engine, host
        self._ledger, self._watch, self._deadline = ledger, watch, deadline
        self._failures = Counter(failures)  # consecutive ones, by draft
        answers = Answers()
        by_id = {cell.key.id: cell for cell in served_cells(plan, engine)}
        for block in ledger.stored.blocks:
            cell = by_id.get(block.order[0])
            if cell is not None and cell.key.draft.k == 0:
                answers.learn(cell, block.requests)
        self._run = SessionRun(plan, ledger, answers, Gpus())

    def hold(self, sessions: Sequence[Session], purpose: BlockPurpose) -> None:
        """The sessions of a cycle, unless all of it is stored, until the deadline."""
        if self._plan.running_ks is None:
            self._read_models()
        left = sessions_left(sessions, self._ledger.stored.servers)
        attempt = 1 + max(
            (
                server.attempt
                for server in self._ledger.stored.servers
                for session in left[:1]
                if (server.target, server.engine, server.cycle)
                == (session.target, session.engine, session.cycle)
            ),
            default=0,
        )
        for done, session in enumerate(left):
            if self._deadline.is_over(purpose):
                return
            if self._failures[session.draft.label] < TRIES:
                self._watch.stage(f"{session.target}: {session.label}")
                self._hold_one(session, attempt)
            self._watch.advance(done + 1, len(left), self._deadline.seconds_left(purpose))

    def _read_models(self) -> None:
        """Into the page cache, so that the first start is like the later ones."""
        models = [self._plan.target.model, *(p.drafter.model for p in self._plan.pairings)]
        for folder in dict.fromkeys(m.folder for m in models if m is not None and m.folder):
            with suppress(ModelError):  # the engine will say what is wrong with it
                read_once(folder)

    def _hold_one(self, session: Session, attempt: int) -> None:
        name = next_name(session, self._ledger.stored)
        try:
            record = asyncio.run(self._measure(session, name))
        except (SpecbenchError, OSError) as error:
            record = unusable(session, name, (_on_one_line(error),))
        self._ledger.append(replace(record, node=self._ledger.node, attempt=attempt))
        for text in (*record.problems, *record.warnings):
            self._watch.warn(f"{session.label}: {text}")
        self._failures[session.draft.label] += 1
        if was_held(record):
            self._failures[session.draft.label] = 0

    async def _measure(self, session: Session, name: str) -> ServerRecord:
        async with self._host.open(session) as running:
            try:
                return await self._run.measure(session, name, running)
            except (SpecbenchError, OSError) as error:
                return broken_off(session, name, running, (_on_one_line(error),))


def sessions_left(sessions: Sequence[Session], servers: Sequence[ServerRecord]) -> list[Session]:
    """All sessions of a cycle, unless each was held: then none.

    A K that is measured again needs its baseline from the same time, server and node.
    """
    return list(sessions) if sessions_missing(sessions, servers) else []


def sessions_missing(sessions: Sequence[Session], servers: Sequence[ServerRecord]) -> list[Session]:
    """Those of a cycle that have no usable record."""
    held = {server.place for server in usable_sessions(servers).values()}
    return [session for session in sessions if session.place not in held]


def next_name(session: Session, stored: StoredRun) -> str:
    """A name that no earlier attempt has, not even one that was killed."""
    names = {b.session for b in stored.blocks} | {s.session for s in stored.servers}
    attempt = 1
    while (name := f"{session.place}#{attempt}") in names:
        attempt += 1
    return name


def was_held(server: ServerRecord) -> bool:
    """Whether the session was completed, whatever is wrong with it."""
    return server.seconds > 0


def _on_one_line(error: Exception) -> str:
    """With the end of a server's log, which says why."""
    lines = [line.strip() for line in str(error).splitlines()]
    return " ".join(filter(None, lines))[:LONGEST_REASON] or type(error).__name__
