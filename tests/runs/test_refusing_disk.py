import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from specbench.errors import StoreError
from specbench.runs import create_run, load_run
from tests.full_disk import file_size_limit
from tests.runs.stored_examples import block, run

RUN_ID = run().run_id


@contextmanager
def as_nobody() -> Iterator[None]:
    """Root may write into read-only folders; nobody else may."""
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
        writer.append(block("b"))  # there is room again
    assert load_run(RUN_ID, tmp_path).blocks == (block("a"), block("b"))


def test_a_disk_that_is_full_from_the_start_is_a_store_error(tmp_path: Path):
    with file_size_limit(10), pytest.raises(StoreError, match=f"{RUN_ID}.*; raise the limit"):
        create_run(tmp_path, run())
    assert list(tmp_path.iterdir()) == []


def test_a_read_only_folder_is_named(tmp_path: Path):
    tmp_path.chmod(0o555)
    with as_nobody(), pytest.raises(StoreError, match="Permission denied"):
        create_run(tmp_path, run())
