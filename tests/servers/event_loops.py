"""Event loops whose time a test controls, so that waiting takes none."""

import asyncio
import selectors
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from unittest.mock import patch

from specbench.servers import traffic
from tests.servers.crowd_server import CrowdServer

Found = TypeVar("Found")


class _Jump(selectors.DefaultSelector):
    """Skips the wait and advances the time instead."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("nothing is left to wait for")
        self.now_s += max(timeout, 0.0)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose time advances when it is idle; nothing comes from outside."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        return self._jump.now_s

    def stand_still(self, seconds: float) -> None:
        """Advance the time, as if a called function took that long."""
        self._jump.now_s += seconds


class SkippingLoop(asyncio.SelectorEventLoop):
    """A loop whose time is only what it skips: a slow machine does not make events late."""

    skipped_s = 0.0

    def time(self) -> float:
        return self.skipped_s

    async def skip_silence(self, server: CrowdServer, num_requests: int) -> None:
        """Wait for none of those that hang, once they are all that is left of so many requests."""
        await server.until(
            lambda: len(server.requests) == num_requests and server.num_active == server.num_hanging
        )
        while server.num_hanging:
            self.skipped_s += 1
            await asyncio.sleep(0)


def in_loop(loop: type[asyncio.SelectorEventLoop], work: Coroutine[Any, Any, Found]) -> Found:
    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(work)


def in_virtual_time(work: Coroutine[Any, Any, Found]) -> Found:
    """Run the work in the loop's time, which the code that measures the traffic also gets."""
    now = lambda: asyncio.get_running_loop().time()  # noqa: E731
    with (
        patch.object(traffic, "perf_counter", now),
        patch.object(traffic, "ticking", _ticking),
    ):
        return in_loop(VirtualLoop, work)


@contextmanager
def _ticking(on_tick: traffic.OnTick) -> Iterator[None]:
    """Threads do not have this time: the loop's own timers, which are exact here."""
    loop = asyncio.get_running_loop()
    due_s = loop.time()

    def send() -> None:
        nonlocal due_s, timer
        while due_s <= loop.time():
            loop.call_soon(on_tick, due_s)
            due_s += traffic.TICK_S
        timer = loop.call_at(due_s, send)

    timer = loop.call_at(due_s, send)
    try:
        yield
    finally:
        send()
        timer.cancel()
