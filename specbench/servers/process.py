"""A serving engine as a child process: started, watched, and stopped with all its children.

Between it and us stands a supervisor (`supervisor.py`), which ends everything below it when a
pipe closes that we hold open: when we leave, and when we are killed.
"""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from specbench.errors import ServerError
from specbench.inputs.address import KEY
from specbench.servers.client import Client
from specbench.servers.server_log import PLAIN, LogFormat, ServerLog, how_it_ended

SUPERVISOR = Path(__file__).with_name("supervisor.py")
LOOPBACK = "127.0.0.1"  # a started server listens here alone
GRACE_S = 20.0  # to end when asked to; a container whose client is killed sooner would stay
KILL_S = 20.0  # for the system to end what was killed
PATIENCE_S = 15.0  # with a server that broke a connection; its children have 10 s to end
POLL_S = 0.05  # between two health checks


class ServerProcess:
    """A started server. `supervisor` is our child; the engine and all its children are below it."""

    def __init__(self, supervisor: subprocess.Popen[bytes], log: ServerLog, grace_s: float) -> None:
        self._supervisor, self._log, self._grace_s = supervisor, log, grace_s

    async def wait_until_healthy(self, client: Client, path: str, timeout_s: float) -> None:
        """Until the path answers with 200; EngineError if the server ends or time runs out."""
        try:
            async with asyncio.timeout(timeout_s):
                while not await client.is_healthy(path):
                    self.require_running(0.0)
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            what = f"the started server was not healthy ({path}) after {timeout_s:g} s"
            raise self._log.explain(what) from None
        self.require_running(0.0)  # else another one answered

    def require_running(self, patience_s: float = PATIENCE_S) -> None:
        """EngineError, which says why as far as is known, if the server ends within that time.

        Connections break a moment before the last of its processes has ended.
        """
        try:
            status = self._supervisor.wait(patience_s)
        except subprocess.TimeoutExpired:
            return
        # Below 0 is the supervisor's own: a signal that no program can defend itself against.
        status = status if status >= 0 else 128 - status
        what = f"the started server ended {how_it_ended(status)}"
        raise self._log.explain(what, status)

    def stop(self) -> None:
        """End it with all its children; ServerError names those that do not end."""
        assert self._supervisor.stdin is not None
        self._supervisor.stdin.close()
        try:
            self._supervisor.wait(self._grace_s + KILL_S)
        except subprocess.TimeoutExpired:
            left: list[psutil.Process] = []
            with suppress(psutil.NoSuchProcess):
                left = psutil.Process(self._supervisor.pid).children(recursive=True)
            names = ", ".join(str(process.pid) for process in left)
            raise ServerError(
                f"processes of the started server do not end, though they were killed: {names}; "
                "look at them with ps, and at the system's log; they may hold the GPU"
            ) from None


@contextmanager
def started(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    log: Path,
    log_format: LogFormat = PLAIN,
    grace_s: float = GRACE_S,
) -> Iterator[ServerProcess]:
    """The command in our environment and the one given; what it prints is added to the log.

    No process of it is left when the block is left. If this process is killed instead, the
    supervisor sees to that; so does a second Ctrl-C, at which nobody waits for it any more.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    environ = {**os.environ, **environment}  # with keys of servers, which only we may know
    with log.open("ab") as stream:
        start = stream.tell()
        supervisor = subprocess.Popen(
            # Neither the environment nor installed packages of the engine are the supervisor's.
            [sys.executable, "-I", "-S", SUPERVISOR, str(grace_s), *command],
            stdin=subprocess.PIPE,
            stdout=stream,
            stderr=stream,
            env={name: environ[name] for name in environ if not name.startswith(KEY)},
            start_new_session=True,
        )
    process = ServerProcess(supervisor, ServerLog(log, start, log_format), grace_s)
    try:
        yield process
    finally:
        process.stop()


def free_port() -> int:
    """A port of this machine's loopback that nothing listens on."""
    with socket.socket() as listener:
        listener.bind((LOOPBACK, 0))
        return int(listener.getsockname()[1])
