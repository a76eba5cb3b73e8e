"""Requests sent to servers as users send them; each is answered or failed, none is lost.

A conversation is a user: its requests follow one another, each with the answers before, and all
go to the same server, which may have kept their prefix.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple

from specbench.arrivals import poisson_arrivals
from specbench.errors import SpecbenchError
from specbench.servers.client import Client, LostError, ServerError
from specbench.servers.client_load import ProcessLoad, load_of
from specbench.servers.streamed import Streamed


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerRequest:
    """What is asked, given the answers to the earlier requests of its conversation."""

    ask: Callable[[Client, Sequence[Streamed]], Awaitable[Streamed]]
    conversation: str | None = None  # None: one by itself


@dataclass(frozen=True, kw_only=True, slots=True)
class Answered:
    """What became of a request: its answer, or why there is none."""

    sent_s: float  # by perf_counter, as the times of the answer are
    streamed: Streamed | None = None
    error: str | None = None
    is_lost: bool = False  # whether another time it may be answered


class Traffic(NamedTuple):
    """The outcome of all requests, in their order, and the load of this process meanwhile."""

    answers: list[Answered]
    load: ProcessLoad

    def require_no_loss(self) -> None:
        """LostError, with how many were answered, if a request was lost."""
        num = sum(one.streamed is not None for one in self.answers)
        for lost in (one for one in self.answers if one.is_lost):
            raise LostError(f"{lost.error}; {num} of {len(self.answers)} requests were answered")


async def closed_loop(
    requests: Sequence[ServerRequest],
    clients: Sequence[Client],
    *,
    concurrency: int,
    ends_at_loss: bool = False,
) -> Traffic:
    """`concurrency` users at once; each begins a new conversation when the last one is answered.

    With `ends_at_loss` none begins once a request is lost: the server is gone, hung or full.
    """
    if concurrency < 1:
        raise ValueError(f"{concurrency} users cannot ask anything")
    users = _Users(requests, clients)
    waiting = iter(users.conversations)

    async def seat() -> None:
        for conversation in waiting:
            if not (ends_at_loss and users.has_lost):
                await users.converse(conversation)

    async def all_of_them() -> None:
        async with asyncio.TaskGroup() as seats:
            for _ in range(concurrency):
                seats.create_task(seat())

    return await users.traffic(all_of_them())


async def open_loop(
    requests: Sequence[ServerRequest],
    clients: Sequence[Client],
    *,
    request_rate: float,
    seed: int = 0,
    ends_at_loss: bool = False,
) -> Traffic:
    """`request_rate` conversations per second begin at Poisson times, answered or not.

    `ends_at_loss`: see closed_loop.
    """
    users = _Users(requests, clients)

    async def all_of_them() -> None:
        start_s = perf_counter()
        times_s = poisson_arrivals(request_rate, seed)
        async with asyncio.TaskGroup() as arrived:
            for conversation, at_s in zip(users.conversations, times_s, strict=False):
                await asyncio.sleep(start_s + at_s - perf_counter())
                if ends_at_loss and users.has_lost:
                    return
                arrived.create_task(users.converse(conversation))

    return await users.traffic(all_of_them())


class _Users:
    """Those who ask, and the answers so far."""

    def __init__(self, requests: Sequence[ServerRequest], clients: Sequence[Client]) -> None:
        self._requests = requests
        self._clients = clients
        self._answered: dict[int, Answered] = {}
        self._num_begun = 0
        self.has_lost = False
        found: dict[str | int, list[int]] = {}
        for i, request in enumerate(requests):
            own = i if request.conversation is None else request.conversation
            found.setdefault(own, []).append(i)
        self.conversations = list(found.values())

    async def converse(self, conversation: Sequence[int]) -> None:
        """Send the requests of a conversation one after the other, to the next server in turn."""
        client = self._clients[self._num_begun % len(self._clients)]
        self._num_begun += 1
        answers: list[Streamed] = []
        for i in conversation:
            answered = await _ask(self._requests[i], client, answers)
            self._answered[i] = answered
            if answered.streamed is None:
                self.has_lost |= answered.is_lost
                error = f"not sent: request {i} of its conversation failed"
                left = conversation[conversation.index(i) + 1 :]
                self._answered |= {j: Answered(sent_s=perf_counter(), error=error) for j in left}
                return
            answers.append(answered.streamed)

    async def traffic(self, work: Coroutine[Any, Any, None]) -> Traffic:
        load = await load_of(work, self._clients)
        for i in set(range(len(self._requests))) - self._answered.keys():
            error = "not sent: an earlier request was lost"
            self._answered[i] = Answered(sent_s=perf_counter(), error=error)
        return Traffic([self._answered[i] for i in range(len(self._requests))], load)


async def _ask(request: ServerRequest, client: Client, answers: Sequence[Streamed]) -> Answered:
    sent_s = perf_counter()
    try:
        streamed = await request.ask(client, answers)
    except SpecbenchError as error:
        is_lost = isinstance(error, ServerError) and error.is_lost
        return Answered(sent_s=sent_s, error=str(error), is_lost=is_lost)
    asked_s = sent_s if streamed.asked_s is None else streamed.asked_s
    return Answered(sent_s=asked_s, streamed=streamed)
