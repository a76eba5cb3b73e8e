"""Settings of requests reach the engines, or are refused before anything is measured."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specbench.bench.benchmark import plan_warnings, require_same_work
from specbench.bench.plan import TargetPlan
from specbench.bench.planning import require_verifiable
from specbench.bench.served.sessions import request_of, served_cells
from specbench.errors import UsageError
from specbench.records import Kind, Message, RequestSettings
from specbench.report.document import build_document
from specbench.report.provenance import provenance, setup
from tests.bench.fake_runs import SETTINGS, make_plan, measure, run_record
from tests.bench.fakes import BytesTokenizer, FakeEngine
from tests.bench.tiny_runs import run_on, settings_for, write_tiny
from tests.settings.flat_settings import changed

FORMAT = {"response_format": {"type": "json_object"}}
TOOLS = {"tools": [{"type": "function", "function": {"name": "add"}}]}
STARTED = {"launch": "python {args}"}


def write_rows(folder: Path, *rows: Mapping[str, Any]) -> str:
    path = folder / "own.jsonl"
    path.write_text("".join(json.dumps({"id": f"p{i}", **r}) + "\n" for i, r in enumerate(rows)))
    return str(path)


def plan_of(folder: Path, *rows: Mapping[str, Any], **changes: Any) -> TargetPlan:
    settings = changed(SETTINGS, workloads=(write_rows(folder, *rows),), **changes)
    return make_plan(folder, settings)


@pytest.mark.parametrize(
    ("engines", "row", "name", "able"),
    [
        (("builtin",), FORMAT, "response_format", "llama_cpp or openai or sglang"),
        (("vllm", "transformers"), FORMAT, "response_format", "vllm"),
        (("builtin",), {"extra_body": {"min_tokens": 1}}, "extra_body", "llama_cpp"),
        (("builtin",), {**TOOLS, "tool_choice": "required"}, "tool_choice", "openai"),
        (("llama_cpp",), {**TOOLS, "tool_choice": {"type": "function"}}, "tool_choice", "vllm"),
    ],
)
def test_an_unsupported_request_setting_is_refused_with_the_remedy(
    tmp_path: Path, engines: tuple[str, ...], row: Mapping[str, Any], name: str, able: str
) -> None:
    rows = {"prompt": "A"}, {"prompt": "B", **row}
    with pytest.raises(UsageError) as error:
        plan_of(tmp_path, *rows, engines=engines, **STARTED)
    for part in (f"{tmp_path / 'own.jsonl'}, prompt p1: {name}: ", engines[-1], able, "--ignore-"):
        assert part in str(error.value)
    plan = plan_of(tmp_path, *rows, engines=engines, ignore_request_settings=True, **STARTED)
    assert {condition.request_settings for condition in plan.conditions} == {None}


@pytest.mark.parametrize(
    ("engines", "row"),
    [
        (("builtin", "transformers"), {"stop": "x", "thinking": True, "reasoning_effort": "low"}),
        (("builtin", "llama_cpp"), {**TOOLS, "tool_choice": "auto"}),
        (("llama_cpp",), {**FORMAT, "extra_body": {"min_keep": 1}}),
        (("sglang", "tensorrt_llm"), {**TOOLS, **FORMAT, "tool_choice": "required"}),
    ],
)
def test_supported_request_settings_are_in_the_cell_keys(
    tmp_path: Path, engines: tuple[str, ...], row: Mapping[str, Any]
) -> None:
    plan = plan_of(tmp_path, {"prompt": "A", **row}, engines=engines, **STARTED)
    (words,) = {cell.key.condition.request_settings for cell in plan.all_cells}
    assert words is not None
    assert all(f"own.jsonl ({words})" in cell.key.label for cell in plan.all_cells)


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function"}])
def test_tool_calls_need_vllms_parser(tmp_path: Path, choice: str | Mapping[str, Any]) -> None:
    row = {"prompt": "A", **TOOLS, "tool_choice": choice}
    flags = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
    for given in (), flags[:1], flags[1:]:
        with pytest.raises(UsageError, match=f"prompt p0: tool_choice: .*{' '.join(flags[:2])}"):
            plan_of(tmp_path, row, engines=("vllm",), engine_args=given, **STARTED)
    assert plan_of(tmp_path, row, engines=("vllm",), engine_args=flags, **STARTED)


def with_template(plan: TargetPlan, folder: Path, template: str | None) -> TargetPlan:
    """The plan of a target whose files are in the folder, with this chat template."""
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}")
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    model = replace(plan.target.model, source=str(folder), folder=folder)
    return replace(plan, target=replace(plan.target, model=model))


def test_thinking_without_a_switch_in_the_template_is_warned_of(tmp_path: Path) -> None:
    plain = "{{ messages }}"
    off = with_template(plan_of(tmp_path, {"prompt": "A", "thinking": False}), tmp_path, plain)
    assert Kind.THINKING_IGNORED not in {warning.kind for warning in plan_warnings(off)}
    plan = plan_of(tmp_path, {"prompt": "A", "thinking": True})
    texts = {plain: True, "{% if enable_thinking %}{% endif %}": False}
    for template, is_warned in texts.items():
        warnings = plan_warnings(with_template(plan, tmp_path, template))
        assert (Kind.THINKING_IGNORED in {warning.kind for warning in warnings}) == is_warned


@pytest.mark.parametrize("row", [TOOLS, {"thinking": True}, {"reasoning_effort": "low"}])
def test_without_a_chat_template_its_arguments_are_refused(
    tmp_path: Path, row: Mapping[str, Any]
) -> None:
    write_tiny(tmp_path)
    target = tmp_path / "target"
    (target / "chat_template.jinja").unlink()
    prompts = write_rows(tmp_path, {"prompt": "A", **row})
    with pytest.raises(
        UsageError, match=f"prompt p0: {next(iter(row))}: tiny has no chat template"
    ):
        run_on(tmp_path, settings_for(tmp_path, workloads=(prompts,)), tmp_path / "runs")


def test_verify_refuses_settings_that_change_the_distribution(tmp_path: Path) -> None:
    require_verifiable([plan_of(tmp_path, {"prompt": "A", "thinking": True})])
    with pytest.raises(UsageError, match="stop"):
        require_verifiable([plan_of(tmp_path, {"prompt": "A", "stop": "x"})])


def test_a_run_is_not_resumed_with_other_settings(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, {"prompt": "A", "stop": "x"})
    (workload,) = plan.workloads
    run = run_record(
        plan,
        workload_sha256={workload.name: workload.sha256},
        settings_sha256={workload.name: workload.settings_sha256},
    )
    require_same_work(run, [plan])
    (prompt,) = workload.prompts
    other = replace(prompt, settings=RequestSettings(stop=("y",)))
    edited = replace(plan, workloads=(replace(workload, prompts=(other,)),))
    assert edited.cell_plans() == plan.cell_plans()
    with pytest.raises(UsageError, match=r"own\.jsonl has changed"):
        require_same_work(run, [edited])


class TemplateTokenizer(BytesTokenizer):
    """The chat template prints its arguments."""

    def prompt_ids(self, messages, tools=(), template_args=None):
        return (*super().prompt_ids(messages, tools), *json.dumps(template_args).encode())


def test_template_arguments_and_stop_reach_the_engine_and_history_ends_before_it(
    tmp_path: Path,
) -> None:
    row = {"turns": ["A", "B"], "stop": ["cde", "x"], "thinking": False, "reasoning_effort": "low"}
    engine = FakeEngine()
    engine.tokenizer = TemplateTokenizer()
    measure(plan_of(tmp_path, row), engine, tmp_path)
    calls = [call for call in engine.calls if call.request.prompt_id or call.k == 0]
    measured = [call for call in calls if call.request.settings.stop]
    assert {call.request.settings.stop for call in measured} == {("cde", "x")}
    arguments = '{"enable_thinking": false, "thinking": false, "reasoning_effort": "low"}'
    assert all(arguments in call.text for call in measured)
    later = [call for call in measured if "user: B" in call.text]
    assert later
    assert all("assistant: ab\nuser: B" in call.text for call in later)


def test_a_stop_string_ends_the_text_at_the_same_token_at_every_k(tmp_path: Path) -> None:
    """Greedy and sampled, in both engines of this process."""
    write_tiny(tmp_path)
    settings = settings_for(tmp_path, max_new_tokens=24, num_prompts=1, engines=("builtin",))
    plain = run_on(tmp_path, settings, tmp_path / "plain")
    whole = {(r.prompt_id, r.turn): r.output_ids for r in plain.references}
    ((prompt_id, _), ids), *_ = whole.items()
    text = bytes_of(ids)
    assert len(text) > 9
    stop = text[5:8]
    rows = [json.loads(line) for line in (tmp_path / "talk.jsonl").read_text().splitlines()]
    (row,) = [row for row in rows if row["id"] == prompt_id]
    prompts = write_rows(tmp_path, {**row, "turns": row["turns"][:1], "stop": stop})
    settings = changed(
        settings,
        workloads=(prompts,),
        engines=("builtin", "transformers"),
        temperatures=(0.0, 1.0),
    )
    run = run_on(tmp_path, settings, tmp_path / "stopped")
    end = next(i for i in range(1, len(ids) + 1) if stop in bytes_of(ids[:i]))
    done = [request for block in run.blocks for request in block.requests]
    greedy = [request.output_ids for request in done if "|t0|" in request.cell_id]
    assert len(greedy) >= 6
    assert set(greedy) == {ids[:end]}
    document = build_document(run)
    assert "own.jsonl (stop)" in setup(document)
    assert "request settings of own.jsonl" in {fact.name for fact in provenance(document)}
    for request in done:
        assert request.error is None
        assert stop not in bytes_of(request.output_ids[:-1])


def bytes_of(ids) -> str:
    """The text of ids of the tiny pair's tokenizer, for ASCII."""
    from tests.tiny_pair import make_tokenizer

    return make_tokenizer().decode(list(ids), skip_special_tokens=True)


