"""Round costs of running servers with an OpenAI-compatible API, timed at the K they run.

A batch consists of concurrent streamed requests. The server's counters report the rounds of the
batch, which the chunks of the streams do not show.
"""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import NoReturn

from specbench.engines.served_engine import counter_pages, find_served
from specbench.errors import ServerError, UsageError
from specbench.inputs.address import Address
from specbench.records import EngineCost, Message, Request, Sampling
from specbench.servers.client import Client
from specbench.servers.facts import ModelNames
from specbench.servers.metrics_page import Counters
from specbench.servers.response import StreamedResponse
from specbench.settings import OPENAI

MAX_TOKENS = 64  # of an output
NUM_BATCHES = 6  # each gives a cost, so that their variation is known
OPTION = "--step-times"


def time_servers(
    urls: Sequence[str],
    prompts: Sequence[str],
    *,
    concurrencies: Sequence[int] = (1,),
    temperature: float = 0.0,
    max_tokens: int = MAX_TOKENS,
    names: ModelNames | None = None,
    omitted: tuple[str, ...] = (),
) -> list[EngineCost]:
    """Seconds per round at each address: one cost per batch, after a warm-up batch.

    Batches alternate between the servers, so that slowdowns of the machine affect all of them.
    UsageError if a server cannot be reached, does not report its rounds, or serves other clients
    at the same time.
    """
    addresses = [Address.at(url, OPTION) for url in urls]
    sampling = Sampling(temperature=temperature)
    request = Request(max_new_tokens=max_tokens, sampling=sampling, omitted=omitted)
    work = _time_batches(addresses, prompts, concurrencies, request, names or ModelNames())
    try:
        return asyncio.run(work)
    except ServerError as error:
        raise UsageError(f"{OPTION} {error}") from error


async def _time_batches(
    addresses: Sequence[Address],
    prompts: Sequence[str],
    concurrencies: Sequence[int],
    request: Request,
    names: ModelNames,
) -> list[EngineCost]:
    costs: list[EngineCost] = []
    async with AsyncExitStack() as stack:
        servers = []
        for address in addresses:
            client = await stack.enter_async_context(Client(address))
            servers.append(_TimedServer(client, request, names))
            await servers[-1].identify()
        for concurrency in concurrencies:
            requested = [prompts[i % len(prompts)] for i in range(concurrency * NUM_BATCHES)]
            costs_of_servers: list[list[EngineCost]] = [[] for _ in servers]
            for server in servers:
                await server.warm_up(requested[:concurrency])
            for i in range(NUM_BATCHES):
                batch = requested[i * concurrency : (i + 1) * concurrency]
                for server, its_costs in zip(servers, costs_of_servers, strict=True):
                    cost = await server.cost(batch)
                    its_costs += [cost] if cost else []
            for server, its_costs in zip(servers, costs_of_servers, strict=True):
                costs += its_costs or server.fail_without_costs()
    return costs


