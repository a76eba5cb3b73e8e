"""A plan of sessions before any of them starts: its length, its requests, and what is missing."""

import re
import stat
import sys
from collections import Counter
from dataclasses import replace

import pytest

from specbench.bench.expected_time import TOKENS_PER_S, EarlierSession, estimate_sessions
from specbench.bench.served.deployments import exported
from specbench.bench.served.host import command_line, require_startable
from specbench.bench.served.open_session import failed_record
from specbench.bench.served.sessions import (
    TEMPLATE_TOKENS,
    Answers,
    context_needed,
    cycle_of,
    request_of,
    requests_of,
    served_cells,
    template_clock,
)
from specbench.cli.plan_table import print_plan
from specbench.engines.served_engine import find_served
from specbench.errors import ModelError, UsageError
from specbench.files.model import require_complete
from specbench.files.model_spec import ModelSpec
from specbench.records import Message, Prompt
from specbench.stats.crossed import expected_noise
from specbench.stats.machine_noise import MachineKind
from tests.bench.fake_runs import TWELVE, write_prompts
from tests.bench.served.served_runs import MAX_NEW_TOKENS, SIX, plan_of
from tests.made_records import made_request
from tests.settings.flat_settings import changed


def test_the_first_estimate_of_a_sweep_uses_starts_and_tokens(tmp_path):
    (estimate,) = estimate_sessions(plan_of(tmp_path, concurrency=(1, 3)), [])
    # Seven requests one after the other; three concurrent ones have those of nine prompts.
    plan = plan_of(tmp_path, concurrency=(1, 3))
    (_, three) = estimate.sessions[0].blocks(plan)
    num_three = len(requests_of(plan, three))
    assert len(estimate.sessions) == 6
    assert estimate.session_s == pytest.approx(
        find_served("vllm").PROPERTIES.start_s + MAX_NEW_TOKENS * (7 + num_three / 3) / TOKENS_PER_S
    )
    assert not estimate.is_measured
    # A cycle of K = 0, 2 and 4; the winner and K = 0 are measured again.
    assert estimate.seconds == pytest.approx(2 * (6 + 4) * estimate.session_s)
    (single,) = estimate_sessions(plan_of(tmp_path, num_speculative_tokens=(0, 4)), [])
    assert single.seconds == pytest.approx(2 * 4 * single.session_s)
    assert estimate.detectable == expected_noise(6, MachineKind.SERVER).detectable_effect(2)
    (running,) = estimate_sessions(plan_of(tmp_path, running_ks=(0, 2, 4)), [])
    assert running.session_s == pytest.approx(MAX_NEW_TOKENS * 7 / TOKENS_PER_S)


def test_a_sweep_estimate_uses_the_speed_of_earlier_sessions(tmp_path):
    """Of any number of requests."""
    plan = plan_of(tmp_path)
    session, *_ = cycle_of(served_cells(plan, "vllm"), 0)
    held = replace(failed_record(session, "one", ()), command=("vllm",), start_s=30.0, seconds=10.0)
    one_prompt = EarlierSession(held, request_s=0.5, num_tokens=10)
    many = EarlierSession(replace(held, start_s=50.0), request_s=19.5, num_tokens=390)
    others = [
        replace(held, engine="sglang", start_s=900.0),
        replace(held, command=(), start_s=900.0),  # it was running
        replace(held, target="small", start_s=900.0),
    ]
    earlier = [one_prompt, many, *(many._replace(server=server) for server in others)]
    (estimate,) = estimate_sessions(plan, earlier)
    assert estimate.is_measured
    assert estimate.session_s == pytest.approx(40.0 + 7 * MAX_NEW_TOKENS * 0.05)


def test_fewer_than_five_prompts_give_no_detectable_effect(tmp_path):
    (estimate,) = estimate_sessions(plan_of(tmp_path, num_prompts=4), [])
    assert estimate.detectable is None


