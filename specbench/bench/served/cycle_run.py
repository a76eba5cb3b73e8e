"""One cycle of sessions on one machine: each is warmed up, asked, counted and stored."""

import asyncio
import re
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import reduce
from itertools import count
from operator import add
from time import perf_counter

from specbench.bench.blocks import Cell, request_seed
from specbench.bench.deadline import Deadline
from specbench.bench.plan import TargetPlan
from specbench.bench.served.crosscheck import count_problems, count_warnings
from specbench.bench.served.host import Host
from specbench.bench.served.questions import (
    Answers,
    asked_in,
    template_clock,
)
from specbench.bench.served.recording import (
    Served,
    broken_off,
    request_records,
    server_record,
    unusable,
)
from specbench.bench.served.running import Running
from specbench.bench.served.sessions import Session, served_cells
from specbench.bench.watch import Watch
from specbench.engines.served_engine import find_served
from specbench.errors import LostError, ModelError, ServerError, SpecbenchError
from specbench.metrics.aggregate import usable_sessions
from specbench.probes.nvml import Gpus
from specbench.records import (
    ALL_PROMPTS,
    BlockPurpose,
    BlockRecord,
    ClientLoad,
    Draft,
    Message,
    PassRecord,
    Request,
    ServerRecord,
)
from specbench.runs import Ledger, StoredRun
from specbench.servers.client import Client
from specbench.servers.metrics_page import Counters
from specbench.servers.page_cache import read_once
from specbench.servers.server_log import EngineError
from specbench.servers.silence import Stall, watch_for_stalls
from specbench.servers.streamed import Streamed
from specbench.servers.traffic import Traffic, closed_loop, open_loop
from specbench.stats.percentiles import median_of

Failures = Mapping[Draft, Sequence[str]]  # why sessions in a row broke off
LONGEST_REASON = 1_000  # characters of what is stored of a failure
_NUMBER = re.compile(r"[\d.]+")
TRIES = 2  # sessions in a row that break off before a K is given up

