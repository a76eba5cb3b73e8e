"""Today's values are the expected ones, family by family, and every feature has a test."""

import ast
import json
from importlib import import_module
from pathlib import Path

import pytest

from tests.goldens import FAMILIES, assert_equal, read
from tests.goldens.decoding import CASES, Decoding

ROOT = Path(__file__).parents[2]
FEATURES = Path(__file__).with_name("features.json")


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "decoding"])
def test_golden_values_are_unchanged(family: str, tmp_path: Path) -> None:
    assert_equal(family, import_module(f"tests.goldens.{family}").all_facts(tmp_path))


@pytest.fixture(scope="module")
def decoding(tmp_path_factory: pytest.TempPathFactory) -> Decoding:
    return Decoding(tmp_path_factory.mktemp("decoding"))


@pytest.mark.sampled(one_in=24, every=["k"])
@pytest.mark.slow
@pytest.mark.parametrize(("name", "k"), CASES)
def test_decoded_ids_and_counts_are_unchanged(decoding: Decoding, name: str, k: int) -> None:
    assert_equal("decoding", decoding.facts(name, k), name, f"K={k}")


def test_golden_decoding_values_cover_every_case() -> None:
    expected = {(name, k) for name, by_k in read("decoding").items() for k in by_k}
    assert expected == {(name, f"K={k}") for name, k in CASES}


def test_every_feature_of_a_page_names_a_test_that_exists() -> None:
    features = json.loads(FEATURES.read_text(encoding="utf-8"))
    assert [page for page in features if not (ROOT / page).is_file()] == []
    missing = {
        f"{page}: {feature}": test
        for page, tests in features.items()
        for feature, test in tests.items()
        if not exists(test)
    }
    assert missing == {}


def exists(test: str) -> bool:
    """Whether a test as `tests/FILE.py::NAME` is in its file; nothing is imported."""
    path, _, name = test.partition("::")
    file = ROOT / path
    if not file.is_file():
        return False
    functions = [
        node.name
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef)
    ]
    return name.startswith("test_") and name in functions
