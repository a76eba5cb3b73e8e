"""Round costs of running servers with an OpenAI-compatible API, timed at the K they run.

A batch consists of concurrent streamed requests. The server's counters report the rounds of the
batch, which the chunks of the streams do not show.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import NoReturn

from specbench.bench.served.open_session import count_problems, spoiling_stalls
from specbench.bench.served.running import ServerHandle
from specbench.engines.recognition import recognized
from specbench.engines.served_engine import find_served, result_of
from specbench.errors import ServerError, UsageError
from specbench.inputs.address import Address
from specbench.records import EngineCost, Message, Request, RequestRecord, Sampling
from specbench.servers.client import Client, Stall
from specbench.servers.facts import ModelNames
from specbench.servers.metrics_page import Counters
from specbench.settings import OPENAI
from specbench.stats.rounds import rounds_counted

MAX_TOKENS = 64  # of an output
NUM_BATCHES = 6  # each gives a cost, so that their variation is known
OPTION = "--step-times"


def time_servers(
    urls: Sequence[str],
    prompts: Sequence[str],
    *,
    concurrencies: Sequence[int] = (1,),
    temperature: float = 0.0,
    names: ModelNames | None = None,
    omitted: tuple[str, ...] = (),
    warn: Callable[[str], None] = lambda _: None,
) -> list[EngineCost]:
    """Seconds per round at each address: one cost per batch, after a warm-up.

    Batches alternate between the servers, so that slowdowns of the machine affect all of them.
    UsageError if a server cannot be reached, does not report its K or its rounds, or serves other
    clients at the same time. `warn` is called for a server that stalls.
    """
    addresses = [Address.at(url, OPTION) for url in urls]
    sampling = Sampling(temperature=temperature)
    request = Request(max_new_tokens=MAX_TOKENS, sampling=sampling, omitted=omitted)
    work = _time_batches(addresses, prompts, concurrencies, request, names or ModelNames(), warn)
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
    warn: Callable[[str], None],
) -> list[EngineCost]:
    costs: list[EngineCost] = []
    async with AsyncExitStack() as stack:
        servers = []
        for address in addresses:
            client = await stack.enter_async_context(Client(address))
            engine, facts = await recognized(client, names)
            running = ServerHandle(engine=engine, clients=(client,), facts=facts)
            stalls = await stack.enter_async_context(running.watch(warn))
            servers.append(_TimedServer(running, stalls, request))
        for concurrency in concurrencies:
            requested = [prompts[i % len(prompts)] for i in range(concurrency * NUM_BATCHES)]
            costs_of_servers: list[list[EngineCost]] = [[] for _ in servers]
            for server in servers:
                await server.warm_up(concurrency, names)
            for i in range(NUM_BATCHES):
                batch = requested[i * concurrency : (i + 1) * concurrency]
                for server, its_costs in zip(servers, costs_of_servers, strict=True):
                    cost = await server.cost(batch)
                    its_costs += [cost] if cost else []
            for server, its_costs in zip(servers, costs_of_servers, strict=True):
                costs += its_costs or server.fail_without_costs()
    return costs


class _TimedServer:
    """A running server whose rounds are timed."""

    def __init__(self, running: ServerHandle, stalls: Sequence[Stall], request: Request) -> None:
        self._running, self._stalls, self._request = running, stalls, request
        (self._client,) = running.clients
        self._num_requests = 0
        self._problems: list[str] = []  # of batches that were not timed

    async def warm_up(self, concurrency: int, names: ModelNames) -> None:
        """Some engines report K, or any counters, only after a request."""
        await self._running.warm_up((concurrency,), self._request)
        engine, facts = await recognized(self._client, names)
        facts = facts.at(self._client.address)
        self._running = replace(self._running, engine=engine, facts=facts)
        self._k = facts.k.value or 0

    async def cost(self, prompts: Sequence[str]) -> EngineCost | None:
        """The cost of a batch; None if no output could be timed, or other clients were served."""
        requests = []
        for prompt in prompts:
            self._num_requests += 1  # the seed of a sampled output
            messages = (Message(role="user", content=prompt),)
            requests.append(replace(self._request, messages=messages, seed=self._num_requests))
        num_stalls = len(self._stalls)
        before = await self._running.counters_before()
        answers = await self._running.ask(requests, concurrency=len(requests))
        counted = (await self._running.idle_counters()).since(before)
        if counted.spans_restart:
            self._client.fail("it restarted while it was timed")
        records = []
        for request, answer in zip(requests, answers, strict=True):
            if answer.error is not None:
                raise ServerError(answer.error)
            if answer.text and not answer.num_tokens:
                self._client.fail(
                    "its stream has no `usage`, so tokens cannot be counted; pass a table of costs"
                )
            result = result_of(find_served(self._running.engine), answer, self._k)
            if result.error is not None:
                self._client.fail(result.error)
            num_prompt_tokens = answer.num_prompt_tokens or 0
            records.append(
                RequestRecord.of("", request, result, num_prompt_tokens=num_prompt_tokens)
            )
        problems = [
            *count_problems(records, counted, self._k, self._request.max_new_tokens),
            *spoiling_stalls(records, self._stalls[num_stalls:]),
        ]
        self._problems += problems
        return None if problems else self._cost(records, counted)

    def _cost(self, records: Sequence[RequestRecord], counted: Counters) -> EngineCost | None:
        timed = [record for record in records if record.num_timed_tokens > 0]
        num_timed = sum(record.num_timed_tokens for record in timed)
        decode_s = sum(record.decode_s or 0.0 for record in timed)
        if not num_timed or decode_s <= 0:
            return None
        num_later = sum(record.num_output_tokens - 1 for record in records)
        num_rounds = self._num_rounds(counted, records, num_later) if self._k else float(num_later)
        engine = self._running.engine
        name = "server" if engine == OPENAI else engine
        # Rounds whose tokens came with an answer's first one are not timed.
        timed_rounds = num_rounds * num_timed / num_later
        return EngineCost(
            source=self._client.address.root,
            engine=f"{name} {self._running.facts.version}".strip(),
            num_speculative_tokens=self._k,
            concurrency=len(records),
            cost=decode_s / timed_rounds,
            is_relative=False,
            mean_acceptance_length=num_later / num_rounds if self._k else None,
        )

    def _num_rounds(
        self, counted: Counters, records: Sequence[RequestRecord], num_later: int
    ) -> float:
        """Rounds after the answers' first tokens."""
        k, num_rounds = self._k, counted.num_rounds
        if num_rounds is None:  # TensorRT-LLM counts them only by answer
            known = [record.counts.num_rounds for record in records if record.counts is not None]
            num_rounds = float(sum(known)) if len(known) == len(records) else None
        elif counted.num_accepted is not None:
            num_rounds = rounds_counted(float(num_later), counted.num_accepted, num_rounds)
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

    def fail_without_costs(self) -> NoReturn:
        if self._problems:
            self._client.fail(f"no batch could be timed: {self._problems[-1]}")
        self._client.fail(
            "its answers have one token each, so rounds cannot be timed; try other prompts"
        )
