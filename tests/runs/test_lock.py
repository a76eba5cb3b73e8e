"""One process writes a run; who comes second is told, and what a dead one left is taken over."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from specbench.errors import StoreError
from specbench.runs import create_run, load_run, resume_run
from tests.runs.stored_examples import block, run

RUN_ID = run().run_id


def test_a_second_writer_gets_the_id_of_the_writing_process(tmp_path: Path):
    message = f"process {os.getpid()} is writing this run"
    with create_run(tmp_path, run()) as ledger:
        ledger.append(block("a"))
        with pytest.raises(StoreError, match=message):
            resume_run(tmp_path, RUN_ID)
        other = subprocess.run(
            [sys.executable, Path(__file__).with_name("writing_child.py"), tmp_path, RUN_ID, "0"],
            capture_output=True,
            text=True,
        )
        ledger.append(block("b"))

    assert message in other.stderr
    assert [b.block_id for b in load_run(RUN_ID, tmp_path).blocks] == ["a", "b"]
    resume_run(tmp_path, RUN_ID).close()


def test_the_lock_that_a_killed_process_left_is_taken_over(tmp_path: Path):
    create_run(tmp_path, run()).close()
    (tmp_path / RUN_ID / "lock").write_text("99999999")

    with (
        resume_run(tmp_path, RUN_ID),
        pytest.raises(StoreError, match=f"process {os.getpid()} is writing"),
    ):
        resume_run(tmp_path, RUN_ID)


def test_a_failed_resume_leaves_the_run_free(tmp_path: Path):
    create_run(tmp_path, run()).close()
    document = tmp_path / RUN_ID / "run.json"
    intact = document.read_bytes()
    document.write_bytes(b"{")
    with pytest.raises(StoreError, match=r"run\.json: damaged"):
        resume_run(tmp_path, RUN_ID)
    document.write_bytes(intact)

    resume_run(tmp_path, RUN_ID).close()
