"""Measures a session on its running server: warm-up, blocks, records of the responses, and checks
of the server's counters against the requests that were sent to it.
"""

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import reduce
from operator import add
from typing import Any, TypeVar

from specbench.bench.blocks import Block, Cell, request_seed
from specbench.bench.plan import TargetPlan
from specbench.bench.served.running import ServerHandle
from specbench.bench.served.sessions import Answers, Session, requests_of, template_clock
from specbench.engines.served_engine import find_served, result_of
from specbench.errors import ServerError
from specbench.probes.gpu import GpuUse
from specbench.records import (
    BlockRecord,
    ClientLoad,
    Kind,
    PassRecord,
    Reason,
    Request,
    RequestRecord,
    ServerRecord,
    ids_sha256,
)
from specbench.servers.client import Stall
from specbench.servers.metrics_page import Counters
from specbench.servers.response import StreamedResponse
from specbench.servers.traffic import Traffic
from specbench.stats.summaries import median_of
from specbench.words.answers import text

T = TypeVar("T")

RARE = 10.0  # times the median request: a longer silence is not normal for the server


@contextmanager
def entered(runner: asyncio.Runner, context: AbstractAsyncContextManager[T]) -> Iterator[T]:
    """Enter and leave an asynchronous context with the runner."""
    stack = AsyncExitStack()
    try:
        yield runner.run(stack.enter_async_context(context))
    finally:
        runner.run(stack.aclose())


class OpenSession:
    """A server at one K, ready for the blocks of its session, each of which is one condition."""

    def __init__(
        self,
        plan: TargetPlan,
        session: Session,
        name: str,
        running: ServerHandle,
        runner: asyncio.Runner,
        answers: Answers,
        node: str | None,
    ) -> None:
        self._plan, self._session, self._name = plan, session, name
        self._running, self._runner, self._answers = running, runner, answers
        self._node = node
        self.stalls: Sequence[Stall] = ()  # so far
        self._engine = find_served(session.engine)
        self._loads: list[ClientLoad] = []
        self._counted: list[Counters] = []
        self._is_answered = False  # any measured request
        self._problems: dict[str, None] = {}
        self._warnings: dict[Reason, None] = {}

    def warm_up(self) -> None:
        """Warm the server up at every concurrency of the session."""
        settings = self._plan.settings.servers
        concurrencies = {cell.key.condition.concurrency for cell in self._session.cells}
        like = Request(
            max_new_tokens=0, sampling=self._session.cells[0].sampling, omitted=settings.omit_fields
        )
        self._run(self._running.warm_up(sorted(concurrencies), like, settings.num_warmups))

    def serve(self, block: Block) -> BlockRecord:
        """Send the requests of one condition. ServerError if other clients are being served."""
        (cell,) = block.cells
        self._num_stalls = len(self.stalls)
        started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._before = self._run(self._running.counters_before())
        requests = requests_of(self._plan, block)
        self._traffic = self._run(self._send(block, cell, requests))
        records = request_records(self._session, cell, requests, self._traffic.answers)
        if cell.key.draft.k == 0:
            self._answers.learn(cell, records)
        whole = PassRecord(cell_id=cell.key.id, seconds=self._traffic.load.seconds, rounds=None)
        passes = (whole,) if block.condition.is_stream else ()
        return block.record((cell,), records, passes, started_at=started_at, node=self._node)

    def check(self, block: Block, record: BlockRecord) -> None:
        """Compare a block with the server's counters. LostError if a request was lost."""
        self._traffic.require_no_loss()
        self._is_answered |= any(request.error is None for request in record.requests)
        counted = self._run(self._running.idle_counters()).since(self._before)
        self._counted.append(counted)
        self._loads.append(
            replace(
                self._traffic.load,
                cell_id=block.cells[0].key.id,
                counters=counted.sums,
                num_accepted_at=counted.num_accepted_at,
            )
        )
        limit = self._plan.max_new_tokens(block.condition.workload)
        problems = count_problems(record.requests, counted, self._session.draft.k, limit)
        spoiling = spoiling_stalls(record.requests, self.stalls[self._num_stalls :])
        self._problems |= dict.fromkeys((*problems, *spoiling))
        self._warnings |= dict.fromkeys(count_warnings(record.requests, counted))
        if delays_s := [a.delayed_s for a in self._traffic.answers if a.delayed_s]:
            limited = Kind.RATE_LIMITED(
                delayed=len(delays_s), requests=len(record.requests), seconds=sum(delays_s)
            )
            if block.condition.overlaps:  # others were served with fewer beside them
                self._problems[f"{text(limited)}; lower --concurrency or --request-rate"] = None
            else:
                self._warnings[limited] = None

    def record(self, used: GpuUse) -> ServerRecord:
        """The record of a completed session; `used`: the GPU use of the whole session.

        ServerError if no request of any block was answered.
        """
        if self._counted and not self._is_answered:
            raise ServerError(next(iter(self._problems)))
        counted = reduce(add, self._counted) if self._counted else Counters(engine=None)
        preemptions = counted.num_preemptions
        clock, _ = template_clock(self._plan.target.model, self._session.engine)
        record = server_record(self._session, self._name, self._running, ())
        sees_others = counted.num_tokens is not None
        page = self._engine.COUNTERS if sees_others else None
        return replace(
            record,
            read_at={**record.read_at, **({"counters": page.path} if page else {})},
            seconds=sum(load.seconds for load in self._loads),
            counters=counted.sums,
            num_preemptions=None if preemptions is None else round(preemptions),
            queue_s=counted.queue_s,
            started_s=counted.started_s,
            client=tuple(self._loads),
            sees_others=sees_others,
            problems=tuple(self._problems),
            warnings=tuple(self._warnings),
            template_clock=clock,
            **(used._asdict() if self._running.command else {}),  # else its GPUs are unknown
        )

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    async def _send(self, block: Block, cell: Cell, requests: Sequence[Request]) -> Traffic:
        condition = block.condition
        return await self._running.send(
            requests,
            concurrency=condition.concurrency,
            request_rate=condition.request_rate,
            seed=request_seed(self._plan.settings.seed, block.prompt_id, block.repeat, 0),
            completed=lambda request, earlier: self._answers.completed(
                cell, request, [answer.text for answer in earlier]
            ),
        )