def test_repeats_of_a_prompt_in_one_pass_have_different_seeds(tmp_path):
    plan = plan_of(tmp_path, concurrency=(4,))  # twelve prompts of six
    sessions = list(cycle_of(served_cells(plan, "vllm"), 1))
    for session in sessions:
        requests = requests_of(plan, next(session.blocks(plan)))
        assert {r.repeat for r in requests} == {2 * session.repeat, 2 * session.repeat + 1}
        assert len({(r.prompt_id, r.turn, r.repeat) for r in requests}) == len(requests) == 14
        assert len({r.seed for r in requests}) == len(requests)
        assert len({r.conversation for r in requests} - {None}) == 2


@pytest.mark.parametrize(("num", "rows"), [(4, 1), (20, 1), (4, 4), (31, 4)])
def test_requests_cycle_over_the_prompts_up_to_their_number(tmp_path, num, rows):
    """Six prompts, the last with two turns; the requests are the same at every K."""
    plan = plan_of(tmp_path, concurrency=(rows,), num_requests=num)
    sessions = list(cycle_of(served_cells(plan, "vllm"), 1))
    each = [requests_of(plan, next(session.blocks(plan))) for session in sessions]
    for requests in each:
        first_turns = Counter(r.prompt_id for r in requests if r.turn == 0)
        assert first_turns.total() == num
        assert set(first_turns.values()) <= {num // 6, num // 6 + 1}
        assert len({(r.prompt_id, r.turn, r.repeat) for r in requests}) == len(requests)
    assert len({frozenset(r.prompt_id for r in requests) for requests in each}) == 1


def test_the_number_of_requests_may_exceed_the_number_of_prompts(tmp_path):
    plan = plan_of(tmp_path, num_prompts=3, num_requests=10, concurrency=(2,))
    session, *_ = cycle_of(served_cells(plan, "vllm"), 1)
    requests = requests_of(plan, next(session.blocks(plan)))
    prompts = Counter(r.prompt_id for r in requests if r.turn == 0)
    assert sorted(prompts.values()) == [3, 3, 4]


def test_the_needed_context_covers_all_turns_outputs_and_tools(tmp_path):
    plan = plan_of(tmp_path)
    cells = served_cells(plan, "vllm")
    longest = sum(len(text) for text in SIX[5]) // 2 + 2 * MAX_NEW_TOKENS + TEMPLATE_TOKENS
    assert context_needed(plan, cells) == longest
    (workload,) = plan.workloads
    tool = {"type": "function", "function": {"name": "look", "description": "x" * 2_000}}
    asking = Prompt(id="p", turns=((Message(role="user", content="Hi"),),), tools=(tool,))
    with_tools = replace(plan, workloads=(replace(workload, prompts=(asking,)),))
    assert context_needed(with_tools, cells) > 1_000


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"launch": "no-such-program {args}"}, "no-such-program"),
        ({"launch": None, "engine_python": "/nowhere/python"}, "/nowhere/python"),
    ],
)
def test_a_missing_program_is_refused_with_the_options_for_it(tmp_path, changes, named):
    plan = plan_of(tmp_path, **changes)
    with pytest.raises(UsageError, match=f"{named}") as refused:
        require_startable([plan])
    assert all(
        o in str(refused.value) for o in ("--engine-python", "--engine-command", "--base-url")
    )


def test_an_engine_program_on_the_path_is_sufficient(tmp_path, monkeypatch):
    plan = plan_of(tmp_path, launch=None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="vllm"):
        require_startable([plan])
    _program(tmp_path / "vllm", "exit 1")
    require_startable([plan])


@pytest.mark.parametrize(
    ("engine_python", "named"),
    [(sys.executable, "no module vllm"), ("/bin/false", "does not run as a Python")],
)
def test_an_engine_python_without_the_engine_is_refused(tmp_path, engine_python, named):
    plan = plan_of(tmp_path, launch=None, engine_python=engine_python)
    with pytest.raises(UsageError, match=f"--engine-python {engine_python} .*{named}"):
        require_startable([plan])


