"""`kill -9` at random moments of a sweep, then `--resume`: nothing lost, nothing doubled."""

import random
import time
from collections import Counter

import pytest

from specbench.bench.planning import plan_targets
from specbench.inputs.config import load_pairings
from specbench.runs import load_run
from tests.bench.fake_runs import write_prompts
from tests.cli.sessions import session

MOST_LINES = 15  # before a kill
LATE = 4  # lines that are stored at most until the kill comes
PATIENCE_S = 300.0


def complete_lines(path):
    content = path.read_bytes() if path.exists() else b""
    return content[: content.rfind(b"\n") + 1]


def kill_in(arguments, tiny, records, num_lines, delay_s):
    """Run the command until the file has grown by so many lines, and kill it a moment later.

    A few lines later it waits to be killed: however late this process sees the lines, ten
    kills do not come to the end of the sweep.
    """
    before = complete_lines(records()).count(b"\n") if records() else 0
    patience_ends_s = time.monotonic() + PATIENCE_S
    with session(*arguments, cwd=tiny, most_records=num_lines + LATE) as running:
        while running.process.is_alive() and time.monotonic() < patience_ends_s:
            path = records()
            if path and complete_lines(path).count(b"\n") >= before + num_lines:
                break
            time.sleep(0.002)
        time.sleep(delay_s)
        running.process.kill()
        running.process.join()
        assert running.process.exitcode == -9, running.err.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("num_kills", [2, pytest.param(10, marks=pytest.mark.long)])
def test_kills_lose_no_stored_block_and_double_none(num_kills, tiny, tmp_path):
    rng = random.Random(0)
    prompts = write_prompts(tmp_path / "many.jsonl", [f"prompt {i}" for i in range(15)])
    sizes = ("--prompts", "15", "--repeats", "2", "--max-new-tokens", "8", "--threads", "1")
    start = ("sweep-k", "tiny/draft", "-k", "0..2", "-w", prompts, *sizes, "--device", "cpu")
    out = ("--out", str(tmp_path / "out"))

    def records():
        return next((tmp_path / "out").glob("*/records.jsonl"), None)

    stored = b""
    for kill in range(num_kills):
        arguments = (*start, *out) if kill == 0 else ("sweep-k", *out, "--resume")
        kill_in(arguments, tiny, records, rng.randint(1, MOST_LINES), rng.uniform(0, 0.05))
        now = complete_lines(records())
        assert now.startswith(stored)  # what was stored before a kill is there after the next
        stored = now
    assert not load_run("latest", tmp_path / "out").is_complete

    with session("sweep-k", *out, "--resume", cwd=tiny) as last:
        last.process.join(PATIENCE_S)
        assert last.process.exitcode == 0, last.err.read_text()
    run = load_run("latest", tmp_path / "out")
    assert complete_lines(records()).startswith(stored)
    assert run.is_complete
    pairings = load_pairings(tiny / "pairings.yaml").select(run.run.settings.workload.pairings)
    (plan,) = plan_targets(run.run.settings, pairings, lambda _: "float32")
    planned = Counter(block.id for block in plan.explore_blocks())
    assert len(planned) == 30
    assert Counter(b.block_id for b in run.blocks if b.purpose == "explore") == planned
    assert len({block.block_id for block in run.blocks}) == len(run.blocks)
    assert len({(r.prompt_id, r.turn) for r in run.references}) == len(run.references) == 15
