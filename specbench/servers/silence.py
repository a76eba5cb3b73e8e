"""Warns about servers that stop responding, long before a request times out."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from specbench.servers.client import SILENCE_S, Client

NOTICE_S = 10.0  # without an event while requests are open
TICK_S = 0.5


@dataclass(kw_only=True, slots=True)
class Stall:
    """A time in which a server sent nothing on any stream."""

    root: str
    seconds: float
    fault: str  # of its health check; empty: healthy

    def __str__(self) -> str:
        health = f"and {self.fault}" if self.fault else "though its health check succeeds"
        return f"{self.root} sent nothing for {self.seconds:.0f} s, {health}"


@asynccontextmanager
async def watch_for_stalls(
    clients: Sequence[Client], health: str, warn: Callable[[str], None]
) -> AsyncIterator[list[Stall]]:
    """Collect the stalls; each is warned of after `NOTICE_S`, with the result of `health`."""
    stalls: list[Stall] = []
    tasks = [asyncio.create_task(_listen(client, health, warn, stalls)) for client in clients]
    try:
        yield stalls
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _listen(
    client: Client, health: str, warn: Callable[[str], None], stalls: list[Stall]
) -> None:
    clock = asyncio.get_running_loop().time
    stall, silent_s, last_counts = None, 0.0, (0, 0)
    while True:
        began_s = clock()
        await asyncio.sleep(TICK_S)
        # A pause of this process itself does not count as the server's silence.
        silent_s += min(clock() - began_s, 2 * TICK_S)
        counts = client.num_events, client.num_closed
        if counts != last_counts or not client.num_open:
            stall, silent_s, last_counts = None, 0.0, counts
        elif stall is not None:
            stall.seconds = silent_s
        elif silent_s >= NOTICE_S:
            began_s = clock()
            stall = Stall(root=client.address.root, seconds=silent_s, fault="")
            stall.fault = await client.why_unhealthy(health)
            silent_s += clock() - began_s
            stalls.append(stall)
            warn(f"{stall}; waiting for it for up to {SILENCE_S:.0f} s")
