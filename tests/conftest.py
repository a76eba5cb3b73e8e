"""What holds for every test."""

import sys

import pytest


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """A run may set torch's threads for the process; tests that share cores must not fight."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
