"""Every broken file raises the right error with file and line, and nothing else."""

from pathlib import Path

import pytest

from specbench.errors import ConfigError, WorkloadError
from specbench.inputs.config import load_pairings
from specbench.inputs.workloads import load_workload
from tests.broken_inputs import BrokenInput
from tests.broken_pairings import BROKEN_PAIRINGS
from tests.broken_workloads import BROKEN_WORKLOADS


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def write(broken: BrokenInput, folder: Path) -> None:
    for name, content in broken.files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)


@pytest.mark.parametrize("broken", BROKEN_PAIRINGS, ids=lambda broken: broken.name)
def test_a_broken_pairings_file_names_file_line_and_reason(
    broken: BrokenInput, empty_folder: Path
) -> None:
    write(broken, empty_folder)
    with pytest.raises(ConfigError) as caught:
        load_pairings()
    assert str(caught.value).startswith(broken.place)
    assert broken.says in str(caught.value)


@pytest.mark.parametrize("broken", BROKEN_WORKLOADS, ids=lambda broken: broken.name)
def test_a_broken_workload_names_file_line_and_reason(
    broken: BrokenInput, empty_folder: Path
) -> None:
    write(broken, empty_folder)
    with pytest.raises(WorkloadError) as caught:
        load_workload(broken.workload or "")
    assert str(caught.value).startswith(broken.place)
    assert broken.says in str(caught.value)


def test_there_are_more_than_fifty_and_no_two_have_one_name() -> None:
    names = [f"{broken.workload}/{broken.name}" for broken in BROKEN_PAIRINGS + BROKEN_WORKLOADS]
    assert len(set(names)) == len(names) > 50


def test_a_pairings_file_that_is_a_folder_is_refused(empty_folder: Path) -> None:
    (empty_folder / "pairings.yaml").mkdir()
    with pytest.raises(ConfigError, match=r"pairings\.yaml: cannot be read: Is a directory"):
        load_pairings()


def test_a_pairings_file_that_is_not_there_is_refused(empty_folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"mine\.yaml: cannot be read: No such file"):
        load_pairings(empty_folder / "mine.yaml")
