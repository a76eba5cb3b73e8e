"""Servers that run already: the fake of vLLM in this process, which tells what it was asked."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from typing import Any, NamedTuple
from unittest.mock import patch

from specbench.bench.served import open_session
from tests.bench.served.fake_vllm import WARM_UP, Engine, Handler


class RunningFake(NamedTuple):
    """Its address, and the engine behind it."""

    url: str
    engine: Engine

    @property
    def measured(self) -> list[dict[str, Any]]:
        """The requests that were no warm-up."""
        return [body for body in self.engine.asked if not is_warm_up(body)]


def is_warm_up(body: dict[str, Any]) -> bool:
    return WARM_UP in body["messages"][0]["content"]


@contextmanager
def running(*ks: int) -> Iterator[list[RunningFake]]:
    """One server a K, in this order; sessions are warmed up with the fewest batches."""
    found: list[RunningFake] = []
    servers = []
    try:
        for k in ks:
            engine = Engine(k)
            handler = type("Own", (Handler,), {"engine": engine})
            server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
            server.daemon_threads = True
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
            servers.append(server)
            found.append(RunningFake(f"http://127.0.0.1:{server.server_port}", engine))
        with patch.multiple(open_session, SPIN_S=0.0, LONGEST_S=0.0):
            yield found
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()
