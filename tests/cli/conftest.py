"""The tiny pair and a finished run of it, which tests that only read share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.fake_runs import write_prompts
from tests.cli.calls import CommandResult, specbench
from tests.tiny_pair import write_pair

SMALL = ("--num-prompts", "6", "--max-new-tokens", "12", "--threads", "1", "--device", "cpu")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with the tiny pair, its pairings.yaml and two prompt files."""
    folder = tmp_path_factory.mktemp("tiny")
    write_pair(folder)
    write_prompts(folder / "talk.jsonl", [["Hello", "And then?"], "Name a colour"])
    return folder


@pytest.fixture(scope="session")
def finished(tiny: Path) -> CommandResult:
    """`specbench run` on the tiny pair, through to its answer."""
    return specbench("run tiny -w prompts.jsonl -k 2", *SMALL, cwd=tiny, in_full=True)


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path
