"""docs/ci.md: its workflows are YAML, their commands exist, and its recipe is the measured one."""

import re
import shlex
from pathlib import Path
from typing import Any

import yaml

from benchmarks.gate_runs import BASELINE_RUNS, CANDIDATE_RUNS, PAIRING, RECIPE, TOLERANCES
from specbench.cli.check import parse_fail_on
from specbench.inputs.config import load_pairings
from specbench.shipped import shipped
from tests.cli.calls import specbench

TEXT = (Path(__file__).parents[2] / "docs" / "ci.md").read_text()
BLOCKS = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)


def commands(block: str) -> list[list[str]]:
    """Every call of specbench in a workflow, as words."""
    document: dict[Any, Any] = yaml.safe_load(block)
    scripts = [step.get("run", "") for job in document["jobs"].values() for step in job["steps"]]
    lines = [line.strip() for script in scripts for line in script.splitlines()]
    calls = [line.removeprefix("venv/bin/") for line in lines]
    called = [line.partition(" || ")[0] for line in calls if line.startswith("specbench ")]
    return [shlex.split(line) for line in called]


def test_every_command_and_option_exists(tmp_path):
    assert len(BLOCKS) == 3
    for block in BLOCKS:
        assert commands(block)
        for _, command, *words in commands(block):
            option = "--help-all" if command == "run" else "--help"
            text = specbench(command, option, cwd=tmp_path).out
            assert all(word in text for word in words if word.startswith("-")), command


def test_pairings_named_in_the_ci_docs_exist():
    file = load_pairings(shipped("pairings.yaml"))
    named = [
        w
        for block in BLOCKS
        for c in commands(block)
        for w in c
        if re.fullmatch(r"[\w.-]+/[\w.-]+", w)
    ]
    pairings = {name for name in named if not name.endswith(".json")}
    assert pairings == {PAIRING, "qwen3-8b/0.6b"}
    assert len(file.select(sorted(pairings))) == 2


def test_the_documented_ci_recipe_equals_the_measured_one():
    candidate, baseline = (commands(block) for block in BLOCKS[:2])
    for calls in (candidate, baseline):
        assert ["specbench", "run", PAIRING, *RECIPE] in calls
    assert len(re.findall(r"\d", re.search(r"for i in ([\d ]+);", BLOCKS[0])[1])) == CANDIDATE_RUNS
    assert len(re.findall(r"\d", re.search(r"for i in ([\d ]+);", BLOCKS[1])[1])) == BASELINE_RUNS
    (check,) = [call for call in candidate if call[1] == "check"]
    tolerances = parse_fail_on(check[check.index("--fail-on") + 1])
    assert {tolerance.metric: tolerance.share for tolerance in tolerances} == TOLERANCES


def test_every_run_of_a_workflow_names_its_number_of_threads():
    for block in BLOCKS:
        runs = [call for call in commands(block) if call[1] == "run"]
        assert runs
        assert all(int(call[call.index("--threads") + 1]) > 0 for call in runs)
