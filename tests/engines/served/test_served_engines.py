"""Every file of engines/served/ has the protocol and starts on loopback; how `openai` counts."""

import asyncio
import json
import subprocess
import sys
from array import array
from dataclasses import replace
from pathlib import Path

import pytest

from specbench.engines import served
from specbench.engines.served_engine import ServedEngine, find_served, result_of
from specbench.errors import RefusedError, UsageError
from specbench.inputs.address import Address
from specbench.records import Message, Sampling
from specbench.servers.client import Client
from specbench.settings import EXPORTED, OPENAI, SERVED
from tests.engines.served.replay import REQUEST, answer, facts, start
from tests.export.deployments import deployment, exported
from tests.servers.fake_server import FakeServer, serving

STARTED = sorted({*SERVED} & {*EXPORTED})


def test_every_engine_file_is_a_selectable_engine():
    files = {path.stem for path in Path(served.__file__).parent.glob("*.py")}
    assert files - {"__init__"} == {*SERVED}


def test_every_engine_except_openai_can_be_exported_to():
    assert {*SERVED} - {*EXPORTED} == {OPENAI}
    for name in STARTED:
        assert {"export", "vocabulary_notes", "CONFIG_NAME"} <= {*vars(find_served(name))}


@pytest.mark.parametrize("name", SERVED)
def test_every_served_engine_implements_the_protocol(name):
    engine = find_served(name)
    assert {*ServedEngine.__annotations__, "launch", "facts", "answer", "counts"} <= {*vars(engine)}
    assert engine.PROPERTIES.health.startswith("/")


@pytest.mark.parametrize("name", STARTED)
def test_a_server_listens_on_loopback_and_user_flags_come_last(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments, command = ("--port", "9", "--mine"), exported(name, deployment("ngram", 0)).command
    for model in (word for word in command if word.endswith(".gguf")):
        (tmp_path / model).touch()
    mine = start(tmp_path, *command, arguments=arguments)
    command = find_served(name).launch(mine).command
    assert command[-3:] == arguments
    place = command.index("--host")
    assert command[place : place + 4] == ("--host", "127.0.0.1", "--port", "8000")


def test_an_openai_server_cannot_be_started_and_needs_base_url(tmp_path):
    with pytest.raises(UsageError, match="--base-url"):
        find_served(OPENAI).launch(start(tmp_path))


def test_no_served_engine_imports_torch():
    names = ", ".join(f"specbench.engines.served.{name}" for name in SERVED)
    script = f"import sys, {names}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert not {"torch", "transformers", "numpy"} & {*done.stdout.split()}, done.stderr
    assert "specbench.engines.served.vllm" in done.stdout


def test_an_openai_server_reports_neither_its_k_nor_its_prefix_cache():
    info = facts("openai", {})
    assert (info.model, info.k.state, info.prefix_cache.state) == ("tiny", "unknown", "unknown")
    assert info.places == {}


@pytest.mark.parametrize(
    ("card", "context"),
    [({"max_model_len": 1024}, 1024), ({"max_model_len": None}, None), ({}, None)],
    ids=str,
)
def test_the_context_is_the_length_on_the_models_card(card, context):
    models = {"data": [{"id": "tiny", **card}]}
    assert facts("openai", {"/v1/models": json.dumps(models)}).context == context


def test_an_openai_response_has_usage_but_no_counts():
    replayed = answer("openai", {})
    assert replayed.answer.num_tokens == 17
    assert find_served("openai").counts(replayed.answer, 3) is None
    common = {"model", "max_tokens", "temperature", "top_p", "seed", "messages"}
    assert {*replayed.requests[0]} == common | {"stream", "stream_options"}


def test_a_response_whose_tokens_cannot_be_counted_has_failed():
    engine, response = find_served("openai"), answer("openai", {}).answer
    assert len(result_of(engine, response, 3).output_ids) == 17
    uncounted = replace(response, num_tokens=None, token_ids=array("i"))
    result = result_of(engine, uncounted, 3)
    assert (result.finish_reason, result.output_ids) == ("failed", ())
    assert "`usage`" in (result.error or "")


def test_a_requested_top_k_is_sent():
    wanted = replace(REQUEST, sampling=Sampling(temperature=1.0, top_k=40))
    assert answer("openai", {}, wanted).requests[0]["top_k"] == 40


TWO = replace(
    REQUEST,
    messages=(Message(role="system", content="Be brief."), Message(role="user", content="Hello")),
)


def ask_twice(fake: FakeServer) -> list[dict[str, object]]:
    async def ask(url: str) -> None:
        async with Client(Address.at(url, "--base-url")) as client:
            for _ in range(2):
                await find_served("vllm").answer(client, "tiny", TWO)

    with serving(fake) as url:
        asyncio.run(ask(url))
    return fake.requests


@pytest.mark.parametrize("server", [{"has_chat": False}, {"refusal": "no chat template"}])
def test_without_a_template_the_text_of_the_messages_is_completed(server):
    requests = ask_twice(FakeServer(**server))
    assert [request["prompt"] for request in requests] == ["Be brief.\n\nHello"] * 2
    assert all("messages" not in request for request in requests)


def test_a_chat_request_is_tried_once_per_server():
    """Otherwise every request would be delayed by the refusal of a first one."""
    fake = FakeServer(has_chat=False)
    ask_twice(fake)
    assert fake.num_refused == 1


def test_a_refusal_for_another_reason_is_not_hidden_by_a_completion():
    fake = FakeServer(refusal="maximum context length is 1024 tokens")
    with pytest.raises(RefusedError, match="1024 tokens"):
        ask_twice(fake)
    assert not fake.requests
