"""Commands in separate processes that a test can interrupt or kill.

They are forked from a server that has imported the heavy packages once, so that each starts
quickly. Otherwise they behave as if started by a shell.
"""

import fcntl
import multiprocessing
import os
import pty
import signal
import struct
import sys
import termios
import threading
import time
from contextlib import contextmanager
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple


class Session(NamedTuple):
    """A running command and the files with its output."""

    process: BaseProcess
    out: Path
    err: Path


def server() -> ForkServerContext:
    """The server that commands are forked from; it starts with the first of them."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.cli.sessions_preload"])
    return context


@contextmanager
def session(*arguments: str, cwd: Path, max_records: int | None = None, screen: Path | None = None):
    """`specbench ARGUMENTS` in a separate process, killed at the end at the latest.

    Its output goes to files, or to a terminal's `screen`.

    With `max_records` it stores that many and then waits to be ended. Otherwise a slow test could
    try to interrupt or kill it too late.
    """
    out, err = (screen, screen) if screen else (cwd / "session.out", cwd / "session.err")
    process = server().Process(target=_main, args=(arguments, cwd, out, err, max_records))
    process.start()
    try:
        yield Session(process, out, err)
    finally:
        process.kill()
        process.join()


def seen_on_a_terminal(*arguments: str, cwd: Path, columns: int = 0) -> tuple[str, int]:
    """The output on a terminal of this many columns (0: it does not say), and the exit code."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    seen = bytearray()

    def read() -> None:
        try:
            while got := os.read(ours, 65_536):
                seen.extend(got)
        except OSError:
            pass  # no process has it open any more

    reader = threading.Thread(target=read)
    reader.start()
    with session(*arguments, cwd=cwd, screen=Path(os.ttyname(theirs))) as running:
        running.process.join()
        code = running.process.exitcode
    os.close(theirs)
    reader.join()
    os.close(ours)
    return seen.decode(), code


def _main(
    arguments: tuple[str, ...], cwd: Path, out: Path, err: Path, max_records: int | None
) -> None:
    from specbench.cli import main

    os.chdir(cwd)
    if out == err:
        for name in ("COLUMNS", "LINES"):  # they would replace the terminal's own
            os.environ.pop(name, None)
        os.environ |= {"TERM": "xterm", "NO_COLOR": "1"}
    for path, number in ((out, 1), (err, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    # A background job of a script, as CI may run one, ignores SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["specbench", *arguments]
    if max_records is not None:
        _hold_after(max_records)
    main()


def _hold_after(num_records: int) -> None:
    from specbench.runs.store import RunStore

    append, left = RunStore.append, num_records

    def held(self, record):
        nonlocal left
        while not left:
            time.sleep(0.01)
        left -= 1
        append(self, record)

    RunStore.append = held
