"""One sdist, one wheel and one environment with it for all tests of this folder."""

from pathlib import Path

import pytest

from tests.installed.environment import BuiltFiles, build, installed


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> BuiltFiles:
    return build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="session")
def bin_folder(built: BuiltFiles, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed(built.wheel, tmp_path_factory.mktemp("environment") / "venv")
