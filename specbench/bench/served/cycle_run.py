"""One cycle of sessions, held on one machine; each is stored when it ends."""

import asyncio
import re
from collections.abc import Mapping, Sequence, Set
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
from specbench.records import BlockPurpose, Draft, ServerRecord
from specbench.runs import Ledger, StoredRun
from specbench.servers.page_cache import read_once
from specbench.servers.server_log import EngineError

Failures = Mapping[Draft, Sequence[str]]  # why sessions in a row broke off
LONGEST_REASON = 1_000  # characters of what is stored of a failure
_NUMBER = re.compile(r"[\d.]+")
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
        failures: Failures,
    ) -> None:
        self._plan, self._engine, self._host = plan, engine, host
        self._ledger, self._watch, self._deadline = ledger, watch, deadline
        self._failures = dict(failures)
        answers = Answers()
        by_id = {cell.key.id: cell for cell in served_cells(plan, engine)}
        for block in ledger.stored.blocks:
            cell = by_id.get(block.order[0])
            if cell is not None and cell.key.draft.k == 0:
                answers.learn(cell, block.requests)
        self._run = SessionRun(plan, ledger, answers, Gpus(), watch.warn)

    def hold(self, sessions: Sequence[Session], purpose: BlockPurpose) -> None:
        """The sessions of a cycle, unless all of it is stored, until the deadline."""
        if self._plan.running_ks is None:
            self._read_models()
        servers = self._ledger.stored.servers
        # A K that is measured again needs its baseline from the same time, server and node.
        left = sessions if sessions_missing(sessions, servers) else ()
        places = {session.place for session in sessions}
        drafts = {session.draft for session in sessions}
        attempt = 1 + max((s.attempt for s in servers if s.place in places), default=0)
        for done, session in enumerate(left, start=1):
            if self._deadline.is_over(purpose) or is_over(self._failures, drafts):
                return
            if len(self._failures.get(session.draft, ())) < TRIES:
                self._watch.stage(f"{session.target}: {session.label}")
                self._hold_one(session, attempt)
            self._watch.advance(done, len(left), self._deadline.seconds_left(purpose))

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
            record = unusable(session, name, (self._explain(session, error),))
            if isinstance(error, EngineError):
                record = replace(record, log=f"{error.log.parent.name}/{error.log.name}")
        self._ledger.append(replace(record, node=self._ledger.node, attempt=attempt))
        if was_held(record):
            self._failures[session.draft] = ()
            for text in (*record.problems, *record.warnings):
                self._watch.warn(f"{session.label}: {text}")
        else:
            earlier = self._failures.get(session.draft, ())
            self._failures[session.draft] = (*earlier, *record.problems)

    def _explain(self, session: Session, error: Exception) -> str:
        """What is stored of a failure; it is printed in full, or its log if it was printed."""
        reason = error.reason if isinstance(error, EngineError) else _on_one_line(error)
        told, log = str(error).strip() or reason, getattr(error, "log", None)
        if any(_same(reason, earlier) for row in self._failures.values() for earlier in row):
            told = f"the same again{f'; log: {log}' if log else ''}"
        self._watch.warn(f"{session.label}: {told}")
        return reason

    async def _measure(self, session: Session, name: str) -> ServerRecord:
        async with self._host.open(session) as running:
            try:
                return await self._run.measure(session, name, running)
            except (SpecbenchError, OSError) as error:
                return broken_off(session, name, running, (self._explain(session, error),))


def is_over(failures: Failures, drafts: Set[Draft]) -> bool:
    """Whether one reason was met twice, and kept K = 0 or every other K from being measured."""
    for reason in {row[-1] for row in failures.values() if row}:
        num = sum(_same(reason, one) for row in failures.values() for one in row)
        lasts = {draft: failures.get(draft, ())[-1:] for draft in drafts}
        failed = {draft for draft, last in lasts.items() if last and _same(reason, last[0])}
        if num >= TRIES and (Draft.none in failed or failed >= drafts - {Draft.none}):
            return True
    return False


def _same(reason: str, other: str) -> bool:
    """Whatever their numbers are: the memory that is free is never the same twice."""
    return _NUMBER.sub("", reason) == _NUMBER.sub("", other)


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
    lines = [line.strip() for line in str(error).splitlines()]
    return " ".join(filter(None, lines))[:LONGEST_REASON] or type(error).__name__
