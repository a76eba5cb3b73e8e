"""A plan is narrowed by files that arrive later and by the tokenizer, and keeps what it knows."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from specbench.bench import planning
from specbench.bench.plan import TargetPlan
from specbench.bench.planning import narrowed, plan_run
from specbench.bench.rendering import Candidates, Rendered, rendered, rendered_here
from specbench.errors import UsageError, WorkloadError
from specbench.files.model_spec import ModelSpec
from specbench.inputs.config import load_pairings
from specbench.settings import RunSettings
from tests.bench.fake_runs import SETTINGS, make_plan, write_prompts
from tests.bench.fakes import REFUSED, BytesTokenizer
from tests.bench.tiny_runs import settings_for, write_tiny
from tests.settings.flat_settings import changed


def by_bytes(_: ModelSpec, workloads: Mapping[str, Candidates]) -> Mapping[str, Rendered]:
    """Rendered by the tokenizer of the fake engine."""
    return {name: rendered(BytesTokenizer(), some) for name, some in workloads.items()}


def fitted(
    folder: Path, context: int, *prompts: str | list[str], settings: RunSettings = SETTINGS
) -> tuple[set[str], tuple[str, ...]]:
    """The prompts of a plan that fit the context, and its notes."""
    plan = narrowed(replace(make_plan(folder, settings, prompts), context=context), render=by_bytes)
    (workload,) = plan.workloads
    assert narrowed(plan, render=by_bytes) == plan
    return {prompt.id for prompt in workload.prompts}, workload.notes


def test_prompts_longer_than_the_context_are_left_out_and_counted(tmp_path: Path) -> None:
    # "user: ...\n" and 128 new tokens at most: 535 of p0, 435 of p3.
    kept, (note,) = fitted(tmp_path, 300, "x" * 400, "short", "brief", "y" * 300)
    assert kept == {"p1", "p2"}
    for value in ("own.jsonl: left out: 2 of 4", "128 tokens", "'p0'", "535", "300"):
        assert value in note


@pytest.mark.parametrize(("context", "expected"), [(290, {"p0", "p1"}), (289, {"p0"})])
def test_all_turns_of_a_conversation_count_with_answers_of_full_length(
    tmp_path: Path, context: int, expected: set[str]
) -> None:
    # "user: Hi\n", "assistant: \n", "user: Ho\n": 30 tokens, and two answers of 130.
    settings = changed(SETTINGS, max_new_tokens=130)
    kept, _ = fitted(tmp_path, context, "Hello", ["Hi", "Ho"], settings=settings)
    assert kept == expected


def test_prompts_that_are_refused_and_too_long_have_a_note_each(tmp_path: Path) -> None:
    kept, (refused, long) = fitted(tmp_path, 300, REFUSED, "Hello", "x" * 400)
    assert kept == {"p1"}
    for value in ("1 of 3 prompts", "own.jsonl, prompt 'p0'", "fake", ": no"):
        assert value in refused
    assert "'p2'" in long


def test_a_workload_whose_prompts_are_all_refused_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"own\.jsonl.*2 of 2 prompts"):
        fitted(tmp_path, 300, REFUSED, REFUSED + "!")


@pytest.fixture
def away(tmp_path: Path) -> Path:
    """A tiny pair with one prompt that is too long and one that is so with its template."""
    folder = write_tiny(tmp_path)
    write_prompts(folder / "talk.jsonl", ["x" * 300, "y" * 240, "short"])
    return folder


def plan_without(name: str, folder: Path, settings: RunSettings) -> TargetPlan:
    """The plan while a model is not there yet."""
    pairings = load_pairings(folder / "pairings.yaml").select(settings.workload.pairings)
    (folder / name).rename(folder / "hidden")
    (plan,) = plan_run(settings, pairings).targets
    (folder / "hidden").rename(folder / name)
    return plan


def test_a_target_that_arrives_later_narrows_the_plan_as_one_that_was_there(away: Path) -> None:
    settings = settings_for(away)
    early = plan_without("target", away, settings)
    assert early.context is None
    assert len(early.workloads[0].prompts) == 3
    pairings = load_pairings(away / "pairings.yaml").select(settings.workload.pairings)
    (known,) = plan_run(settings, pairings).targets
    assert known.context == 256
    assert [prompt.id for prompt in known.workloads[0].prompts] == ["p1", "p2"]
    assert narrowed(early) == known
    late = narrowed(early, render=rendered_here)
    assert late == narrowed(known, render=rendered_here)
    assert [prompt.id for prompt in late.workloads[0].prompts] == ["p2"]
    assert len(late.workloads[0].notes) == 2


def test_lengths_and_tools_are_checked_when_the_target_arrives(away: Path) -> None:
    early = plan_without("target", away, settings_for(away, contexts=(300,)))
    with pytest.raises(UsageError, match="--prompt-tokens 300"):
        narrowed(early)
    (away / "target" / "chat_template.jinja").unlink()
    row = {"id": "call", "prompt": "Hi", "tools": [{"type": "function", "function": {"name": "f"}}]}
    (away / "talk.jsonl").write_text(json.dumps(row))
    early = plan_without("target", away, settings_for(away))
    with pytest.raises(UsageError, match=r"prompt call: tools: tiny has no chat template"):
        narrowed(early)


def test_files_that_were_read_are_not_read_again(
    away: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_for(away)
    pairings = load_pairings(away / "pairings.yaml").select(settings.workload.pairings)
    (plan,) = plan_run(settings, pairings).targets
    monkeypatch.setattr(planning, "open_model", lambda _: pytest.fail("read again"))
    assert narrowed(plan) == plan
