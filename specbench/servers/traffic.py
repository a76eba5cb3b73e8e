"""Sends requests to servers as users would; every request ends with an answer or an error.

The requests of a conversation are sent one after the other, each with the answers before it, all
to the same server, which may have their prefix in its cache. The load of this process is measured
at the same time, because a client that is too busy measures only itself.
"""

import asyncio
import math
from array import array
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from statistics import fmean
from threading import Event, Thread
from time import perf_counter, process_time
from typing import Any, NamedTuple

from specbench.errors import LostError, ServerError, SpecbenchError
from specbench.records import ClientLoad, Request
from specbench.records.requests import poisson_arrivals
from specbench.servers.client import Client
from specbench.servers.response import StreamedResponse

TICK_S = 0.01
PAUSE_S = 0.05  # no event and no batch of them takes so long to read: the machine stood still
MOST_TICKS = 0.9  # that the mean lag is of: shorter pauses delay the others
TIMER_S = 0.001  # a thread's timer is late by less than this unless the thread was kept waiting

OnTick = Callable[[float], None]  # gets the time at which the tick was sent


class Period(NamedTuple):
    """Readings of `perf_counter`, such as when a tick was sent and when it was read."""

    start_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s

    def overlap_s(self, other: "Period") -> float:
        return max(min(self.end_s, other.end_s) - max(self.start_s, other.start_s), 0.0)


async def load_of(
    work: Coroutine[Any, Any, None], clients: Sequence[Client]
) -> tuple[ClientLoad, list[Period]]:
    """Run the work of these clients and measure the load of this process during it, with the
    pauses of its event loop. The cell and its counters are not known here."""
    num_events = sum(client.num_events for client in clients)
    start_s, cpu_start_s = perf_counter(), process_time()
    lags_s, pauses = array("d"), list[Period]()

    def read(sent_s: float) -> None:
        tick = Period(sent_s, perf_counter())
        if pauses and sent_s < pauses[-1].end_s:
            return  # it became due within that pause
        if tick.seconds < PAUSE_S:
            lags_s.append(tick.seconds)
        else:
            pauses.append(tick)

    with ticking(read):
        await work
    await asyncio.sleep(0)  # also handle the ticks that were sent during a pause at the end
    counted_s = sorted(lags_s)[: math.ceil(MOST_TICKS * len(lags_s))]
    load = ClientLoad(
        cell_id="",
        seconds=perf_counter() - start_s,
        cpu_s=process_time() - cpu_start_s,  # of all threads
        num_events=sum(client.num_events for client in clients) - num_events,
        mean_lag_s=fmean(counted_s or [0.0]),
        pauses_s=tuple(pause.seconds for pause in pauses),
    )
    return load, pauses


