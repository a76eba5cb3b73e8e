"""Servers that run already: the fake vLLM in this process, which records its requests."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

from specbench.bench.served import running as session
from tests.bench.served.fake_vllm import WARM_UP, Engine, Handler
from tests.servers.http_server import serving_with


class RunningFake(NamedTuple):
    """The address of a fake server and the engine behind it."""

    url: str
    engine: Engine

    @property
    def measured(self) -> list[dict[str, Any]]:
        """The requests except warm-ups."""
        return [body for body in self.engine.requests if not is_warm_up(body)]


def is_warm_up(body: dict[str, Any]) -> bool:
    return WARM_UP in body["messages"][0]["content"]


@contextmanager
def running(*ks: int) -> Iterator[list[RunningFake]]:
    """One server per K, in this order; sessions are warmed up with the fewest batches."""
    engines = [Engine(k) for k in ks]
    with ExitStack() as stack, patch.multiple(session, SPIN_S=0.0, LONGEST_S=0.0):
        yield [
            RunningFake(stack.enter_context(serving_with(Handler, engine=engine)), engine)
            for engine in engines
        ]
