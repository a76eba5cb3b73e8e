"""Today's values are the expected ones, family by family."""

from importlib import import_module
from pathlib import Path

import pytest

from tests.goldens import FAMILIES, assert_equal


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_has_its_expected_values(family: str, tmp_path: Path) -> None:
    assert_equal(family, import_module(f"tests.goldens.{family}").all_facts(tmp_path))
