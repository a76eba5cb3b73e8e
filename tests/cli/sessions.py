"""Commands in processes of their own that a test can interrupt or kill.

They are forked from a server that has imported the heavy packages once, so that each starts in
a moment; all else is as if a shell had started them.
"""

import multiprocessing
import os
import sys
from contextlib import contextmanager
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple


class Session(NamedTuple):
    """A running command and the files that take what it prints."""

    process: BaseProcess
    out: Path
    err: Path


def server() -> ForkServerContext:
    """The server that commands are forked from; it starts with the first of them."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.cli.sessions_preload"])
    return context


@contextmanager
def session(*arguments: str, cwd: Path):
    """`specbench ARGUMENTS` in a process of its own, killed at the latest at the end."""
    out, err = cwd / "session.out", cwd / "session.err"
    process = server().Process(target=_main, args=(arguments, cwd, out, err))
    process.start()
    try:
        yield Session(process, out, err)
    finally:
        process.kill()
        process.join()


def _main(arguments: tuple[str, ...], cwd: Path, out: Path, err: Path) -> None:
    from specbench.cli import main

    os.chdir(cwd)
    for path, number in ((out, 1), (err, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.argv = ["specbench", *arguments]
    main()
