"""A plan is final: the largest K of heads in `--dry-run` is that of the run, with the reason."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from specbench.runs import load_run
from tests.cli.calls import specbench

pytestmark = pytest.mark.slow  # whole runs

REASON = "demo/medusa cannot draft K=5 or more tokens ahead: these K were left out"
QUICK = ("--num-prompts", "1", "--max-new-tokens", "6", "--device", "cpu", "--workload", "chat")


def ks(plan: dict[str, Any]) -> list[int]:
    return [cell["num_speculative_tokens"] for cell in plan["cells"]]


@pytest.mark.long
def test_a_default_range_of_k_ends_at_the_heads_limit(tmp_path: Path) -> None:
    words = ("sweep-k", "demo/medusa", *QUICK)
    shown = specbench(*words, "--dry-run", cwd=tmp_path)
    assert REASON in " ".join(shown.out.split())
    plan = json.loads(specbench(*words, "--dry-run", "--json", cwd=tmp_path).out)
    assert ks(plan) == [0, 1, 2, 3, 4]
    assert [warning["text"] for warning in plan["warnings"]] == [REASON]

    ran = specbench(*words, "--json", cwd=tmp_path)
    assert ran.is_complete, ran.err
    stored = load_run("latest", tmp_path / "reports")
    assert [key.draft.k for key in stored.run.keys] == ks(plan)
    assert REASON in [warning["text"] for warning in json.loads(ran.out)["warnings"]]
    (*_, engine) = stored.engines
    assert engine.max_k == {"medusa": 4}


@pytest.mark.long
def test_a_requested_k_beyond_the_head_is_planned_and_fails(tmp_path: Path) -> None:
    words = ("run", "demo/medusa", "-k", "4,5", *QUICK)
    plan = json.loads(specbench(*words, "--dry-run", "--json", cwd=tmp_path).out)
    assert ks(plan) == [0, 4, 5]
    assert plan["warnings"] == []
    ran = specbench(*words, cwd=tmp_path)
    assert ran.code == 4
    stored = load_run("latest", tmp_path / "reports")
    (failure,) = stored.failures
    assert re.fullmatch("medusa K=5: medusa .*4 tokens .*-k 4", failure.reason)
    assert {key.draft.k for key in stored.run.keys} == {0, 4, 5}
