import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from specbench.runs import create_run, load_run, resume_run
from tests.runs.stored_examples import run

CHILD = Path(__file__).with_name("writing_child.py")


def kill_writer(root: Path, first: int, *, after: int, delay_s: float) -> list[str]:
    """Let a process append blocks, kill it `delay_s` past its `after`-th; the ids it printed."""
    command = [sys.executable, CHILD, root, run().run_id, str(first)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        printed = [child.stdout.readline().strip() for _ in range(after)]
        time.sleep(delay_s)
        child.send_signal(signal.SIGKILL)
        printed += child.stdout.read().split()
    assert child.returncode == -signal.SIGKILL
    return printed


@pytest.mark.slow
@pytest.mark.parametrize("num_kills", [3, pytest.param(10, marks=pytest.mark.long)])
def test_kills_lose_no_finished_block_and_double_none(num_kills: int, tmp_path: Path):
    rng = random.Random(0)
    create_run(tmp_path, run()).close()
    promised: list[str] = []

    for _ in range(num_kills):
        with resume_run(tmp_path, run().run_id) as writer:
            num_stored = len(writer.finished_blocks)
        promised += kill_writer(
            tmp_path, num_stored, after=rng.randint(1, 4), delay_s=rng.uniform(0, 0.02)
        )

    stored = [block.block_id for block in load_run(run().run_id, tmp_path).blocks]
    assert set(promised) <= set(stored)
    assert stored == [f"b{number}" for number in range(len(stored))]  # none twice, no gap
    assert len(stored) - len(promised) <= num_kills  # at most one unprinted block a kill
