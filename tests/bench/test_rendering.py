"""Prompts that a chat template refuses are left out before anything is measured, and in plans."""

import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import inf
from pathlib import Path
from types import SimpleNamespace

import pytest

from specbench.bench import rendering
from specbench.bench.planning import fit_warnings, narrowed, plan_run
from specbench.bench.rendering import (
    Candidates,
    prompt_tokens,
    rendered,
    rendered_for_plan,
    rendered_here,
)
from specbench.engines.served_engine import conversation_fields
from specbench.errors import WorkloadError
from specbench.inputs.workloads import Workload
from specbench.models.tokenizer import ChatTokenizer
from specbench.records import Kind, Message, Request
from tests.bench.fake_runs import SETTINGS, make_plan
from tests.bench.tiny_runs import run_on, settings_for, write_tiny
from tests.settings.flat_settings import changed
from tests.tiny_pair import TEMPLATE

STRICT = (
    "{% if messages[0].role != 'user' %}{{ raise_exception('the user comes first') }}{% endif %}"
    + TEMPLATE
)
ROWS = [
    *({"id": f"p{i}", "prompt": f"Name river {i}, please"} for i in range(6)),
    {"id": "system", "prompt": "Name a lake", "system": "Be brief"},
]
CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Köln"}}}


def write_rows(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny pair whose target takes no system message, and prompts of which one has one."""
    folder = write_tiny(tmp_path_factory.mktemp("strict"))
    (folder / "target" / "chat_template.jinja").write_text(STRICT)
    write_rows(folder / "rows.jsonl", ROWS)
    return folder


def plan_of(strict: Path, rows: Path):
    (folder := strict / "plans").mkdir(exist_ok=True)
    plan = make_plan(folder, changed(SETTINGS, workloads=(str(rows),), num_prompts=7))
    spec = replace(plan.target.model, source=str(strict / "target"), folder=strict / "target")
    return replace(plan, target=replace(plan.target, model=spec))


def workload_of(plan) -> Workload:
    (workload,) = plan.workloads
    return workload


def test_only_as_many_prompts_are_rendered_as_a_run_may_use(strict):
    tokenizer = ChatTokenizer(str(strict / "target"), revision=None, trust_remote_code=False)
    prompts = workload_of(plan_of(strict, strict / "rows.jsonl")).prompts
    found = rendered(tokenizer, Candidates(prompts[::-1], wanted=2, most=inf, answer=0))
    assert list(found) == ["system", "p5", "p4"]
    assert "the user comes first" in str(found["system"])
    assert found["p5"] == len(tokenizer.prompt_ids(prompts[5].turns[0]))


def test_answers_are_empty_between_turns_unless_they_are_recorded():
    given: list[list[tuple[str, str]]] = []

    def prompt_ids(messages, *_):
        given.append([(m.role, m.content) for m in messages])
        return (1, 2)

    ask, answer = Message(role="user", content="Hi"), Message(role="assistant", content="Ho")
    for turns in ([(ask,), (ask,)], [(ask,), (answer, ask)]):
        assert prompt_tokens(SimpleNamespace(prompt_ids=prompt_ids), turns, (), {}) == 2
    hi = ("user", "Hi")
    assert given == [[hi, ("assistant", ""), hi], [hi, ("assistant", "Ho"), hi]]


def test_a_plan_leaves_out_refused_prompts_as_its_run_does(strict, tmp_path):
    planned = workload_of(
        narrowed(plan_of(strict, strict / "rows.jsonl"), render=rendered_for_plan)
    )
    assert [prompt.id for prompt in planned.prompts] == [f"p{i}" for i in range(6)]
    assert any("'system'" in note for note in planned.notes)
    settings = settings_for(
        strict,
        command="run",
        pairings=("tiny/draft",),
        workloads=(str(strict / "rows.jsonl"),),
        num_speculative_tokens=(3,),
        num_prompts=7,
    )
    stored = run_on(strict, settings, tmp_path)
    assert {r.prompt_id for block in stored.blocks for r in block.requests} == {
        prompt.id for prompt in planned.prompts
    }
    assert {Kind.NOTE(text=note) for note in planned.notes} <= {*stored.run.warnings}


def test_prompts_that_confirm_are_rendered_too(strict, tmp_path):
    plan = plan_of(strict, strict / "rows.jsonl")
    plan = replace(plan, settings=changed(plan.settings, num_prompts=3))
    *_, fifth = workload_of(plan).take(5, plan.settings.seed)
    rows = [
        {"id": row["id"], "prompt": "Hi"} | ({"system": "x"} if row["id"] == fifth.id else {})
        for row in ROWS
    ]
    other = workload_of(plan_of(strict, write_rows(tmp_path / "rows.jsonl", rows)))
    planned = narrowed(replace(plan, workloads=(other,)), render=rendered_for_plan)
    kept = {prompt.id for prompt in workload_of(planned).prompts}
    assert {row["id"] for row in ROWS} - kept == {fifth.id}


@pytest.mark.parametrize("refused", [0, 1, 2])
def test_no_prompt_that_was_not_rendered_replaces_a_refused_one(strict, refused):
    plan = plan_of(strict, strict / "rows.jsonl")
    plan = replace(plan, settings=changed(plan.settings, num_prompts=2))
    given: list[Candidates] = []

    def render(_, workloads):
        given.extend(workloads.values())
        ids = [prompt.id for prompt in given[0].prompts[: 4 + refused]]
        return {
            name: dict.fromkeys(ids, 9) | dict.fromkeys(ids[:refused], "no") for name in workloads
        }

    planned = workload_of(narrowed(plan, render=render))
    rendered_ids = {prompt.id for prompt in given[0].prompts[refused : 4 + refused]}
    kept = {prompt.id for prompt in planned.prompts}
    assert kept == (rendered_ids if refused else {row["id"] for row in ROWS})
    assert not any("unknown" in note for note in planned.notes)


def test_prompts_that_time_did_not_suffice_for_stay_and_are_counted(strict):
    plan = plan_of(strict, strict / "rows.jsonl")
    spec = plan.target.model
    part = rendered_here(spec, {"rows": Candidates(workload_of(plan).prompts, 7, inf, 0)}, -1.0)
    assert part == {"rows": {}}

    def render(_, workloads):
        return {name: {prompt.id: 9 for prompt in c.prompts[:3]} for name, c in workloads.items()}

    planned = workload_of(narrowed(plan, render=render))
    assert len(planned.prompts) == len(ROWS)
    assert any("3 of 7 prompts" in note for note in planned.notes)


def test_all_workloads_are_rendered_in_one_other_process_unless_this_one_has_torch(
    strict, monkeypatch
):
    plan = plan_of(strict, strict / "rows.jsonl")
    second = replace(workload_of(plan), name="second")
    started = []
    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: started.append(a) or run(*a, **k))
    both = replace(plan, workloads=(*plan.workloads, second))
    here = narrowed(both, render=rendered_for_plan)
    assert not started
    own = SimpleNamespace(modules={}, executable=sys.executable)
    monkeypatch.setattr(rendering, "sys", own)
    planned = narrowed(both, render=rendered_for_plan)
    assert [len(workload.prompts) for workload in planned.workloads] == [6, 6]
    assert planned.workloads == here.workloads
    assert len(started) == 1


def test_a_thread_leaves_rendering_to_another_process(strict, monkeypatch):
    """Work is limited in the main thread only."""
    started = []

    def start(*arguments, **_):
        started.append(arguments)
        raise OSError

    monkeypatch.setattr(subprocess, "run", start)
    plan = plan_of(strict, strict / "rows.jsonl")
    with ThreadPoolExecutor() as threads:
        threads.submit(narrowed, plan, render=rendered_for_plan).result()
    assert len(started) == 1


def test_a_server_is_not_sent_what_its_template_refuses(strict):
    plan = plan_of(strict, strict / "rows.jsonl")
    settings = changed(plan.settings, engines=("vllm",), num_prompts=7)
    pairings = tuple(replace(pairing, target=plan.target) for pairing in plan.pairings)
    (planned,) = plan_run(settings, pairings).targets
    assert "system" not in {prompt.id for prompt in workload_of(planned).prompts}


def test_a_workload_whose_prompts_are_all_refused_cannot_be_planned(strict, tmp_path):
    rows = write_rows(tmp_path / "all.jsonl", [ROWS[-1]])
    with pytest.raises(WorkloadError, match="the user comes first"):
        narrowed(plan_of(strict, rows), render=rendered_for_plan)


def test_texts_with_tokens_of_the_template_are_warned_of(strict, tmp_path):
    rendered_rows = [{"prompt": "<|im_start|>user\nHi<|im_end|>"}, {"prompt": "<b>Hi</b>"}]
    for rows, count in ((rendered_rows, 1), (ROWS, 0)):
        plan = plan_of(strict, write_rows(tmp_path / "rows.jsonl", rows))
        found = [w for w in fit_warnings(plan) if w.kind is Kind.RENDERED_TWICE]
        assert [w.figures["count"][0] for w in found] == [count] * (count > 0)


@pytest.mark.parametrize("arguments", [{"city": "Köln"}, '{"city": "Köln"}'])
def test_arguments_of_tool_calls_are_a_mapping_for_templates_and_text_for_servers(arguments):
    call = {**CALL, "function": {**CALL["function"], "arguments": arguments}}
    message = Message(role="assistant", content="", extra={"tool_calls": [call]})
    (parsed,) = message.as_dict(parses_arguments=True)["tool_calls"]
    assert parsed == CALL
    (text,) = message.as_dict(parses_arguments=False)["tool_calls"]
    assert json.loads(text["function"]["arguments"]) == {"city": "Köln"}


def test_a_template_and_a_server_get_the_arguments_in_their_own_form(strict, tmp_path):
    shutil.copytree(strict / "target", tmp_path / "target")
    items = "{% for c in m.tool_calls or [] %}{% for k, v in c.function.arguments|items %}{{ k }}"
    end = "{% endfor %}{% endfor %}"
    text = TEMPLATE.replace("{{ m.content }}", "{{ m.content }}" + items + end)
    (tmp_path / "target" / "chat_template.jinja").write_text(text)
    tokenizer = ChatTokenizer(str(tmp_path / "target"), revision=None, trust_remote_code=False)
    as_text = {**CALL, "function": {**CALL["function"], "arguments": '{"city": "Köln"}'}}
    both = [
        (Message(role="assistant", content="", extra={"tool_calls": [call]}),)
        for call in (CALL, as_text)
    ]
    ids = [tokenizer.prompt_ids(messages) for messages in both]
    assert ids[0] == ids[1]
    assert "city" in tokenizer.text(ids[0])
    sent = [conversation_fields(Request(max_new_tokens=1, messages=m))["messages"] for m in both]
    assert sent[0] == sent[1]
    assert isinstance(sent[0][0]["tool_calls"][0]["function"]["arguments"], str)


@pytest.mark.parametrize("calls", [None, "weather", [1], [{"function": "f"}], [{"function": {}}]])
def test_tool_calls_of_another_shape_are_left_to_the_template(calls):
    message = Message(role="assistant", content="", extra={"tool_calls": calls})
    for parses in (True, False):
        assert message.as_dict(parses_arguments=parses)["tool_calls"] == calls


@pytest.mark.parametrize(
    "arguments", ["not JSON", "[1]", "3", pytest.param("[" * 100_000, id="deep")]
)
def test_arguments_that_are_no_object_stay_text(arguments):
    call = {"function": {"name": "f", "arguments": arguments}}
    message = Message(role="assistant", content="", extra={"tool_calls": [call]})
    assert message.as_dict(parses_arguments=True)["tool_calls"] == [call]
