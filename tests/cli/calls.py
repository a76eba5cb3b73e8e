"""The command line called inside this process, with its output and exit code."""

import shlex
import sys
from collections.abc import Callable
from contextlib import chdir, redirect_stderr, redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer.main

from specbench.bench import passes
from specbench.cli import main
from specbench.errors import ExitCode
from specbench.report import html
from specbench.report.html import Pictures

# Exit codes of real measurements: whether an answer is decided depends on the machine.
MEASURED = (ExitCode.GOOD, ExitCode.INCONCLUSIVE)
# Reading every command's options takes 15 ms, for each command that a test calls.
get_command: Callable[[typer.Typer], Any] = cache(typer.main.get_command)


class CommandResult(NamedTuple):
    """Exit code and output of a command, and the type of the exception that it exits by."""

    code: int
    out: str
    err: str
    error: type

    @property
    def is_complete(self) -> bool:
        """Whether everything was measured, decided or not."""
        return self.code in MEASURED


def specbench(
    command: str = "",
    *arguments: str | Path,
    cwd: Path,
    in_full: bool = False,
    entry_point: Callable[[], None] = main,
) -> CommandResult:
    """`specbench COMMAND ARGUMENTS` as a shell in `cwd` would run it, entry point and all.

    The command may have several words, as they are typed.

    Only `in_full` has charts in its HTML page and times forwards next to more than one block.
    `entry_point`: of a tool, instead of the command line.
    """
    out, err = StringIO(), StringIO()
    with pytest.MonkeyPatch.context() as patch, chdir(cwd):
        patch.setattr(sys, "argv", ["specbench", *shlex.split(command), *map(str, arguments)])
        patch.setattr(typer.main, "get_command", get_command)
        if not in_full:
            patch.setattr(html, "pictures", lambda _: Pictures((), (), ()))
            patch.setattr(passes, "BLOCKS", 1)
        with (
            redirect_stdout(out),
            redirect_stderr(err),
            pytest.raises(SystemExit) as done,
        ):
            entry_point()
    exited = done.value
    code = int(exited.code or 0)
    return CommandResult(code, out.getvalue(), err.getvalue(), type(exited.__context__))
