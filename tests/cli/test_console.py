"""Width of tables: the terminal's width, and a constant without a terminal."""

import re
import shutil
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from specbench.cli.console import WIDTH, plain_table
from specbench.cli.progress import LiveCells, ProgressWatch, _LiveProgress
from specbench.records import DeviceSample, RoundLog
from specbench.report.split_table import SplitTable
from specbench.words.table import text_table
from tests.cell_keys import BASE_KEY, KEY
from tests.cli.calls import specbench
from tests.cli.sessions import seen_on_a_terminal
from tests.made_records import made_block, made_request, steps

DRY = ("pair", "tiny", "--dry-run", "--gpu", "L4", "--draft")
LONG = "./named/" + "a-draft-whose-name-is-long-" * 3


@pytest.fixture(scope="session")
def long_name(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny pair without weights, which torch would compare, and its draft under a name for
    which 80 columns are too few."""
    folder = tmp_path_factory.mktemp("long") / "pair"
    shutil.copytree(tiny, folder, ignore=shutil.ignore_patterns("*.safetensors", "reports"))
    (folder / LONG).parent.mkdir()
    (folder / LONG).symlink_to(folder / "draft")
    return folder


@pytest.fixture(scope="session")
def wide(long_name: Path) -> list[str]:
    """The memory table on a wide terminal."""
    return table_on_a_terminal(200, long_name)


def table_on_a_terminal(columns: int, folder: Path) -> list[str]:
    seen, _ = seen_on_a_terminal(*DRY, LONG, cwd=folder, columns=columns)
    return table(seen)


def table(text: str) -> list[str]:
    """The lines of the memory table."""
    lines = text.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("memory  "))
    last = next(i for i, line in enumerate(lines) if ": 1 request of " in line)
    return lines[first:last]


@pytest.mark.slow
def test_a_wide_terminal_is_used_in_full(wide):
    assert len(wide) == 3  # header, target, draft: nothing is folded
    assert WIDTH < max(map(len, wide)) <= 200


FIGURE = re.compile(r"(?<!\S)[\d,.]+(?: [KMG]iB)?(?!\S)")


@pytest.mark.slow
@pytest.mark.parametrize(  # the narrowest is split into the most parts
    "columns", [40, *(pytest.param(columns, marks=pytest.mark.long) for columns in (60, 80))]
)
def test_in_a_narrow_terminal_no_figure_is_cut(long_name, wide, columns):
    lines = table_on_a_terminal(columns, long_name)
    parts = [i for i, line in enumerate(lines) if line.startswith("memory  ")]
    shown = [
        [figure for first in parts for figure in FIGURE.findall(lines[first + row])]
        for row in (1, 2)
    ]
    assert shown == [FIGURE.findall(line) for line in wide[1:]]
    assert len(shown[0]) >= 5
    assert max(map(len, lines)) <= columns


def test_each_part_of_a_split_table_begins_with_its_keys():
    table = SplitTable(box=None, pad_edge=False)
    table.num_keys = 2
    for header in ("drafter", "K", "tok/s", "speedup"):
        table.add_column(header, no_wrap=True)
    table.add_row("draft", "4", "1,234.5", "1.54x")
    out = StringIO()
    for width in (30, 20):
        Console(file=out, width=width).print(table)
    assert [line.split() for line in out.getvalue().splitlines()] == [
        ["drafter", "K", "tok/s", "speedup"],
        ["draft", "4", "1,234.5", "1.54x"],
        ["drafter", "K", "tok/s"],
        ["draft", "4", "1,234.5"],
        [],
        ["drafter", "K", "speedup"],
        ["draft", "4", "1.54x"],
    ]


def test_names_that_are_wider_than_the_terminal_are_wrapped():
    names = ("a-long-target/with-a-long-drafter", "the workload of long requests")
    headers = ("pairing", "workload", "K", "speedup", "verdict")
    rows = [(*names, "0..8", "1.90x [1.80, 2.00]", "not measured again, so unknown")]
    table = plain_table(text_table("", headers, rows, num_names=2, num_remarks=1), num_keys=3)
    out = StringIO()
    Console(file=out, width=60).print(table)
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 60
    assert "1.90x [1.80, 2.00]" in out.getvalue()


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
    with ProgressWatch(is_verbose=True) as watch:
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
