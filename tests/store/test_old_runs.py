"""Runs of schema 4, whose plans were lowered when they were read: they load as they did then."""

import json
from pathlib import Path

import pytest

from specbench.report.document import build_document
from specbench.store import load_run

RUNS = Path(__file__).parent / "runs_of_schema_4"


@pytest.mark.parametrize("name", ["default-k", "default-range"])
def test_a_run_of_schema_4_says_what_it_said(name: str) -> None:
    expected = json.loads((RUNS / name / "expected.json").read_text())
    document = build_document(load_run(RUNS / name, RUNS))
    assert {cell.key.id: cell.num_requests for cell in document.cells} == expected["cells"]
    assert [decision.sentence for decision in document.decisions] == expected["sentences"]
    assert list(document.warnings) == expected["warnings"]
    assert [key.id for key in document.missing] == expected["missing"]
