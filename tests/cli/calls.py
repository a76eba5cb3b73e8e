"""The command line called inside this process, with what it printed and its exit code."""

import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import pytest

from specbench.cli import main
from specbench.exit_code import ExitCode

# Of commands that measure for real: whether an answer is decided depends on the machine.
MEASURED = (ExitCode.GOOD, ExitCode.INCONCLUSIVE)


class Ran(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def is_complete(self) -> bool:
        """Whether everything was measured, decided or not."""
        return self.code in MEASURED


def specbench(*arguments: str | Path, cwd: Path) -> Ran:
    """`specbench ARGUMENTS` as a shell in `cwd` would run it, entry point and all."""
    out, err = StringIO(), StringIO()
    with pytest.MonkeyPatch.context() as patch, chdir(cwd):
        patch.setattr(sys, "argv", ["specbench", *map(str, arguments)])
        with (
            redirect_stdout(out),
            redirect_stderr(err),
            pytest.raises(SystemExit) as done,
        ):
            main()
    return Ran(int(done.value.code or 0), out.getvalue(), err.getvalue())
