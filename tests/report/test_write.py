"""Report files on disk."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from specbench.errors import StoreError
from specbench.frames.tables import TABLES, describe
from specbench.report import write
from specbench.report.document import build_document
from specbench.report.write import TEXTS, write_report
from specbench.runs import StoredRun
from tests.report.stored_runs import SMALL, stored_run


@pytest.fixture(scope="module")
def stored() -> StoredRun:
    return stored_run(replace(SMALL, drafters=("draft",)))


def written_report(runs: list[StoredRun], formats: Iterable[str], folder: Path) -> tuple[Path, ...]:
    return write_report(runs, [build_document(run) for run in runs], formats, folder)


def test_each_format_is_a_file_in_the_folder(stored: StoredRun, tmp_path: Path) -> None:
    paths = written_report([stored], TEXTS, tmp_path)
    assert [path.name for path in paths] == ["report.html", "report.md", "cells.csv"]
    assert sorted(tmp_path.iterdir()) == sorted(paths)
    assert all(path.stat().st_size > 1000 for path in paths)


def test_only_the_requested_report_formats_are_written(stored: StoredRun, tmp_path: Path) -> None:
    written_report([stored, stored], ["csv"], tmp_path)
    (path,) = tmp_path.iterdir()
    assert len(path.read_text(encoding="utf-8").splitlines()) == 1 + 2 * 8


def test_parquet_is_a_file_per_table(
    stored: StoredRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # pyarrow is an extra: in its place the columns as text.
    monkeypatch.setattr(write, "to_parquet", lambda table: " ".join(table.columns).encode())
    paths = written_report([stored], ["parquet"], tmp_path)
    assert [path.name for path in paths] == [f"{name}.parquet" for name in TABLES]
    for path, table in zip(paths, TABLES, strict=True):
        assert path.read_text().split() == describe(table)["name"].tolist()


def test_a_report_file_is_replaced_atomically(stored: StoredRun, tmp_path: Path) -> None:
    (path,) = written_report([stored], ["csv"], tmp_path)
    first = path.read_text(encoding="utf-8")
    path.write_text("an older report", encoding="utf-8")
    reader = tmp_path / "still-reading"
    reader.hardlink_to(path)
    written_report([stored], ["csv"], tmp_path)
    assert path.read_text(encoding="utf-8") == first
    assert reader.read_text(encoding="utf-8") == "an older report"  # not written over in place


def test_a_disk_error_names_the_path_and_leaves_no_partial_file(
    stored: StoredRun, tmp_path: Path
) -> None:
    (tmp_path / "cells.csv").mkdir()  # cannot be replaced by a file
    with pytest.raises(StoreError, match=r"cells\.csv"):
        written_report([stored], ["csv"], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["cells.csv"]
    with pytest.raises(StoreError, match="cannot write"):
        written_report([stored], ["csv"], tmp_path / "absent")