def request_records(
    session: Session, cell: Cell, requests: Sequence[Request], answers: Sequence[StreamedResponse]
) -> tuple[RequestRecord, ...]:
    """The records of one condition's requests, in their order."""
    engine = find_served(session.engine)
    results = [result_of(engine, answer, session.draft.k) for answer in answers]
    began_s = min((answer.sent_s for answer in answers), default=0.0)
    return tuple(
        RequestRecord.of(cell.key.id, request, result, **_of_prompt(cell, answer, began_s))
        if result.error is None
        else RequestRecord.of(cell.key.id, request, result)
        for request, answer, result in zip(requests, answers, results, strict=True)
    )


def _of_prompt(cell: Cell, answer: StreamedResponse, began_s: float) -> dict[str, Any]:
    """Fields about the prompt as the server reports it, and the time at which it was sent."""
    return {
        "num_prompt_tokens": answer.num_prompt_tokens or 0,
        "prompt_sha256": ids_sha256(answer.prompt_ids) if answer.prompt_ids else None,
        "arrived_s": answer.sent_s - began_s if cell.key.condition.overlaps else None,
    }


def server_record(
    session: Session, name: str, running: ServerHandle, problems: Sequence[str]
) -> ServerRecord:
    """The record of a session whose server came up, with the server's facts."""
    facts = running.facts
    return replace(
        failed_record(session, name, problems),
        version=facts.version,
        model=facts.model,
        addresses=() if running.command else tuple(c.address.root for c in running.clients),
        command=running.command,
        settings=facts.settings,
        prefix_cache=facts.prefix_cache.value or "unknown",
        read_at=facts.places,
        acceptance_rule=running.acceptance_rule,
        kv_tokens=facts.kv_tokens,
        start_s=running.start_s,
        log=running.log,
    )


def failed_record(session: Session, name: str, problems: Sequence[str]) -> ServerRecord:
    """The record of a session without a running server."""
    return ServerRecord(
        session=name,
        place=session.place,
        target=session.target,
        engine=session.engine,
        drafter=session.draft.drafter,
        method=session.draft.method,
        num_speculative_tokens=session.draft.k,
        variant=session.variant,
        cycle=session.cycle,
        version="",
        model="",
        addresses=(),
        problems=tuple(problems),
    )


