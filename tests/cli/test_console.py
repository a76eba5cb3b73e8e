"""Width of tables: the terminal's width, and a constant without a terminal."""

import fcntl
import os
import struct
import subprocess
import sys
import termios
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from specbench.cli.console import WIDTH
from specbench.cli.progress import LiveCells, ProgressWatch, _LiveProgress
from specbench.records import DeviceSample, RoundLog
from tests.cell_keys import BASE_KEY, KEY
from tests.cli.calls import specbench
from tests.made_records import made_block, made_request, steps

DRY = ("pair", "tiny", "--dry-run", "--gpu", "L4", "--draft")
LONG = "./named/" + "a-draft-whose-name-is-long-" * 3


@pytest.fixture(scope="session")
def long_name(tiny: Path) -> Path:
    """The tiny pair's draft under a name for which 80 columns are too few."""
    (tiny / LONG).parent.mkdir(exist_ok=True)
    (tiny / LONG).symlink_to(tiny / "draft")
    return tiny


def on_a_terminal(columns: int, *arguments: str, cwd: Path) -> str:
    """The output of a command on a terminal of this many columns."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    variables = {name: v for name, v in os.environ.items() if name not in ("COLUMNS", "LINES")}
    variables |= {"TERM": "xterm", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "specbench", *arguments]
    both = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    with (
        os.fdopen(ours, "rb", buffering=0) as screen,
        subprocess.Popen(command, **both, cwd=cwd, env=variables),
    ):
        os.close(theirs)
        return b"".join(_pieces(screen)).decode().replace("\r\n", "\n")


def _pieces(screen):
    try:
        while piece := screen.read(4096):
            yield piece
    except OSError:  # how a terminal reports that all writers are gone
        return


def table(text: str) -> list[str]:
    """The lines of the memory table."""
    lines = text.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("memory  "))
    last = next(i for i, line in enumerate(lines) if ": 1 request of " in line)
    return lines[first:last]


@pytest.mark.slow
def test_a_wide_terminal_is_used_in_full(long_name):
    lines = table(on_a_terminal(200, *DRY, LONG, cwd=long_name))
    assert len(lines) == 3  # header, target, draft: nothing is folded
    assert WIDTH < max(map(len, lines)) <= 200


@pytest.mark.slow
def test_in_a_narrow_terminal_no_figure_is_cut(long_name):
    assert table(on_a_terminal(40, *DRY, LONG, cwd=long_name)) == table(
        specbench(*DRY, LONG, cwd=long_name).out
    )


@pytest.mark.parametrize("variable", ["COLUMNS", "FORCE_COLOR"])
def test_piped_output_has_the_same_width_in_every_environment(long_name, monkeypatch, variable):
    usual = specbench(*DRY, LONG, cwd=long_name).out
    assert max(map(len, table(usual))) <= WIDTH
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv(variable, "200")
    assert specbench(*DRY, LONG, cwd=long_name).out == usual


def test_a_cell_is_shown_below_the_bar_or_as_a_log_line(capsys) -> None:
    key, none = KEY, BASE_KEY
    block = SimpleNamespace(
        cells=[SimpleNamespace(key=cell_key) for cell_key in (none, key)],
        condition=key.condition,
        purpose="explore",
        session=None,
    )
    record = made_block(
        "p1",
        made_request(none.id, "p1", steps(9)),
        made_request(
            key.id,
            "p1",
            RoundLog(
                num_drafted=(4, 4), num_accepted=(3, 1), num_emitted=(4, 2), round_s=(0.1, 0.1)
            ),
            device=DeviceSample(num_samples=1, sm_clock_mhz=1410),
        ),
    )
    lines = [
        f"{none.label}, 10.0 tok/s, 1 prompt",
        f"{key.label}, 30.0 tok/s, 3.00 tokens per round, 1410 MHz, 1 prompt",
    ]
    with ProgressWatch() as watch:
        watch.measured(block, record)
        watch.advance(1, 2, None)
        watch.measured(block, record)
        watch.advance(2, 2, None)
        assert capsys.readouterr().err == ""
    base, drafted = capsys.readouterr().err.splitlines()
    assert ("K=0" in base, "30.0 tok/s" in drafted) == (True, True)
    cells = LiveCells()
    cells.add(block, record)
    shown = Console(width=80, file=StringIO())
    shown.print(*_LiveProgress(cells).get_renderables(), sep="\n")
    assert [line.strip() for line in shown.file.getvalue().splitlines() if "tok/s" in line] == lines
