"""How busy this process was while it asked servers: a busy client measures itself."""

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from time import perf_counter, process_time
from typing import Any

from specbench.servers.client import Client

TICK_S = 0.01
TIMER_S = 0.001  # the event loop's timers are late by up to this on an idle machine, events not


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessLoad:
    """What asking took of this process."""

    wall_s: float
    cpu_s: float  # of all its threads
    num_events: int  # streamed to it
    mean_lag_s: float  # how long an event that comes in at any time waits until it is read


async def load_of(work: Coroutine[Any, Any, None], clients: Sequence[Client]) -> ProcessLoad:
    """Do the work of these clients, and measure this process meanwhile; raises what it raises."""
    num_events = sum(client.num_events for client in clients)
    start_s, cpu_start_s = perf_counter(), process_time()
    lag = _Lag(start_s)
    ticking = asyncio.create_task(lag.tick())
    try:
        await work
    finally:
        ticking.cancel()
        await asyncio.wait([ticking])
    return ProcessLoad(
        wall_s=perf_counter() - start_s,
        cpu_s=process_time() - cpu_start_s,
        num_events=sum(client.num_events for client in clients) - num_events,
        mean_lag_s=lag.sum_s / max(lag.num_ticks, 1),
    )


class _Lag:
    """How late ticks are looked at that are due at fixed times, as events of a server are.

    Ticks that become due while the loop stands still are all late, each by its own time: a long
    pause counts for as much as comes in during it.
    """

    def __init__(self, start_s: float) -> None:
        self._due_s = start_s + TICK_S
        self.num_ticks = 0
        self.sum_s = 0.0

    async def tick(self) -> None:
        while True:
            await asyncio.sleep(self._due_s - perf_counter())
            now_s = perf_counter()
            while self._due_s <= now_s:
                self.num_ticks += 1
                self.sum_s += max(now_s - self._due_s - TIMER_S, 0.0)
                self._due_s += TICK_S