def spoiling_stalls(requests: Sequence[RequestRecord], stalls: Sequence[Stall]) -> Iterator[str]:
    """The stalls while these requests were served that are not normal for their server."""
    typical_s = median_of(request.total_s for request in requests) or 0.0
    return (str(s) for s in stalls if s.fault or s.seconds > RARE * typical_s)


def count_problems(
    requests: Sequence[RequestRecord], counted: Counters, k: int, most_tokens: int
) -> Iterator[str]:
    """Differences between the requests of one condition at K and the server's counts meanwhile.

    `most_tokens`: the limit of an output, which a failed request may also have reached.
    """
    if k == 0 and counted.num_draft_tokens:
        yield (
            f"it drafted {counted.num_draft_tokens:,.0f} tokens, but is measured as K=0; "
            "add its K to the address, such as #k=4"
        )
    elif (
        counted.num_rounds and (drafted := counted.num_draft_tokens or 0.0) > k * counted.num_rounds
    ):
        mean = drafted / counted.num_rounds
        yield f"it drafted {mean:.3g} tokens per round, but is measured as K={k}; correct its #k"
    failed = [request for request in requests if request.finish_reason == "failed"]
    if len(failed) == len(requests):
        yield f"no request was answered: {failed[0].error}"
    elif counted.spans_restart:
        yield "the server restarted while it was measured: its counters were reset"
    else:
        yield from _other_traffic(requests, counted, len(failed), most_tokens)


def _other_traffic(
    requests: Sequence[RequestRecord], counted: Counters, num_failed: int, most_tokens: int
) -> Iterator[str]:
    """Counts above or below those of our requests.

    A server may count an end-of-text token that it does not send, and a template's token that is
    not in `usage`: one per request; and drafts accepted past the end. A failed request may have
    been served to its end, and a preempted one prefilled twice.
    """
    num = len(requests)
    excess = []
    ours = sum(request.num_output_tokens for request in requests)
    overshot = sum(r.counts.num_overshot for r in requests if r.counts is not None)
    most = ours + overshot + num + num_failed * most_tokens
    if counted.num_tokens is not None and counted.num_tokens > most:
        excess.append(f"{counted.num_tokens:,.0f} output tokens (ours: {ours:,})")
    prompts = [r.num_prompt_tokens for r in requests if r.finish_reason != "failed"]
    prefilled_again = (num_failed + (counted.num_preemptions or 0.0)) * max(prompts)
    if (
        counted.num_prompt_tokens is not None
        and all(prompts)  # else usage does not report them
        and counted.num_prompt_tokens > sum(prompts) + num + prefilled_again
    ):
        excess.append(f"{counted.num_prompt_tokens:,.0f} prompt tokens (ours: {sum(prompts):,})")
    if counted.num_requests is not None and counted.num_requests > num:
        excess.append(f"{counted.num_requests:,.0f} finished requests (ours: {num:,})")
    if counted.num_in_progress:
        excess.append(f"{counted.num_in_progress:,.0f} requests still in progress (ours: 0)")
    if excess:
        yield f"another client was served meanwhile: the server counted {', '.join(excess)}"
    if counted.num_tokens is not None and counted.num_tokens < ours - num:
        yield (
            f"the server counted {counted.num_tokens:,.0f} output tokens, our requests have "
            f"{ours:,}: its counters miss some (a router in front of several servers?)"
        )


def count_warnings(requests: Sequence[RequestRecord], counted: Counters) -> Iterator[Reason]:
    """Warnings if the counts of drafts by requests and by the server differ."""
    counts = [r.counts for r in requests if r.counts is not None]
    if not counts or len(counts) < len(requests):
        return
    num_accepted = sum(c.num_accepted + c.num_overshot for c in counts)
    if counted.num_accepted not in (None, num_accepted):
        yield Kind.ACCEPTED_COUNTS_DIFFER(requests=num_accepted, server=counted.num_accepted)
    drafting = [c.num_drafting for c in counts if c.num_drafting is not None]
    if len(drafting) == len(counts) and counted.num_rounds not in (None, sum(drafting)):
        yield Kind.ROUND_COUNTS_DIFFER(requests=sum(drafting), server=counted.num_rounds)