def test_a_served_request_has_the_settings_of_its_prompt(tmp_path: Path) -> None:
    row = {"turns": ["A", "B"], **FORMAT, "stop": "x"}
    plan = plan_of(tmp_path, row, engines=("vllm",), **STARTED)
    (prompt,) = plan.workloads[0].prompts
    cell = served_cells(plan, "vllm")[0]
    request = request_of(plan, cell, prompt, 1, repeat=0, seed=1)
    assert request.settings == prompt.settings
    assert request.messages[1] == Message(role="assistant", content="")


def test_a_replayed_turn_follows_the_recorded_text_in_every_engine(tmp_path: Path) -> None:
    roles = ("user", "assistant", "user")
    messages = [{"role": r, "content": c} for r, c in zip(roles, "ARB", strict=True)]
    row = {"messages": messages, "replay": True}
    engine = FakeEngine()
    measure(plan_of(tmp_path, row), engine, tmp_path)
    texts = {call.text for call in engine.calls if call.request.prompt_id}
    assert texts == {"user: A\n", "user: A\nassistant: R\nuser: B\n"}
    plan = plan_of(tmp_path, row, engines=("vllm",), **STARTED)
    (prompt,) = plan.workloads[0].prompts
    request = request_of(plan, served_cells(plan, "vllm")[0], prompt, 1, repeat=0, seed=1)
    assert [message.content for message in request.messages] == ["A", "R", "B"]