WARM_UP = "Count from {first} to {last} in words, and say nothing else."  # in no workload
WARM_UP_TOKENS = 32
RARE = 10.0  # times the median request: a silence that long is not the server's usual pace
WARM_UPS = 2  # batches, at least, of as many requests as there will be at once
STEADY_BATCHES, STEADY = 3, 1.1  # that many batches in a row, the slowest over the fastest
LONGEST_S = 3.0  # of warming up for the server to be steady
SPIN_S = 1.5  # vLLM keeps a core of this machine busy for 1.1 s after its last answer
IDLE_S, POLL_S = 5.0, 0.05  # how long a server may take to finish what is in progress


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
        self._gpus, self._answers = Gpus(), Answers()
        by_id = {cell.key.id: cell for cell in served_cells(plan, engine)}
        for block in ledger.stored.blocks:
            cell = by_id.get(block.order[0])
            if cell is not None and cell.key.draft.k == 0:
                self._answers.learn(cell, block.requests)

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
            record = asyncio.run(self._open_and_measure(session, name))
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

    async def _open_and_measure(self, session: Session, name: str) -> ServerRecord:
        async with self._host.open(session) as running:
            try:
                return await self._measure(session, name, running)
            except (SpecbenchError, OSError) as error:
                return broken_off(session, name, running, (self._explain(session, error),))

    async def _measure(self, session: Session, name: str, running: Running) -> ServerRecord:
        """The record of the session called `name`; its blocks are stored by then. ServerError."""
        self._gpus.start()
        health = find_served(session.engine).HEALTH
        try:
            async with watch_for_stalls(
                running.clients, health, lambda text: self._watch.warn(f"{session.label}: {text}")
            ) as stalls:
                await self._warm_up(session, running)
                served = [
                    await self._serve(session, name, cell, running, stalls)
                    for cell in session.cells
                ]
        except LostError:
            running.require()  # says more where the server has ended
            raise
        finally:
            used = self._gpus.stop()
        clock, _ = template_clock(self._plan.target.model, session.engine)
        return replace(server_record(session, name, running, served, used), template_clock=clock)

    async def _warm_up(self, session: Session, running: Running) -> None:
        """As many requests at once as there will be, with texts that are never measured.

        Without `--warmup` until the server is steady.
        """
        began_s = perf_counter()
        fixed = self._plan.settings.servers.num_warmups
        shortest_s = SPIN_S if running.may_spin else 0.0
        for most in sorted({cell.key.condition.concurrency for cell in session.cells}):
            num = most * len(running.clients)
            asked = [
                Request(
                    messages=(Message(role="user", content=WARM_UP.format(first=i, last=i + 40)),),
                    max_new_tokens=WARM_UP_TOKENS,
                    sampling=session.cells[0].sampling,
                    seed=i,
                )
                for i in range(num)
            ]
            paces: list[float] = []
            for first in count(0, num):
                waited_s = perf_counter() - began_s
                if fixed is not None:
                    if first >= fixed:
                        break
                elif len(paces) >= WARM_UPS and waited_s >= shortest_s + (
                    0.0 if is_steady(paces) else LONGEST_S
                ):
                    break
                batch = asked[: (fixed or first + num) - first]
                answers = await running.ask(session.engine, batch, concurrency=len(batch))
                errors = [one.error for one in answers if one.error]
                if len(errors) == len(answers):
                    raise ServerError(f"no request of the warm-up was answered: {errors[0]}")
                paces.append(median_of(map(_token_s, answers)) or 0.0)

    async def _serve(
        self, session: Session, name: str, cell: Cell, running: Running, stalls: Sequence[Stall]
    ) -> Served:
        """Ask what one condition asks; its block is stored before this returns."""
        num_stalls = len(stalls)
        started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
        asked = asked_in(self._plan, session, cell)
        path = find_served(session.engine).COUNTERS
        before = await _idle_counters(running.clients, path)
        if before.num_in_progress:
            at = running.clients[0].address.root
            raise ServerError(f"{at}: another client's requests are in progress, and do not end")
        done = await self._send(session, cell, asked, running)
        requests = request_records(session, cell, asked, done.answers)
        if session.draft.k == 0:
            self._answers.learn(cell, requests)
        whole = PassRecord(cell_id=cell.key.id, seconds=done.load.wall_s, rounds=None)
        block = BlockRecord(
            block_id=f"{name}|{cell.key.id}",
            workload=cell.key.condition.workload,
            prompt_id=ALL_PROMPTS,
            repeat=session.repeat,
            purpose=session.purpose,
            order=(cell.key.id,),
            started_at=started_at,
            requests=requests,
            passes=(whole,) if cell.key.condition.is_stream else (),
            session=name,
            cycle=session.cycle,
            node=self._ledger.node,
        )
        self._ledger.append(block)
        done.require_no_loss()
        counted = (await _idle_counters(running.clients, path)).since(before)
        load = ClientLoad(
            cell_id=cell.key.id,
            seconds=done.load.wall_s,
            cpu_s=done.load.cpu_s,
            num_events=done.load.num_events,
            mean_lag_s=done.load.mean_lag_s,
            counters=counted.sums,
            num_accepted_at=counted.num_accepted_at,
        )
        limit = self._plan.max_new_tokens(cell.key.condition.workload)
        typical_s = median_of(request.total_s for request in requests) or 0.0
        spoiling = (s for s in stalls[num_stalls:] if s.fault or s.seconds > RARE * typical_s)
        problems = count_problems(requests, counted, session.draft.k, limit)
        warnings = tuple(count_warnings(requests, counted))
        return Served(counted, load, (*problems, *map(str, spoiling)), warnings)

    async def _send(
        self, session: Session, cell: Cell, requests: Sequence[Request], running: Running
    ) -> Traffic:
        engine, condition = find_served(session.engine), cell.key.condition

        async def send(client: Client, request: Request, earlier: Sequence[Streamed]) -> Streamed:
            texts = [answer.text for answer in earlier]
            whole = self._answers.completed(cell, request, texts)
            return await engine.answer(client, running.facts.model, whole)

        if condition.request_rate is None:
            rows = condition.concurrency
            return await closed_loop(
                requests, running.clients, send, concurrency=rows, ends_at_loss=True
            )
        seed = request_seed(self._plan.settings.seed, ALL_PROMPTS, session.repeat, 0)
        return await open_loop(
            requests,
            running.clients,
            send,
            request_rate=condition.request_rate,
            seed=seed,
            ends_at_loss=True,
        )


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


def is_steady(paces: Sequence[float]) -> bool:
    """Whether the last `STEADY_BATCHES` differ by no more than `STEADY`; seconds per token."""
    last = paces[-STEADY_BATCHES:]
    return len(last) == STEADY_BATCHES and max(last) <= STEADY * min(last)


def _token_s(answer: Streamed) -> float | None:
    if answer.last_s is None or not answer.num_tokens:
        return None
    return (answer.last_s - answer.sent_s) / answer.num_tokens


async def _idle_counters(clients: Sequence[Client], path: str | None) -> Counters:
    """What all replicas count together once no request is in progress, or after `IDLE_S`."""
    if path is None:
        return Counters(engine=None)
    ends_s = perf_counter() + IDLE_S
    while True:
        counters = reduce(add, [await client.counters(path) for client in clients])
        if not counters.num_in_progress or perf_counter() > ends_s:
            return counters
        await asyncio.sleep(POLL_S)
