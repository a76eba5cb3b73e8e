"""How busy this process was while it sent requests: a busy client measures itself."""

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
TIMER_S = 0.001  # a thread's timer is late by less than this unless the thread was kept waiting

OnTick = Callable[[float], None]  # gets the time at which the tick was sent


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessLoad:
    """The load that requests put on this process."""

    wall_s: float
    cpu_s: float  # of all threads
    num_events: int  # received
    mean_lag_s: float  # mean time from an event's arrival to its reading


async def load_of(work: Coroutine[Any, Any, None], clients: Sequence[Client]) -> ProcessLoad:
    """Run the work of these clients and measure this process meanwhile."""
    num_events = sum(client.num_events for client in clients)
    start_s, cpu_start_s = perf_counter(), process_time()
    lags_s: list[float] = []  # of the ticks
    with ticking(lambda sent_s: lags_s.append(perf_counter() - sent_s)):
        await work
    await asyncio.sleep(0)  # also handle the ticks that were sent during a pause at the end
    return ProcessLoad(
        wall_s=perf_counter() - start_s,
        cpu_s=process_time() - cpu_start_s,
        num_events=sum(client.num_events for client in clients) - num_events,
        mean_lag_s=fmean(lags_s or [0.0]),
    )


@contextmanager
def ticking(on_tick: OnTick) -> Iterator[None]:
    """Send ticks to the event loop from a thread while the block runs.

    They reach the loop from outside, as a server's events do: the loop's own timers are a
    millisecond late on an idle machine, and events are not. Each tick that becomes due while the
    loop is blocked is late by its own time, so a long pause counts in proportion to the events
    that arrive during it. Events that arrive together, as the tokens of a batch do, wait longer
    than that: the last one waits for all others.
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
