"""A file is replaced as a whole; only files are replaced."""

import os
import time
from pathlib import Path

import pytest

from specbench.whole_file import replaced, write_new, write_whole
from tests.full_disk import file_size_limit


def test_a_file_is_replaced_without_leftovers(tmp_path: Path) -> None:
    place = tmp_path / "a.json"
    for text in ("one", "two"):
        write_whole(place, text)
        assert place.read_text() == text
    assert list(tmp_path.iterdir()) == [place]


def test_the_next_writer_removes_files_of_killed_writers(tmp_path: Path) -> None:
    killed, at_work, of_another = (
        tmp_path / f".{name}.0123abcd.tmp" for name in ("a.json", "a.json.1", "b.json")
    )
    for draft in (killed, at_work, of_another):
        draft.write_text("half")
    at_work = at_work.rename(tmp_path / ".a.json.89ab0123.tmp")
    long_ago = time.time() - 3600
    os.utime(killed, (long_ago, long_ago))
    os.utime(of_another, (long_ago, long_ago))
    write_whole(tmp_path / "a.json", "one")
    assert sorted(tmp_path.iterdir()) == sorted([tmp_path / "a.json", at_work, of_another])


def test_a_disk_that_fills_up_leaves_the_old_file(tmp_path: Path) -> None:
    place = tmp_path / "a.json"
    write_whole(place, "two")
    with file_size_limit(3), pytest.raises(OSError, match="too large"):
        write_whole(place, "longer")
    assert place.read_text() == "two"
    assert list(tmp_path.iterdir()) == [place]


@pytest.mark.parametrize("write", [write_whole, write_new])
def test_a_disk_that_is_full_leaves_no_part_of_a_new_file(tmp_path: Path, write) -> None:
    with file_size_limit(3), pytest.raises(OSError, match="too large") as full:
        write(tmp_path / "a.json", "longer")
    assert full.value.filename == str(tmp_path / "a.json")
    assert list(tmp_path.iterdir()) == []


def test_two_concurrent_writers_do_not_mix(tmp_path: Path) -> None:
    place = tmp_path / "a.json"
    with replaced(place) as first, replaced(place) as other:
        first.write(b"one, which is long")
        other.write(b"other")
    assert place.read_text() == "one, which is long"
    assert list(tmp_path.iterdir()) == [place]


def test_a_new_file_does_not_replace_an_existing_one(tmp_path: Path) -> None:
    place = tmp_path / "a.json"
    write_new(place, "one")
    with pytest.raises(FileExistsError, match=r"a\.json"):
        write_new(place, "two")
    assert place.read_text() == "one"


def test_writing_to_a_full_device_raises_and_keeps_the_device() -> None:
    full = Path("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        write_whole(full, "text")
    assert full.is_char_device()