@contextmanager
def ticking(on_tick: OnTick) -> Iterator[None]:
    """Send ticks to the event loop from a thread while the block runs.

    Ticks reach the loop from outside, as a server's events do: the loop's own timers are a
    millisecond late even on an idle machine, and events are not. A tick is sent for each `TICK_S`
    while the loop is blocked, with its own delay. Events that arrive together, such as the tokens
    of a batch, wait even longer: the last one waits for all others.
    """
    loop, ended = asyncio.get_running_loop(), Event()

    def send() -> None:
        due_s = perf_counter() + TICK_S
        is_over = False
        while not is_over:
            is_over = ended.wait(due_s - perf_counter())
            while due_s <= (now_s := perf_counter()):
                # A pause that delayed this thread has also delayed the reading of events.
                loop.call_soon_threadsafe(on_tick, due_s if now_s - due_s > TIMER_S else now_s)
                due_s += TICK_S

    thread = Thread(target=send, name="ticks", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


# The arguments are a request and the answers to the earlier requests of its conversation.
Send = Callable[[Client, Request, Sequence[StreamedResponse]], Awaitable[StreamedResponse]]


class Traffic(NamedTuple):
    """The responses to all requests, in order, and the load of this process during them."""

    answers: list[StreamedResponse]
    load: ClientLoad

    def require_no_loss(self) -> None:
        """Raise LostError, with the number of answered requests, if a request was lost."""
        num = sum(answer.error is None for answer in self.answers)
        for lost in (answer for answer in self.answers if answer.is_lost):
            raise LostError(f"{lost.error}; {num} of {len(self.answers)} requests were answered")


async def send_all(
    requests: Sequence[Request],
    clients: Sequence[Client],
    send: Send,
    *,
    concurrency: int = 1,
    request_rate: float | None = None,
    seed: int = 0,
    ends_at_loss: bool = False,
) -> Traffic:
    """Send the requests of `concurrency` concurrent users.

    Each begins a new conversation when the last one is answered. With a `request_rate`, that many
    conversations per second begin at Poisson times instead. With `ends_at_loss` none begins after
    a request is lost, because the server has ended, hangs or is full.
    """
    if concurrency < 1:
        raise ValueError(f"concurrency is {concurrency}; it must be at least 1")
    users = _Users(requests, clients, send, ends_at_loss=ends_at_loss)
    if request_rate is None:
        return await users.traffic(users.take_turns(concurrency))
    return await users.traffic(users.arrive(request_rate, seed))


class _Users:
    """The users' conversations, and the answers so far."""

    def __init__(
        self,
        requests: Sequence[Request],
        clients: Sequence[Client],
        send: Send,
        *,
        ends_at_loss: bool,
    ) -> None:
        self._requests, self._send, self._ends_at_loss = requests, send, ends_at_loss
        self._clients = clients
        self._answered: dict[int, StreamedResponse] = {}
        self._num_begun = 0
        self._is_over = False  # whether no conversation begins any more
        conversations: dict[str | int, list[int]] = {}
        for i, request in enumerate(requests):
            key = i if request.conversation is None else request.conversation
            conversations.setdefault(key, []).append(i)
        self._conversations = list(conversations.values())

    async def take_turns(self, concurrency: int) -> None:
        """Closed loop: each user has one conversation at a time."""
        waiting = iter(self._conversations)

        async def user() -> None:
            for conversation in waiting:
                if not self._is_over:
                    await self._converse(conversation)

        async with asyncio.TaskGroup() as users:
            for _ in range(concurrency):
                users.create_task(user())

    async def arrive(self, request_rate: float, seed: int) -> None:
        """Open loop: each conversation begins at its Poisson time."""
        start_s = perf_counter()
        times_s = poisson_arrivals(request_rate, seed)
        async with asyncio.TaskGroup() as arrived:
            for conversation, at_s in zip(self._conversations, times_s, strict=False):
                await asyncio.sleep(start_s + at_s - perf_counter())
                if self._is_over:
                    return
                arrived.create_task(self._converse(conversation))

    async def _converse(self, conversation: Sequence[int]) -> None:
        """Send the requests of a conversation, one after the other, to the next server."""
        client = self._clients[self._num_begun % len(self._clients)]
        self._num_begun += 1
        answers: list[StreamedResponse] = []
        for i in conversation:
            answer = await self._ask(self._requests[i], client, answers)
            self._answered[i] = answer
            if answer.error is not None:
                self._is_over |= answer.is_lost and self._ends_at_loss
                error = f"not sent: turn {len(answers) + 1} of its conversation failed"
                left = conversation[len(answers) + 1 :]
                self._answered |= {
                    j: StreamedResponse(sent_s=perf_counter(), error=error) for j in left
                }
                return
            answers.append(answer)

    async def _ask(
        self, request: Request, client: Client, earlier: Sequence[StreamedResponse]
    ) -> StreamedResponse:
        sent_s = perf_counter()
        try:
            answer = await self._send(client, request, earlier)
        except SpecbenchError as error:
            is_lost = isinstance(error, ServerError) and error.is_lost
            return StreamedResponse(sent_s=sent_s, error=str(error), is_lost=is_lost)
        answer.sent_s = (answer.sent_s or sent_s) + answer.delayed_s
        return answer

    async def traffic(self, work: Coroutine[Any, Any, None]) -> Traffic:
        load, pauses = await load_of(work, self._clients)
        for answer in self._answered.values():
            if answer.last_s is not None:
                whole = Period(answer.sent_s, answer.last_s)
                answer.paused_s = sum(map(whole.overlap_s, pauses))
        for i in set(range(len(self._requests))) - self._answered.keys():
            error = "not sent: an earlier request was lost"
            self._answered[i] = StreamedResponse(sent_s=perf_counter(), error=error)
        return Traffic([self._answered[i] for i in range(len(self._requests))], load)
