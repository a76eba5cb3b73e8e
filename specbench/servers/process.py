"""A serving engine as a child process: started, watched, and stopped with all its children.

Its parent is a supervisor (`supervisor.py`), which ends all processes below it when a pipe from
this process closes: on exit, and when this process is killed.
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
LOOPBACK = "127.0.0.1"  # the only interface that a started server listens on
GRACE_S = 20.0  # from SIGTERM to SIGKILL; a container would stay if its client were killed sooner
KILL_S = 20.0  # for the system to end killed processes
PATIENCE_S = 15.0  # with a server that broke a connection; its children have 10 s to end
POLL_S = 0.05  # between two health checks


class ServerProcess:
    """A started server: the supervisor is our child, the engine's processes are below it."""

    def __init__(self, supervisor: psutil.Popen, log: ServerLog, grace_s: float) -> None:
        self._supervisor, self._log, self._grace_s = supervisor, log, grace_s

    async def wait_until_healthy(self, client: Client, path: str, timeout_s: float) -> None:
        """Wait until the path returns 200; EngineError if the server ends or time runs out."""
        try:
            async with asyncio.timeout(timeout_s):
                while await client.health_status(path) != 200:
                    self.require_running(0.0)
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            event = f"the started server was not healthy ({path}) after {timeout_s:g} s"
            raise self._log.explain(event) from None
        self.require_running(0.0)  # else another server responded

    def require_running(self, patience_s: float = PATIENCE_S) -> None:
        """Raise EngineError, with the cause if known, if the server ends within that time.

        Connections break a moment before the last of its processes has ended.
        """
        try:
            status = self._supervisor.wait(patience_s)
        except psutil.TimeoutExpired:
            return
        # Below 0: the supervisor itself was killed by a signal that it cannot handle.
        status = status if status >= 0 else 128 - status
        event = f"the started server ended {how_it_ended(status)}"
        raise self._log.explain(event, status)

    def stop(self) -> None:
        """End the server with all its children; ServerError names those that do not end."""
        self._supervisor.stdin.close()
        try:
            self._supervisor.wait(self._grace_s + KILL_S)
        except psutil.TimeoutExpired:
            left: list[psutil.Process] = []
            with suppress(psutil.NoSuchProcess):
                left = self._supervisor.children(recursive=True)
            names = ", ".join(str(process.pid) for process in left)
            raise ServerError(
                f"processes of the started server do not end, though they were killed: {names}; "
                "they may hold the GPU; see `ps` and the system's log"
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
    """Run the command in this environment plus the given one, with its output added to the log.

    All its processes have ended when the block is left. If this process is killed, or interrupted
    by a second Ctrl-C, the supervisor still ends them.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    environ = {**os.environ, **environment}
    with log.open("ab") as stream:
        start = stream.tell()
        supervisor = psutil.Popen(  # its `wait` does not poll
            # The supervisor ignores the engine's PYTHON* variables and installed packages.
            [sys.executable, "-I", "-S", SUPERVISOR, str(grace_s), *command],
            stdin=subprocess.PIPE,
            stdout=stream,
            stderr=stream,
            # API keys of servers are secret.
            env={name: environ[name] for name in environ if not name.startswith(KEY)},
            start_new_session=True,
        )
    process = ServerProcess(supervisor, ServerLog(log, start, log_format), grace_s)
    try:
        yield process
    finally:
        process.stop()


def free_port() -> int:
    """An unused port of this machine's loopback interface."""
    with socket.socket() as listener:
        listener.bind((LOOPBACK, 0))
        return int(listener.getsockname()[1])
