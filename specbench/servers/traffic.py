"""Requests sent to servers as users send them; each is answered or failed, none is lost.

A conversation is a user: its requests follow one another, each with the answers before, and all
go to the same server, which may have kept their prefix.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from time import perf_counter
from typing import Any, NamedTuple

from specbench.arrivals import poisson_arrivals
from specbench.errors import LostError, ServerError, SpecbenchError
from specbench.records import Request
from specbench.servers.client import Client
from specbench.servers.client_load import ProcessLoad, load_of
from specbench.servers.streamed import Streamed

# Sends a request, given the answers to the earlier requests of its conversation.
Send = Callable[[Client, Request, Sequence[Streamed]], Awaitable[Streamed]]


class Traffic(NamedTuple):
    """The outcome of all requests, in their order, and the load of this process meanwhile."""

    answers: list[Streamed]
    load: ProcessLoad

    def require_no_loss(self) -> None:
        """LostError, with how many were answered, if a request was lost."""
        num = sum(answer.error is None for answer in self.answers)
        for lost in (answer for answer in self.answers if answer.is_lost):
            raise LostError(f"{lost.error}; {num} of {len(self.answers)} requests were answered")


async def closed_loop(
    requests: Sequence[Request],
    clients: Sequence[Client],
    send: Send,
    *,
    concurrency: int,
    ends_at_loss: bool = False,
) -> Traffic:
    """`concurrency` users at once; each begins a new conversation when the last one is answered.

    With `ends_at_loss` none begins once a request is lost: the server is gone, hung or full.
    """
    if concurrency < 1:
        raise ValueError(f"{concurrency} users cannot ask anything")
    users = _Users(requests, clients, send)
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
    requests: Sequence[Request],
    clients: Sequence[Client],
    send: Send,
    *,
    request_rate: float,
    seed: int = 0,
    ends_at_loss: bool = False,
) -> Traffic:
    """`request_rate` conversations per second begin at Poisson times, answered or not.

    `ends_at_loss`: see closed_loop.
    """
    users = _Users(requests, clients, send)

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

    def __init__(self, requests: Sequence[Request], clients: Sequence[Client], send: Send) -> None:
        self._requests, self._send = requests, send
        self._clients = clients
        self._answered: dict[int, Streamed] = {}
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
            answer = await self._ask(self._requests[i], client, answers)
            self._answered[i] = answer
            if answer.error is not None:
                self.has_lost |= answer.is_lost
                error = f"not sent: request {i} of its conversation failed"
                left = conversation[conversation.index(i) + 1 :]
                self._answered |= {j: Streamed(sent_s=perf_counter(), error=error) for j in left}
                return
            answers.append(answer)

    async def _ask(self, request: Request, client: Client, earlier: Sequence[Streamed]) -> Streamed:
        sent_s = perf_counter()
        try:
            answer = await self._send(client, request, earlier)
        except SpecbenchError as error:
            is_lost = isinstance(error, ServerError) and error.is_lost
            return Streamed(sent_s=sent_s, error=str(error), is_lost=is_lost)
        answer.sent_s = answer.sent_s or sent_s
        return answer

    async def traffic(self, work: Coroutine[Any, Any, None]) -> Traffic:
        load = await load_of(work, self._clients)
        for i in set(range(len(self._requests))) - self._answered.keys():
            error = "not sent: an earlier request was lost"
            self._answered[i] = Streamed(sent_s=perf_counter(), error=error)
        return Traffic([self._answered[i] for i in range(len(self._requests))], load)
