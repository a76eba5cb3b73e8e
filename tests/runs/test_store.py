import dataclasses
import errno
import json
import os
import re
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from specbench.errors import StoreError
from specbench.runs import (
    RunStore,
    create_run,
    dated_later,
    load_run,
    new_run_id,
    resume_run,
)
from tests.runs.stored_examples import (
    BLOCK,
    ENVIRONMENT,
    EVERY_RECORD,
    MEMORY,
    REFERENCE,
    block,
    run,
)

RUN_ID = run().run_id


def records_file(store: RunStore) -> Path:
    return store.folder / "records.jsonl"


def test_the_run_is_on_disk_before_the_first_measurement(tmp_path: Path):
    with create_run(tmp_path / "reports", run()) as store:
        on_disk = json.loads((store.folder / "run.json").read_text())

        assert on_disk["run_id"] == RUN_ID
        assert store.folder == tmp_path / "reports" / RUN_ID
        assert {file.name for file in store.folder.iterdir()} == {
            "run.json",
            "records.jsonl",
            "lock",
        }


def test_a_record_is_on_disk_when_append_returns(tmp_path: Path):
    with create_run(tmp_path, run()) as store:
        for number, record in enumerate(EVERY_RECORD, start=1):
            store.append(record)

            assert records_file(store).read_bytes().count(b"\n") == number


def test_every_record_is_on_disk_before_append_returns(tmp_path: Path, monkeypatch):
    """A power cut leaves what was synced; reading back would show only the kernel's pages."""
    synced: list[int] = []
    fsync = os.fsync

    def record_fsync(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_size)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record_fsync)
    with create_run(tmp_path, run()) as store:
        assert (store.folder / "run.json").stat().st_size in synced
        for record in EVERY_RECORD:
            synced.clear()
            store.append(record)
            assert synced == [records_file(store).stat().st_size]


def test_a_resumed_run_knows_its_finished_blocks_and_continues(tmp_path: Path):
    with create_run(tmp_path, run()) as store:
        store.append(block("a"))
        store.append(MEMORY)

    with resume_run(tmp_path, RUN_ID) as store:
        assert store.run == run()
        assert store.finished_blocks == {"a"}
        store.append(ENVIRONMENT)
        store.append(block("b"))
        assert store.finished_blocks == {"a", "b"}

    stored = load_run(RUN_ID, tmp_path)
    assert stored.blocks == (block("a"), block("b"))
    assert stored.memory == (MEMORY,)
    assert stored.sessions == (ENVIRONMENT,)


def test_reference_texts_are_available_before_and_after_a_resume(tmp_path: Path):
    later = dataclasses.replace(REFERENCE, turn=1)
    with create_run(tmp_path, run()) as store:
        store.append(REFERENCE)
        assert store.stored.references == (REFERENCE,)

    with resume_run(tmp_path, RUN_ID) as store:
        store.append(later)
        assert store.stored.references == (REFERENCE, later)


def test_memory_equals_the_disk_after_every_record(tmp_path: Path):
    with create_run(tmp_path, run()) as store:
        assert store.stored == load_run(RUN_ID, tmp_path)
        for record in EVERY_RECORD:
            store.append(record)
            assert store.stored == load_run(RUN_ID, tmp_path)
        store.finish()
        assert store.stored.is_complete

    with resume_run(tmp_path, RUN_ID) as store:
        assert store.stored == load_run(RUN_ID, tmp_path)


def test_a_record_that_the_disk_refused_is_not_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def raise_no_space(descriptor: int) -> None:  # noqa: ARG001
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with create_run(tmp_path, run()) as store:
        store.append(block("a"))
        monkeypatch.setattr(os, "fsync", raise_no_space)
        with pytest.raises(StoreError, match="No space left"):
            store.append(block("b"))
        monkeypatch.undo()
        assert store.stored == load_run(RUN_ID, tmp_path)
        assert store.finished_blocks == {"a"}


def test_a_block_is_never_stored_twice(tmp_path: Path):
    with create_run(tmp_path, run()) as store:
        store.append(block("a"))
        with pytest.raises(ValueError, match="'a' is stored"):
            store.append(block("a"))
    with (
        resume_run(tmp_path, RUN_ID) as store,
        pytest.raises(ValueError, match="'a' is stored"),
    ):
        store.append(block("a"))

    assert len(load_run(RUN_ID, tmp_path).blocks) == 1


def test_a_finished_run_is_complete_until_it_continues(tmp_path: Path):
    with create_run(tmp_path, run()) as store:
        store.append(block("a"))
        assert not load_run(RUN_ID, tmp_path).is_complete
        store.finish()
        store.finish()  # says nothing new
        assert load_run(RUN_ID, tmp_path).is_complete
        assert records_file(store).read_bytes().count(b"\n") == 2

    with resume_run(tmp_path, RUN_ID) as store:
        store.append(block("b"))
        assert not load_run(RUN_ID, tmp_path).is_complete
        store.finish()
    assert load_run(RUN_ID, tmp_path).is_complete


