"""What every test of the bench shares."""

import os
from collections.abc import Iterator

import pytest

from specbench.bench import passes


@pytest.fixture(scope="package", autouse=True)
def forwards_beside_one_block() -> Iterator[None]:
    """Forwards are timed beside the first block of a cell, and not beside eight."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passes, "BLOCKS", 1)
        yield


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch):
    """These runs store thousands of records; tests/runs sees to what a power cut leaves."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
