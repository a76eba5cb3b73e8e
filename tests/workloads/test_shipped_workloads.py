"""Shipped workloads are readable, checked and large enough."""

import os
from itertools import pairwise
from pathlib import Path

import pytest

from specbench.inputs.workloads import find_workloads, load_workload
from specbench.shipped import DEMO_WORKLOADS, PACKAGE, shipped

GENERAL = (
    *("chat", "code", "creative", "edit", "json", "mixed", "qa", "reasoning", "summarize"),
    "tools",
)
EMBEDDED = ("chat", "code", "creative", "edit", "mixed", "qa")
SPEC_BENCH = Path(
    os.environ.get(
        "SPEC_BENCH_QUESTIONS", PACKAGE.parents[1] / "shared/data/spec_bench_question.jsonl"
    )
)


def test_the_general_and_the_bundled_workloads_are_shipped() -> None:
    assert find_workloads(shipped("workloads")) == GENERAL
    assert find_workloads(PACKAGE / "demo" / "workloads") == EMBEDDED


@pytest.mark.parametrize("name", GENERAL)
def test_a_general_workload_has_forty_prompts_or_more(name: str) -> None:
    workload = load_workload(name, folder=shipped("workloads"))
    assert len(workload.prompts) >= 40
    assert workload.license == "Apache-2.0"


@pytest.mark.parametrize("name", EMBEDDED)
def test_every_bundled_workload_can_be_loaded(name: str) -> None:
    assert load_workload(name, folder=PACKAGE / "demo" / "workloads").prompts


def test_some_prompts_have_turns_system_prompts_tools_and_template_arguments() -> None:
    workloads = [load_workload(name, folder=shipped("workloads")) for name in GENERAL]
    prompts = [prompt for workload in workloads for prompt in workload.prompts]
    assert any(len(prompt.turns) > 1 for prompt in prompts)
    assert any(prompt.turns[0][0].role == "system" for prompt in prompts)
    assert any(prompt.tools for prompt in prompts)
    assert any(prompt.template_args for prompt in prompts)


def test_json_prompts_have_schemas_and_reasoning_prompts_think() -> None:
    json_, reasoning = (
        load_workload(n, folder=shipped("workloads")) for n in ("json", "reasoning")
    )
    assert json_.request_settings == "response_format"
    assert reasoning.request_settings == "thinking on"
    for prompt in json_.prompts:
        schema = prompt.settings.given["response_format"]["json_schema"]["schema"]
        assert schema["type"] == "object"
        assert set(schema["required"]) == set(schema["properties"])
    assert {p.template_args["enable_thinking"] for p in json_.prompts} == {False}
    assert {p.template_args["enable_thinking"] for p in reasoning.prompts} == {True}


@pytest.mark.parametrize("folder", [shipped("workloads"), DEMO_WORKLOADS])
def test_easy_and_hard_prompts_alternate_in_mixed(folder: Path) -> None:
    workload = load_workload("mixed", folder=folder)
    kinds = [prompt.category for prompt in workload.prompts]
    assert kinds == ["easy", "hard"] * (len(kinds) // 2)
    drawn = [prompt.category for prompt in workload.take(10, seed=3)]
    assert all(first != second for first, second in pairwise(drawn))


@pytest.mark.skipif(not SPEC_BENCH.exists(), reason="the Spec-Bench questions are not shipped")
def test_the_spec_bench_prompts_are_read() -> None:
    prompts = load_workload(str(SPEC_BENCH)).prompts
    assert len(prompts) == 480
    assert sum(len(prompt.turns) == 2 for prompt in prompts) == 80  # MT-bench
    assert prompts[0].id == "81"
    assert prompts[0].category == "writing"