def test_only_a_truncated_last_line_is_dropped(tmp_path: Path):
    with create_run(tmp_path, run()) as store:
        store.append(block("a"))
        store.append(block("b"))
        file = records_file(store)
    whole = file.read_bytes()
    first_line = whole.index(b"\n") + 1

    for cut in range(first_line, len(whole), 7):
        file.write_bytes(whole[:cut])
        assert load_run(RUN_ID, tmp_path).blocks == (block("a"),)
        assert file.stat().st_size == cut  # reading does not repair the file
        with resume_run(tmp_path, RUN_ID) as store:
            assert store.finished_blocks == {"a"}
            store.append(block("b"))
        assert file.read_bytes() == whole


@pytest.mark.parametrize("tail", [b'{"type":"blo\0\0\0\0\n', b"\0\0\0\0", b"\n"])
def test_a_last_line_that_is_not_json_is_dropped(tmp_path: Path, tail: bytes):
    with create_run(tmp_path, run()) as store:
        store.append(block("a"))
        file = records_file(store)
    whole = file.read_bytes()
    file.write_bytes(whole + tail)

    with resume_run(tmp_path, RUN_ID) as store:
        assert store.finished_blocks == {"a"}
    assert file.read_bytes() == whole


@pytest.mark.parametrize(
    ("lines", "damaged_line"),
    [
        (("a", b'{"type":"block","da\n', "b"), 2),
        (("a", b'{"type":"block","da\n', b'{"type"'), 2),
        ((b"\n", "a"), 1),
        (("a", "b", b'{"type":"block","data":{}}\n'), 3),
        (("a", "b", "a"), 3),
    ],
)
def test_damage_that_no_kill_can_cause_names_file_and_line(
    tmp_path: Path, lines: tuple[str | bytes, ...], damaged_line: int
):
    with create_run(tmp_path, run()) as store:
        for name in ("a", "b"):
            store.append(block(name))
        file = records_file(store)
    first, second = file.read_bytes().splitlines(keepends=True)
    content = b"".join({"a": first, "b": second}.get(line, line) for line in lines)
    file.write_bytes(content)

    where = re.escape(f"records.jsonl:{damaged_line}: damaged:")
    with pytest.raises(StoreError, match=where):
        load_run(RUN_ID, tmp_path)
    with pytest.raises(StoreError, match=where):
        resume_run(tmp_path, RUN_ID)
    assert file.read_bytes() == content


def test_a_run_id_cannot_be_used_twice(tmp_path: Path):
    create_run(tmp_path, run()).close()

    with pytest.raises(StoreError, match="this run exists"):
        create_run(tmp_path, run())


@pytest.mark.parametrize("run_id", ["../up", "/abs", "a/b", "..", ".hidden", "", "latest", "a\nb"])
def test_a_run_id_cannot_leave_its_root(tmp_path: Path, run_id: str):
    root = tmp_path / "reports"
    with pytest.raises(StoreError, match="a run id"):
        create_run(root, run(run_id))
    assert not root.exists()

    create_run(tmp_path / "up", run("run-1")).close()
    with pytest.raises(StoreError, match=r"no run '\.\./up/run-1'"):
        resume_run(root, "../up/run-1")


def test_a_record_that_would_not_read_back_is_not_written(tmp_path: Path):
    with create_run(tmp_path, run()) as store:
        with pytest.raises(ValueError, match="cannot be stored"):
            store.append(dataclasses.replace(MEMORY, weights_bytes=float("nan")))
        store.append(BLOCK)

    assert load_run(RUN_ID, tmp_path).blocks == (BLOCK,)
    assert load_run(RUN_ID, tmp_path).memory == ()


def test_run_ids_sort_by_time_in_utc():
    noon = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
    elsewhere = noon.astimezone(timezone(timedelta(hours=-5)))

    assert new_run_id(noon) == new_run_id(elsewhere) == "20261121-120000-0000"
    ids = [new_run_id(noon + timedelta(milliseconds=n)) for n in range(0, 1002, 3)]
    assert ids == sorted(set(ids))


def test_a_run_with_a_later_date_is_found_by_its_id(tmp_path: Path):
    now = "20261121-010203-a1b2"
    for name in ("20261121-010203-ffff", now, "pinned", "20261121-010204-8888"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text("{}")
    assert dated_later(tmp_path, now) == "20261121-010204-8888"
    assert dated_later(tmp_path, "20261121-010204-0001") is None
    assert dated_later(tmp_path, "20261121-010204-ffff") is None
    assert dated_later(tmp_path / "none yet", now) is None
