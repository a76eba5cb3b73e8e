"""One session: warm up, ask, count and record."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import reduce
from itertools import count
from operator import add
from time import perf_counter

from specbench.bench.blocks import Cell, request_seed
from specbench.bench.plan import TargetPlan
from specbench.bench.served.crosscheck import count_problems, count_warnings
from specbench.bench.served.questions import (
    Answers,
    PlannedRequest,
    asked_in,
    question,
    template_clock,
)
from specbench.bench.served.recording import Served, request_records, server_record
from specbench.bench.served.running import Running
from specbench.bench.served.sessions import Session
from specbench.engines.served import Question, find_served
from specbench.probes.gpus import Gpus
from specbench.records import (
    ALL_PROMPTS,
    BlockRecord,
    ClientLoad,
    Message,
    PassRecord,
    ServerRecord,
)
from specbench.runs import Ledger
from specbench.servers.client import Client, LostError, ServerError
from specbench.servers.metrics_page import Counters
from specbench.servers.silence import Stall, watch_for_stalls
from specbench.servers.streamed import Streamed
from specbench.servers.traffic import Answered, ServerRequest, Traffic, closed_loop, open_loop
from specbench.stats.percentiles import median_of

WARM_UP = "Count from {first} to {last} in words, and say nothing else."  # in no workload
WARM_UP_TOKENS = 32
RARE = 10.0  # times the median request: a silence that long is not the server's usual pace
WARM_UPS = 2  # batches, at least, of as many requests as there will be at once
STEADY_BATCHES, STEADY = 3, 1.1  # that many batches in a row, the slowest over the fastest
LONGEST_S = 3.0  # of warming up for the server to be steady
SPIN_S = 1.5  # vLLM keeps a core of this machine busy for 1.1 s after its last answer
IDLE_S, POLL_S = 5.0, 0.05  # how long a server may take to finish what is in progress


class SessionRun:
    """Asks a running server everything that a session asks it."""

    def __init__(
        self,
        plan: TargetPlan,
        ledger: Ledger,
        answers: Answers,
        gpus: Gpus,
        warn: Callable[[str], None],
    ) -> None:
        self._plan, self._ledger, self._answers = plan, ledger, answers
        self._gpus, self._warn = gpus, warn

    async def measure(self, session: Session, name: str, running: Running) -> ServerRecord:
        """The record of the session called `name`; its blocks are stored by then. ServerError."""
        self._gpus.start()
        health = find_served(session.engine).HEALTH
        try:
            async with watch_for_stalls(
                running.clients, health, lambda text: self._warn(f"{session.label}: {text}")
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
                Question(
                    messages=(Message(role="user", content=WARM_UP.format(first=i, last=i + 40)),),
                    max_tokens=WARM_UP_TOKENS,
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
        self, session: Session, cell: Cell, asked: Sequence[PlannedRequest], running: Running
    ) -> Traffic:
        engine, condition = find_served(session.engine), cell.key.condition

        def request(own: PlannedRequest) -> ServerRequest:
            async def ask(client: Client, earlier: Sequence[Streamed]) -> Streamed:
                messages = self._answers.history(cell, own, [one.text for one in earlier])
                asking = question(self._plan, cell, own, messages)
                return await engine.answer(client, running.facts.model, asking)

            return ServerRequest(ask=ask, conversation=own.conversation)

        requests = [request(one) for one in asked]
        if condition.request_rate is None:
            rows = condition.concurrency
            return await closed_loop(requests, running.clients, concurrency=rows, ends_at_loss=True)
        seed = request_seed(self._plan.settings.seed, ALL_PROMPTS, session.repeat, 0)
        return await open_loop(
            requests,
            running.clients,
            request_rate=condition.request_rate,
            seed=seed,
            ends_at_loss=True,
        )


def is_steady(paces: Sequence[float]) -> bool:
    """Whether the last `STEADY_BATCHES` differ by no more than `STEADY`; seconds per token."""
    last = paces[-STEADY_BATCHES:]
    return len(last) == STEADY_BATCHES and max(last) <= STEADY * min(last)


def _token_s(answered: Answered) -> float | None:
    said = answered.streamed
    if said is None or said.last_s is None or not said.num_tokens:
        return None
    return (said.last_s - answered.sent_s) / said.num_tokens


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