class _TimedServer:
    """A running server, with the request format and the counters of its engine."""

    def __init__(self, client: Client, request: Request, names: ModelNames) -> None:
        self._client, self._request, self._names = client, request, names
        self._num_requests = 0
        self._num_foreign = 0  # batches during which the server also answered other clients

    async def identify(self) -> None:
        """Recognize the engine by its counters, and read the facts that it reports."""
        pages = counter_pages()
        self._engine_name = OPENAI
        # The longest path is tried first, since TensorRT-LLM also has JSON at /metrics.
        for path in sorted({page.path for page in pages}, key=len, reverse=True):
            counters = await self._client.counters(path, pages)
            if counters.engine is not None:
                self._engine_name = counters.engine
                break
        self._engine = find_served(self._engine_name)
        self._facts = await self._engine.facts(self._client, self._names)

    async def warm_up(self, prompts: Sequence[str]) -> None:
        """Answer a batch; some engines report K, or any counters, only after a request."""
        await self.answers(prompts)
        await self.identify()

    async def cost(self, prompts: Sequence[str]) -> EngineCost | None:
        """The cost of a batch; None if no output could be timed, or other clients were served."""
        before = await self._counters()
        answers = await self.answers(prompts)
        counted = (await self._counters()).since(before)
        emitted = sum(answer.num_tokens or 0 for answer in answers)
        if counted.spans_restart:
            self._client.fail("it restarted while it was timed")
        if counted.num_tokens is not None and counted.num_tokens > emitted + len(answers):
            self._num_foreign += 1
            return None
        return self._cost(answers, counted)

    async def _counters(self) -> Counters:
        page = self._engine.COUNTERS
        if page is None:
            return Counters(engine=None)
        return await self._client.counters(page.path_of(self._facts.model), [page])

    async def answers(self, prompts: Sequence[str]) -> list[StreamedResponse]:
        """The outputs of concurrent requests."""
        return await asyncio.gather(*map(self._answer, prompts))

    async def _answer(self, prompt: str) -> StreamedResponse:
        messages = (Message(role="user", content=prompt),)
        self._num_requests += 1  # the seed of a sampled output
        request = replace(self._request, messages=messages, seed=self._num_requests)
        answer = await self._engine.answer(self._client, self._facts.model, request)
        if answer.text and not answer.num_tokens:
            self._client.fail(
                "its stream has no `usage`, so tokens cannot be counted; pass a table of costs"
            )
        return answer

    def _cost(self, answers: Sequence[StreamedResponse], counted: Counters) -> EngineCost | None:
        num_timed, decode_s = 0, 0.0
        for answer in answers:
            timed = (answer.num_tokens or 0) - (answer.num_first or 1)
            if timed > 0 and answer.first_s is not None and answer.last_s is not None:
                num_timed += timed
                decode_s += answer.last_s - answer.first_s
        if not num_timed or decode_s <= 0:
            return None
        k = self._k(counted)
        num_later = sum(max((answer.num_tokens or 0) - 1, 0) for answer in answers)
        num_rounds = float(num_later)
        if k:
            num_rounds = self._num_rounds(k, counted, answers, num_later)
        name = "server" if self._engine_name == OPENAI else self._engine_name
        # Rounds whose tokens came with an answer's first one are not timed.
        timed_rounds = num_rounds * num_timed / num_later
        return EngineCost(
            source=self._client.address.root,
            engine=f"{name} {self._facts.version}".strip(),
            num_speculative_tokens=k,
            concurrency=len(answers),
            cost=decode_s / timed_rounds,
            is_relative=False,
            mean_acceptance_length=num_later / num_rounds if k else None,
        )

    def _num_rounds(
        self, k: int, counted: Counters, answers: Sequence[StreamedResponse], num_later: int
    ) -> float:
        """Rounds after the answers' first tokens."""
        num_rounds = counted.num_rounds
        if num_rounds is None:  # TensorRT-LLM counts them only by answer
            by_answer = [self._engine.counts(answer, k) for answer in answers]
            known = [counts.num_rounds for counts in by_answer if counts is not None]
            num_rounds = float(sum(known)) if len(known) == len(answers) else None
        elif counted.num_accepted is not None:
            # Rounds without a draft are not counted as drafts; drafts past the end of an answer
            # are counted as accepted.
            num_rounds = max(num_rounds, num_later - counted.num_accepted)
        elif not counted.counts_all_rounds:
            num_rounds = None
        if num_rounds is None:
            self._client.fail(
                f"it runs at K={k} and does not count rounds; enable its metrics, or pass a "
                "table of costs"
            )
        if num_rounds <= 0:
            self._client.fail(
                f"it runs at K={k} and counted no rounds for {num_later} tokens; pass a table of "
                "costs"
            )
        return num_rounds

    def _k(self, counted: Counters) -> int:
        address, num_rounds = self._client.address, counted.num_rounds
        if address.k is not None:
            self._facts.at(address)  # raises an error if it reports another K
            return address.k
        if self._facts.k.value is not None:
            return self._facts.k.value
        if num_rounds and counted.num_draft_tokens:
            return round(counted.num_draft_tokens / num_rounds)
        drafts = bool(num_rounds or counted.num_draft_tokens or self._facts.drafts.value)
        if counted.num_tokens is not None and not drafts:
            return 0
        self._client.fail(
            f"it does not report its K; state it: {address.root}#k={4 if drafts else 0}"
        )

    def fail_without_costs(self) -> NoReturn:
        if self._num_foreign:
            self._client.fail(
                "it served other clients in every batch; time a server without other clients"
            )
        self._client.fail(
            "its answers have one token each, so rounds cannot be timed; try other prompts"
        )