def test_a_model_folder_must_be_complete(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    spec = ModelSpec(source=str(tmp_path), folder=tmp_path)
    with pytest.raises(ModelError, match="download"):
        require_complete(spec)
    (tmp_path / "consolidated.safetensors").write_bytes(b"")  # engines read it
    require_complete(spec)
    (tmp_path / "model.safetensors").write_bytes(b"cut off")
    with pytest.raises(ModelError, match=r"model\.safetensors"):
        require_complete(spec)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"launch": "true {arg}"}, "{arg} in"),
        ({"launch": "true 'unclosed"}, "No closing quotation"),
        ({"engines": ("llama_cpp",), "launch": "true {args}"}, "big.gguf is not in"),
    ],
)
def test_missing_or_mistyped_values_are_reported_before_anything_starts(tmp_path, changes, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        require_startable([plan_of(tmp_path, **changes)])
    assert not (tmp_path / "servers").exists()


def test_a_single_k_is_planned_without_a_confirmation_run(tmp_path, capsys):
    print_plan([plan_of(tmp_path)])
    assert "measured again" in " ".join(capsys.readouterr().out.split())
    print_plan([plan_of(tmp_path, num_speculative_tokens=(0, 4), cycles=None)])
    output = " ".join(capsys.readouterr().out.split())
    assert "measured again" not in output
    assert re.search("4 cycles, .*of 4 sessions", output)


def test_the_export_version_comes_from_the_engines_python(tmp_path):
    python, silent = tmp_path / "python", tmp_path / "silent"
    _program(python, "echo 0.31.2")
    _program(silent, "exit 1")
    plan = plan_of(tmp_path, engine_python=python)

    def written_for(**changes):
        return exported("vllm", plan.pairings[0], 2, changed(plan.settings, **changes)).written_for

    assert written_for() == "0.31.2"
    assert written_for(engine_version="0.32.0") == "0.32.0"
    assert written_for(engine_python=None) == written_for(engine_python=silent) == "0.33"


def _program(path, script):
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_running_servers_need_a_single_pairing(tmp_path):
    """The drafter of a server is not reported: two drafters would get the same figures."""
    with pytest.raises(UsageError, match=r"--base-url.*big/lookup, big/sm"):
        plan_of(tmp_path, running_ks=(0, 2), pairings=("big/lookup", "big/small"))


TAKES_DATE = "{% if not date_string %}{{ strftime_now('%d %b %Y') }}{% endif %}{{ date_string }}"
FIRST, SECOND = (
    (Message(role="user", content="Say hello"),),
    (Message(role="user", content="And again"),),
)
TALK = Prompt(id="p", turns=(FIRST, SECOND))
PLACE = {"turn": 1, "repeat": 3, "seed": 1}


def between_turns(plan, answers, cell, output):
    """The text between both turns."""
    later = request_of(plan, cell, TALK, **PLACE)
    first, answer, second = answers.completed(cell, later, [output]).messages
    assert ((first,), (second,)) == (FIRST, SECOND)
    return answer.content


def test_a_later_turn_follows_the_first_response_at_k_0(tmp_path):
    plan = plan_of(tmp_path)
    plain, drafting, *_ = served_cells(plan, "vllm")
    answers = Answers()
    assert between_turns(plan, answers, drafting, "its own") == "its own"  # nothing is known yet
    answer = made_request(plain.key.id, "p", None, text="Hello")
    answers.learn(plain, [replace(answer, finish_reason="failed", text="Hel"), answer])
    answers.learn(plain, [replace(answer, text="Hi")])
    assert (
        between_turns(plan, answers, drafting, "its own")
        == between_turns(plan, answers, plain, "its own")
        == "Hello"
    )


def test_a_reused_response_is_kept_per_temperature(tmp_path):
    plan = plan_of(tmp_path, temperatures=(0.0, 0.7))
    cells = served_cells(plan, "vllm")
    cold, warm = (
        [cell for cell in cells if cell.key.condition.temperature == t] for t in (0.0, 0.7)
    )
    answers = Answers()
    answers.learn(cold[0], [made_request(cold[0].key.id, "p", None, text="Hello")])
    assert between_turns(plan, answers, cold[1], "its own") == "Hello"
    assert between_turns(plan, answers, warm[1], "its own") == "its own"


@pytest.mark.parametrize(
    ("template", "engine", "date", "args"),
    [
        ("{{ strftime_now('%d %b %Y') }}", "vllm", "server", {}),
        (TAKES_DATE, "vllm", "2024-07-26", {"date_string": "26 Jul 2024"}),
        (TAKES_DATE, "openai", "server", {}),  # its API has no template arguments
        ("{{ date_string }}", "vllm", "", {}),  # a prompt without one has none on any day
        (None, "vllm", None, {}),
    ],
)
def test_the_date_of_a_chat_template_is_sent_if_it_takes_one(
    tmp_path, template, engine, date, args
):
    plan = plan_of(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    if template is not None:
        (tmp_path / "chat_template.jinja").write_text(template)
    model = replace(plan.target.model, source=str(tmp_path), folder=tmp_path)
    plan = replace(plan, target=replace(plan.target, model=model))
    assert template_clock(model, engine) == (date, args)
    (cell, *_) = served_cells(plan, "vllm")
    today = {"date_string": "today"}
    prompt = replace(TALK, template_args=today)
    assert request_of(plan, cell, prompt, **PLACE).template_args == today


def test_every_temperature_has_its_own_server_starts(tmp_path):
    """An engine may get the temperature when it starts."""
    plan = plan_of(tmp_path, temperatures=(0.0, 0.7), num_speculative_tokens=(0, 2))
    up = list(cycle_of(served_cells(plan, "vllm"), 0))[:4]
    assert [(s.draft.k, s.temperature) for s in up] == [(0, 0.0), (0, 0.7), (2, 0.0), (2, 0.7)]
    assert all(c.key.condition.temperature == s.temperature for s in up for c in s.cells)


DEFAULT = ["python", "-m", "engine"]
ARGS = ["--model", "my model", "--port", "8123"]


def line(template: str | None) -> list[str]:
    return command_line(template, DEFAULT, ARGS, port=8123)


def test_without_a_template_the_flags_follow_the_engines_own_command():
    assert line(None) == [*DEFAULT, *ARGS]


def test_flags_replace_the_args_placeholder_or_follow_the_template():
    assert line("run '{args}' --last") == ["run", *ARGS, "--last"]
    assert line("run 'two words'") == ["run", "two words", *ARGS]


def test_the_port_is_filled_in_anywhere_and_json_is_unchanged():
    assert line("""run -p{port}:{port} '{"k": 3}' {args}""") == [
        "run",
        "-p8123:8123",
        '{"k": 3}',
        *ARGS,
    ]


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (
            "run {model} {args}",
            r"--engine-command run \{model\} \{args\}: unknown placeholder \{model\} .*\{port\}",
        ),
        ("sh -c 'run {args}'", r"unknown placeholder \{args\} in 'run \{args\}'"),
        ("run 'half", "No closing quotation"),
        (" ", "--engine-command is empty"),
    ],
)
def test_a_template_that_cannot_be_read_is_refused(template, message):
    with pytest.raises(UsageError, match=message):
        line(template)


@pytest.mark.parametrize(("num_prompts", "num_others"), [(5, 5), (7, 5), (11, 0)])
def test_a_confirmation_serves_prompts_that_did_not_choose_k(tmp_path, num_prompts, num_others):
    """Twelve prompts; if too few are left, the same ones again."""
    prompts = write_prompts(tmp_path / "twelve.jsonl", TWELVE)
    plan = plan_of(tmp_path, workloads=(prompts,), num_prompts=num_prompts)
    cells = served_cells(plan, "vllm")

    def prompts_of(purpose):
        first, *_ = cycle_of(cells, 0, purpose)
        (block,) = first.blocks(plan)
        return {prompt.id for prompt in block.prompts}

    explored, confirmed = prompts_of("explore"), prompts_of("confirm")
    assert len(explored) == num_prompts
    assert len(confirmed - explored) == num_others
    assert explored & confirmed == (set() if num_others else explored)
