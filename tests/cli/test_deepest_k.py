"""A plan is final: how far heads draft is in `--dry-run` as it is in the run, with the reason."""

import json
from pathlib import Path
from typing import Any

import pytest

from specbench.runs import load_run
from tests.cli.calls import specbench

pytestmark = pytest.mark.slow  # whole runs

REASON = "demo/medusa cannot draft K = 5 or more tokens ahead: these K were left out"
QUICK = ("--prompts", "1", "--max-new-tokens", "6", "--device", "cpu", "--workload", "chat")


def ks(plan: dict[str, Any]) -> list[int]:
    return [cell["num_speculative_tokens"] for cell in plan["cells"]]


@pytest.mark.long
def test_a_default_range_ends_where_the_head_does(tmp_path: Path) -> None:
    words = ("sweep-k", "demo/medusa", *QUICK)
    shown = specbench(*words, "--dry-run", cwd=tmp_path)
    assert REASON in " ".join(shown.out.split())
    plan = json.loads(specbench(*words, "--dry-run", "--json", cwd=tmp_path).out)
    assert ks(plan) == [0, 1, 2, 3, 4]
    assert plan["warnings"] == [REASON]

    ran = specbench(*words, "--json", cwd=tmp_path)
    assert ran.is_complete, ran.err
    stored = load_run("latest", tmp_path / "reports")
    assert [key.draft.k for key in stored.run.keys] == ks(plan)
    assert REASON in json.loads(ran.out)["warnings"]
    (*_, engine) = stored.engines
    assert engine.max_k == {"medusa": 4}


@pytest.mark.long
def test_a_k_that_was_asked_for_is_planned_and_fails_as_ever(tmp_path: Path) -> None:
    words = ("run", "demo/medusa", "-k", "4,5", *QUICK)
    plan = json.loads(specbench(*words, "--dry-run", "--json", cwd=tmp_path).out)
    assert ks(plan) == [0, 4, 5]
    assert plan["warnings"] == []
    ran = specbench(*words, cwd=tmp_path)
    assert ran.code == 4
    stored = load_run("latest", tmp_path / "reports")
    (failure,) = stored.failures
    assert failure.reason == "medusa K=5: medusa drafts at most 4 tokens ahead; choose -k 4"
    assert {key.draft.k for key in stored.run.keys} == {0, 4, 5}


def test_a_run_that_an_earlier_specbench_began_goes_on(tmp_path: Path) -> None:
    """Its plan has the K that the head cannot draft, and no engine had said so yet."""
    words = ("sweep-k", "demo/medusa", *QUICK)
    assert specbench(*words, cwd=tmp_path).is_complete
    folder = load_run("latest", tmp_path / "reports").folder
    run = json.loads((folder / "run.json").read_text())
    deepest = run["cells"][-1]
    deeper = [json.loads(json.dumps(deepest)) for _ in range(5, 9)]
    for k, cell in enumerate(deeper, 5):
        cell["key"]["num_speculative_tokens"] = k
    cells = [{**cell, "is_default_k": False} for cell in (*run["cells"], *deeper)]
    old = {**run, "schema_version": 4, "cells": cells, "warnings": []}
    (folder / "run.json").write_text(json.dumps(old))
    (folder / "records.jsonl").write_bytes(b"")

    again = specbench("sweep-k", "--resume", folder.name, "--json", cwd=tmp_path)
    assert again.is_complete, again.err
    document = json.loads(again.out)
    assert sorted({c["num_speculative_tokens"] for c in document["cells"]}) == [0, 1, 2, 3, 4]
    assert document["warnings"].count(REASON) == 1
