"""Faults while a run is written: a second process, a full or read-only disk, a killed process."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from specbench.errors import StoreError
from specbench.runs import create_run, load_run, resume_run
from tests.full_disk import file_size_limit
from tests.runs.stored_examples import block, run

RUN_ID = run().run_id
CHILD = Path(__file__).with_name("writing_child.py")


def test_a_second_writer_gets_the_id_of_the_writing_process(tmp_path: Path):
    message = f"process {os.getpid()} is writing this run"
    with create_run(tmp_path, run()) as store:
        store.append(block("a"))
        with pytest.raises(StoreError, match=message):
            resume_run(tmp_path, RUN_ID)
        other = subprocess.run(
            [sys.executable, CHILD, tmp_path, RUN_ID, "0"],
            capture_output=True,
            text=True,
        )
        store.append(block("b"))

    assert message in other.stderr
    assert [b.block_id for b in load_run(RUN_ID, tmp_path).blocks] == ["a", "b"]
    resume_run(tmp_path, RUN_ID).close()


def test_the_lock_of_a_killed_process_is_taken_over(tmp_path: Path):
    create_run(tmp_path, run()).close()
    (tmp_path / RUN_ID / "lock").write_text("99999999")

    with (
        resume_run(tmp_path, RUN_ID),
        pytest.raises(StoreError, match=f"process {os.getpid()} is writing"),
    ):
        resume_run(tmp_path, RUN_ID)


def test_a_failed_resume_releases_the_lock(tmp_path: Path):
    create_run(tmp_path, run()).close()
    document = tmp_path / RUN_ID / "run.json"
    intact = document.read_bytes()
    document.write_bytes(b"{")
    with pytest.raises(StoreError, match=r"run\.json: damaged"):
        resume_run(tmp_path, RUN_ID)
    document.write_bytes(intact)

    resume_run(tmp_path, RUN_ID).close()


@contextmanager
def as_another_user() -> Iterator[None]:
    """Root may write into read-only folders, other users may not."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


def test_a_full_disk_keeps_finished_blocks_and_the_error_says_how_to_resume(tmp_path: Path):
    with create_run(tmp_path, run()) as writer:
        writer.append(block("a"))
        before = (writer.folder / "records.jsonl").read_bytes()
        with (
            file_size_limit(len(before) + 100),
            pytest.raises(StoreError, match="cannot write") as caught,
        ):
            writer.append(block("b"))

        assert "blocks (1)" in str(caught.value)
        assert f"resume with: specbench sweep-k --runs-dir {tmp_path} --resume {RUN_ID}" in str(
            caught.value
        )
        assert (writer.folder / "records.jsonl").read_bytes() == before
        assert writer.finished_blocks == {"a"}
        writer.append(block("b"))  # there is space again
    assert load_run(RUN_ID, tmp_path).blocks == (block("a"), block("b"))


def test_a_disk_that_is_full_from_the_start_is_a_store_error(tmp_path: Path):
    with file_size_limit(10), pytest.raises(StoreError, match=f"{RUN_ID}.*; raise the limit"):
        create_run(tmp_path, run())
    assert list(tmp_path.iterdir()) == []


def test_a_read_only_folder_is_a_store_error(tmp_path: Path):
    tmp_path.chmod(0o555)
    with as_another_user(), pytest.raises(StoreError, match="Permission denied"):
        create_run(tmp_path, run())


def kill_writer(root: Path, first: int, *, after: int, delay_s: float) -> list[str]:
    """Kill a process `delay_s` after it appended its `after`-th block; the ids it printed."""
    command = [sys.executable, CHILD, root, RUN_ID, str(first)]
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
def test_kills_neither_lose_nor_repeat_a_finished_block(num_kills: int, tmp_path: Path):
    rng = random.Random(0)
    create_run(tmp_path, run()).close()
    promised: list[str] = []

    for _ in range(num_kills):
        with resume_run(tmp_path, RUN_ID) as writer:
            num_stored = len(writer.finished_blocks)
        promised += kill_writer(
            tmp_path, num_stored, after=rng.randint(1, 4), delay_s=rng.uniform(0, 0.02)
        )

    stored = [block.block_id for block in load_run(run().run_id, tmp_path).blocks]
    assert set(promised) <= set(stored)
    assert stored == [f"b{number}" for number in range(len(stored))]  # none twice, no gap
    assert len(stored) - len(promised) <= num_kills  # at most one unprinted block per kill
