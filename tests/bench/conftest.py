"""What every test of the bench shares."""

from collections.abc import Iterator

import pytest

from specbench.bench import passes


@pytest.fixture(scope="package", autouse=True)
def time_forwards_of_one_block() -> Iterator[None]:
    """Forwards are timed beside the first block of a cell, and not beside eight."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passes, "BLOCKS", 1)
        yield
