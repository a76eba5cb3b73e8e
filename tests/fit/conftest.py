"""The tiny target with a drafter of every method."""

import pytest

from tests.fit.tiny_drafters import TinyDrafters


@pytest.fixture(scope="package")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyDrafters:
    return TinyDrafters(tmp_path_factory.mktemp("tiny"))
