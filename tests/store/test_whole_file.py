"""A file is replaced whole; what is no file is never replaced."""

from pathlib import Path

import pytest

from specbench.whole_file import write_whole


def test_a_file_is_replaced_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    place = tmp_path / "a.json"
    for text in ("one", "two"):
        write_whole(place, text)
        assert place.read_text() == text
    assert list(tmp_path.iterdir()) == [place]


def test_a_full_device_is_an_error_and_still_a_device() -> None:
    full = Path("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        write_whole(full, "text")
    assert full.is_char_device()
