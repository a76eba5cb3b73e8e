"""Sends requests to servers as users would; every request ends with an answer or an error.

The requests of a conversation are sent one after the other, each with the answers before it, all
to the same server, which may have their prefix in its cache.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from time import perf_counter
from typing import Any, NamedTuple

from specbench.errors import LostError, ServerError, SpecbenchError
from specbench.records import Request
from specbench.records.requests import poisson_arrivals
from specbench.servers.client import Client
from specbench.servers.client_load import ProcessLoad, load_of
from specbench.servers.streamed import Streamed

# Takes a request and the answers to the earlier requests of its conversation.
Send = Callable[[Client, Request, Sequence[Streamed]], Awaitable[Streamed]]


class Traffic(NamedTuple):
    """The outcome of all requests, in their order, and the load of this process meanwhile."""

    answers: list[Streamed]
    load: ProcessLoad

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
        self._answered: dict[int, Streamed] = {}
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
        """Send the requests of a conversation one after the other; servers take turns."""
        client = self._clients[self._num_begun % len(self._clients)]
        self._num_begun += 1
        answers: list[Streamed] = []
        for i in conversation:
            answer = await self._ask(self._requests[i], client, answers)
            self._answered[i] = answer
            if answer.error is not None:
                self._is_over |= answer.is_lost and self._ends_at_loss
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
