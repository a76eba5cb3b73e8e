"""How busy this process was while it asked servers: a busy client measures itself."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import fmean
from threading import Event, Thread
from time import perf_counter, process_time
from typing import Any

from specbench.servers.client import Client

TICK_S = 0.01
TIMER_S = 0.001  # a thread's timer is late by less than this where it is not kept from running

See = Callable[[float], None]  # is told when a tick was sent


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessLoad:
    """The load that requests put on this process."""

    wall_s: float
    cpu_s: float  # of all its threads
    num_events: int  # streamed to it
    mean_lag_s: float  # how long an event that comes in at any time waits until it is read


async def load_of(work: Coroutine[Any, Any, None], clients: Sequence[Client]) -> ProcessLoad:
    """Do the work of these clients, and measure this process meanwhile; raises what it raises."""
    num_events = sum(client.num_events for client in clients)
    start_s, cpu_start_s = perf_counter(), process_time()
    lags_s: list[float] = []  # of the ticks
    with ticking(lambda sent_s: lags_s.append(perf_counter() - sent_s)):
        await work
    await asyncio.sleep(0)  # what was sent during a pause at the end is also seen
    return ProcessLoad(
        wall_s=perf_counter() - start_s,
        cpu_s=process_time() - cpu_start_s,
        num_events=sum(client.num_events for client in clients) - num_events,
        mean_lag_s=fmean(lags_s or [0.0]),
    )


@contextmanager
def ticking(see: See) -> Iterator[None]:
    """Ticks reach the loop from outside, as a server's events do: its own timers are a millisecond
    late on an idle machine, and events are not.

    All ticks that become due while the loop stands still are late, each by its own time: a long
    pause counts for as much as comes in during it. That is so of events that come at any time; of
    those that come together, as the tokens of a batch do, the last one waits for all others.
    """
    loop, ended = asyncio.get_running_loop(), Event()

    def send() -> None:
        due_s = perf_counter() + TICK_S
        is_over = False
        while not is_over:
            is_over = ended.wait(due_s - perf_counter())
            while due_s <= (now_s := perf_counter()):
                # Whatever kept this thread from running keeps events from being read as well.
                loop.call_soon_threadsafe(see, due_s if now_s - due_s > TIMER_S else now_s)
                due_s += TICK_S

    thread = Thread(target=send, name="ticks", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
