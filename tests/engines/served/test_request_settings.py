"""The body that a server receives for the settings of a request."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from specbench.engines.served_engine import find_served
from specbench.errors import ServerError
from specbench.inputs.address import Address
from specbench.records import RequestSettings
from specbench.servers.client import Client
from specbench.servers.response import StreamedResponse
from specbench.settings import SERVED
from tests.engines.served import (
    test_ik_llama_cpp,
    test_llama_cpp,
    test_sglang,
    test_tensorrt_llm,
    test_vllm,
)
from tests.engines.served.replay import REQUEST, answer
from tests.servers.fake_server import FakeServer, serving

PAGES = {
    "ik_llama_cpp": test_ik_llama_cpp.ANSWERS,
    "llama_cpp": test_llama_cpp.ANSWERS,
    "openai": {},
    "sglang": test_sglang.ANSWERS,
    "tensorrt_llm": test_tensorrt_llm.ANSWERS,
    "vllm": test_vllm.ANSWERS,
}
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
TOOL = {"type": "function", "function": {"name": "add"}}
SETTINGS = RequestSettings(
    response_format=FORMAT,
    stop=("END", "\n\n"),
    thinking=True,
    reasoning_effort="low",
    extra_body={"min_tokens": 3},
)
ARGS = {"enable_thinking": True, "thinking": True}


def request_body(engine: str, settings: RequestSettings = SETTINGS, **changes: Any) -> list[Any]:
    request = replace(REQUEST, settings=settings, template_args=settings.template_args, **changes)
    return answer(engine, PAGES[engine], request).requests


def test_every_served_engine_has_recorded_pages():
    assert set(PAGES) == set(SERVED)


@pytest.mark.parametrize("engine", ["ik_llama_cpp", "openai", "sglang", "tensorrt_llm", "vllm"])
def test_request_settings_are_sent_under_their_api_names(engine):
    [body] = request_body(engine)
    assert body["response_format"] == FORMAT
    assert body["stop"] == ["END", "\n\n"]
    assert (body["reasoning_effort"], body["min_tokens"]) == ("low", 3)
    effort = {} if engine == "openai" else {"reasoning_effort": "low"}
    assert body["chat_template_kwargs"] == ARGS | effort
    assert "thinking" not in body
    assert "extra_body" not in body


def test_llama_cpp_gets_request_settings_in_template_and_completion():
    template, _, body = request_body("llama_cpp")
    assert template["chat_template_kwargs"] == ARGS | {"reasoning_effort": "low"}
    assert (body["json_schema"], body["stop"], body["min_tokens"]) == (SCHEMA, ["END", "\n\n"], 3)
    assert "response_format" not in body
    some_json = RequestSettings(response_format={"type": "json_object"})
    assert request_body("llama_cpp", some_json)[-1]["json_schema"] == {"type": "object"}


@pytest.mark.parametrize("engine", SERVED)
def test_a_request_without_settings_sends_none(engine):
    names = {"stop", "response_format", "json_schema", "reasoning_effort", "tool_choice"}
    assert not names & request_body(engine, RequestSettings())[-1].keys()


def test_vllm_needs_no_parser_of_tool_calls_unless_a_choice_is_given():
    [body] = request_body("vllm", RequestSettings(), tools=(TOOL,))
    assert (body["tools"], body["tool_choice"]) == ([TOOL], "none")
    [body] = request_body("vllm", RequestSettings(tool_choice="required"), tools=(TOOL,))
    assert body["tool_choice"] == "required"
    [body] = request_body("sglang", RequestSettings(), tools=(TOOL,))
    assert "tool_choice" not in body


def test_tools_are_refused_for_a_server_without_a_chat_template():
    async def ask(url: str) -> None:
        async with Client(Address.at(url, "--base-url")) as client:
            request = replace(REQUEST, tools=(TOOL,))
            await find_served("vllm").answer(client, "tiny", request)

    fake = FakeServer(has_chat=False)
    with serving(fake) as url, pytest.raises(ServerError, match="tools"):
        asyncio.run(ask(url))
    assert not fake.requests


def test_a_tool_call_is_text_whose_tokens_are_timed():
    stream = StreamedResponse()
    first = {"index": 0, "id": "c1", "type": "function", "function": {"name": "add"}}
    for call in (first, {"index": 0, "function": {"arguments": '{"a": 1}'}}):
        stream.add({"choices": [{"delta": {"content": None, "tool_calls": [call]}}]})
    assert stream.text == 'add{"a": 1}'
    assert stream.num_events == 2
