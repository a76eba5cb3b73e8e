"""`kill -9` at random moments of commands, then `--resume`: nothing is lost, nothing doubled."""

import random
import time
from collections import Counter
from pathlib import Path

import pytest

from specbench.inputs.config import load_pairings
from specbench.runs import load_run
from tests.bench.fake_runs import write_prompts
from tests.cli.calls import specbench
from tests.cli.sessions import session

MOST_LINES = 10  # before a kill
LATE = 4  # lines that are stored at most until the kill comes
MOST_DELAY_S = 0.05  # until the kill, in which no machine writes a whole report
PATIENCE_S = 300.0
TINY = ("--max-new-tokens", "4", "--threads", "1", "--device", "cpu")
COMMANDS = {
    "run": ("tiny/draft", "-k", "2", *TINY),
    "sweep-k": ("tiny/draft", "-k", "0..2", *TINY),
    "pair": (
        "./target",
        "--draft",
        "./draft",
        "--draft",
        "ngram",
        "-k",
        "1,2",
        "--measure-top",
        "1",
        *TINY,
    ),
}


def stored_lines(root: Path) -> bytes:
    """What is stored of the only run there, without a line that is cut short."""
    files = list(root.glob("*/records.jsonl"))
    assert len(files) < 2
    content = files[0].read_bytes() if files else b""
    return content[: content.rfind(b"\n") + 1]


def kill_in(arguments, cwd, root, num_lines, delay_s):
    """Run the command until it has stored so many lines more, and kill it a moment later.

    A few lines later it waits to be killed: however late this process sees the lines, no number
    of kills comes to the end of the run. Without `num_lines` it is killed once all is measured.
    """
    before = stored_lines(root).count(b"\n")
    most = None if num_lines is None else num_lines + LATE
    patience_ends_s = time.monotonic() + PATIENCE_S
    with session(*arguments, cwd=cwd, most_records=most) as running:
        while running.process.is_alive() and time.monotonic() < patience_ends_s:
            now = stored_lines(root)
            if num_lines is None and b'{"type":"done"' in now:
                break
            if num_lines is not None and now.count(b"\n") >= before + num_lines:
                break
            time.sleep(0.002)
        time.sleep(delay_s)
        running.process.kill()
        running.process.join()
        assert running.process.exitcode == -9, running.err.read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "num_kills", "num_prompts"),
    [
        ("sweep-k", 1, 5),
        *(pytest.param(command, 14, 120, marks=pytest.mark.long) for command in COMMANDS),
    ],
)
def test_kills_lose_no_stored_block_and_double_none(
    command, num_kills, num_prompts, tiny, tmp_path
):
    rng = random.Random(command)
    root, kept = tmp_path / "out", tmp_path / "kept.yaml"
    prompts = write_prompts(tmp_path / "many.jsonl", [f"prompt {i}" for i in range(num_prompts)])
    out = ("--runs-dir", str(root), *(("--output", str(kept)) if command == "pair" else ()))
    start = (command, *COMMANDS[command], "-w", prompts, "--num-prompts", str(num_prompts), *out)
    resume = (command, *(("./target",) if command == "pair" else ()), *out, "--resume")

    # Also while it starts, and at last while it writes its report.
    moments = [rng.randint(1, MOST_LINES) for _ in range(num_kills)]
    if num_kills > 3:
        moments[0] = moments[num_kills // 2] = 0
        moments[-1] = None
    stored = b""
    for num_lines in moments:
        delay_s = rng.uniform(0, MOST_DELAY_S)
        kill_in(resume if stored else start, tiny, root, num_lines, delay_s)
        now = stored_lines(root)
        assert now.startswith(stored)  # what was stored before a kill is there after the next
        stored = now
        is_complete = bool(stored) and load_run("latest", root, also_empty=True).is_complete
        assert is_complete == (num_lines is None)

    last = specbench(*resume, cwd=tiny)
    assert last.is_complete, last.err
    run = load_run("latest", root)
    assert stored_lines(root).startswith(stored)
    assert run.is_complete
    explored = [block for block in run.blocks if block.purpose == "explore"]
    asked = Counter(block.prompt_id for block in explored)
    assert asked == Counter(f"p{i}" for i in range(num_prompts))
    assert all(set(block.order) == set(explored[0].order) for block in explored)
    assert len({block.block_id for block in run.blocks}) == len(run.blocks)
    answered = {(r.prompt_id, r.turn) for r in run.references}
    assert len(answered) == len(run.references) == num_prompts
    if command == "pair" and "not written" not in last.err:
        assert load_pairings(kept).all


@pytest.mark.long
def test_a_report_that_is_killed_is_there_whole_or_not_at_all(finished, tiny):
    assert finished.is_complete
    folder = load_run("latest", tiny / "reports").folder
    measured = (folder / "records.jsonl").read_bytes()
    began_s = time.monotonic()
    with session("report", cwd=tiny) as whole:
        whole.process.join(PATIENCE_S)
    took_s = time.monotonic() - began_s
    names = ("report.html", "report.md", "cells.csv")
    expected = {name: (folder / name).read_bytes() for name in names}
    rng = random.Random(0)
    for _ in range(8):
        for name in names:
            (folder / name).unlink(missing_ok=True)
        with session("report", cwd=tiny) as running:
            time.sleep(rng.uniform(0.3, 1.1) * took_s)
            running.process.kill()
            running.process.join()
        there = {path.name: path.read_bytes() for path in folder.iterdir() if path.name in names}
        assert there.items() <= expected.items()
        assert (folder / "records.jsonl").read_bytes() == measured
    assert specbench("report", cwd=tiny, in_full=True).code == 0
    assert {name: (folder / name).read_bytes() for name in names} == expected
