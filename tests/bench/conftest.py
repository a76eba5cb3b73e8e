"""Fixtures of all tests of the bench."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from specbench.bench import passes
from tests.bench.tiny_runs import write_tiny


@pytest.fixture(scope="package", autouse=True)
def time_forwards_of_one_block() -> Iterator[None]:
    """Forwards are timed next to the first block of a cell only, instead of the first eight."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passes, "BLOCKS", 1)
        yield


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny pair."""
    return write_tiny(tmp_path_factory.mktemp("tiny"))
