"""Round costs of running servers with an OpenAI-compatible API, timed at the K they run.

As many prompts are streamed at once as there are concurrent requests asked about. A server's own
counters say how many rounds that took; chunks of the stream do not.
"""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any, NoReturn

from specbench.engines.served_engine import counter_pages
from specbench.errors import ServerError, UsageError
from specbench.inputs.address import Address
from specbench.records import EngineCost
from specbench.servers.client import Client
from specbench.servers.metrics_page import Counters
from specbench.servers.streamed import Streamed

MAX_TOKENS = 64  # of an answer
_METRICS = "/metrics"
NUM_BATCHES = 6  # each a cost of its own, so that their spread is seen
OPTION = "--step-times"


def time_servers(
    urls: Sequence[str],
    prompts: Sequence[str],
    *,
    concurrencies: Sequence[int] = (1,),
    temperature: float = 0.0,
    max_tokens: int = MAX_TOKENS,
) -> list[EngineCost]:
    """What a round costs at each address: one cost per batch, after one that warms up.

    The servers take turns, so that what slows the machine slows all of them. UsageError where one
    cannot be reached, does not tell its rounds, or serves others at the same time.
    """
    asked = {"temperature": temperature, "max_tokens": max_tokens}
    addresses = [Address.at(url, OPTION) for url in urls]
    try:
        return asyncio.run(_time_in_turns(addresses, prompts, concurrencies, asked))
    except ServerError as error:
        raise UsageError(f"{OPTION} {error}") from error


async def _time_in_turns(
    addresses: Sequence[Address],
    prompts: Sequence[str],
    concurrencies: Sequence[int],
    asked: dict[str, Any],
) -> list[EngineCost]:
    costs: list[EngineCost] = []
    async with AsyncExitStack() as stack:
        servers = []
        for address in addresses:
            client = await stack.enter_async_context(Client(address))
            servers.append(await _Timed.open(client, asked))
        for concurrency in concurrencies:
            wanted = [prompts[i % len(prompts)] for i in range(concurrency * NUM_BATCHES)]
            found: list[list[EngineCost]] = [[] for _ in servers]
            for server in servers:
                await server.answers(wanted[:concurrency])
            for i in range(NUM_BATCHES):
                batch = wanted[i * concurrency : (i + 1) * concurrency]
                for server, own in zip(servers, found, strict=True):
                    cost = await server.cost(batch)
                    own += [cost] if cost else []
            for server, own in zip(servers, found, strict=True):
                costs += own or server.fail_without_costs()
    return costs


class _Timed:
    """A server under way."""

    def __init__(self, client: Client, asked: dict[str, Any], name: str) -> None:
        self._client, self._asked, self._name = client, asked, name
        self._num_foreign = 0  # batches during which others were also served

    @classmethod
    async def open(cls, client: Client, asked: dict[str, Any]) -> "_Timed":
        counted = await client.counters(_METRICS, counter_pages())
        version = await client.version()
        asked = {"model": await client.model(), **asked}
        if counted.engine == "vllm":  # which tokens an event holds, and so how many
            asked["return_token_ids"] = True
        return cls(client, asked, " ".join(filter(None, (counted.engine or "server", version))))

    async def cost(self, prompts: Sequence[str]) -> EngineCost | None:
        """None where no answer could be timed, or others were served meanwhile."""
        before = await self._client.counters(_METRICS, counter_pages())
        answers = await self.answers(prompts)
        counted = (await self._client.counters(_METRICS, counter_pages())).since(before)
        emitted = sum(answer.num_tokens or 0 for answer in answers)
        if counted.is_of_a_restart:
            self._client.fail("it restarted while it was timed")
        if counted.num_tokens is not None and counted.num_tokens > emitted + len(answers):
            self._num_foreign += 1
            return None
        return self._cost(answers, counted)

    async def answers(self, prompts: Sequence[str]) -> list[Streamed]:
        """All of them at once."""
        return await asyncio.gather(*map(self._answer, prompts))

    async def _answer(self, prompt: str) -> Streamed:
        messages = [{"role": "user", "content": prompt}]
        answer = await self._client.chat(self._asked, {"messages": messages})
        if answer.text and not answer.num_tokens:
            self._client.fail(
                "its stream has no usage, so tokens cannot be counted; pass a table instead"
            )
        return answer

    def _cost(self, answers: Sequence[Streamed], counted: Counters) -> EngineCost | None:
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
            num_rounds = self._num_rounds(k, counted, num_later)
        # Rounds whose tokens came with an answer's first one are not timed.
        timed_rounds = num_rounds * num_timed / num_later
        return EngineCost(
            source=self._client.address.root,
            engine=self._name,
            num_speculative_tokens=k,
            concurrency=len(answers),
            cost=decode_s / timed_rounds,
            is_relative=False,
            mean_acceptance_length=num_later / num_rounds if k else None,
        )

    def _num_rounds(self, k: int, counted: Counters, num_later: int) -> float:
        """Rounds after the answers' first tokens."""
        root = self._client.address.root
        is_complete = counted.num_accepted is not None or counted.counts_all_rounds
        if counted.num_rounds is None or not is_complete:
            self._client.fail(
                f"it runs at K = {k} and does not count rounds at {root}/metrics; turn its "
                "metrics on, or give its costs as a table"
            )
        # Rounds without a draft are not counted as drafts; drafts past the end of an answer
        # are counted as accepted.
        unaccepted = 0.0 if counted.num_accepted is None else num_later - counted.num_accepted
        num_rounds = max(counted.num_rounds, unaccepted)
        if num_rounds <= 0:
            self._client.fail(
                f"it runs at K = {k} and counted no round of {num_later} tokens; give its costs "
                "as a table"
            )
        return num_rounds

    def _k(self, counted: Counters) -> int:
        address = self._client.address
        if address.k is not None:
            return address.k
        if counted.num_positions:
            return counted.num_positions
        if counted.num_rounds and counted.num_draft_tokens:
            return round(counted.num_draft_tokens / counted.num_rounds)
        if counted.engine is not None and not counted.num_rounds:  # it counted no speculation
            return 0
        self._client.fail(
            f"{address.root}/metrics does not report its K; state it: "
            f"{address.root}#k={4 if counted.num_rounds else 0}"
        )

    def fail_without_costs(self) -> NoReturn:
        if self._num_foreign:
            self._client.fail(
                "it served other clients in every batch; time a server that nobody else uses"
            )
        self._client.fail(
            "its answers have one token each, so rounds cannot be timed; try other prompts"
        )
