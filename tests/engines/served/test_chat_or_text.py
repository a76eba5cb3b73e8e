"""A conversation is asked as a chat, and as text of a model without a chat template."""

import asyncio
from dataclasses import replace

import pytest

from specbench.engines.served_engine import find_served
from specbench.errors import RefusedError
from specbench.inputs.address import Address
from specbench.records import Message
from specbench.servers.client import Client
from tests.engines.served.replay import REQUEST
from tests.servers.fake_server import FakeServer, serving

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
    return fake.asked


@pytest.mark.parametrize("server", [{"has_chat": False}, {"refusal": "no chat template"}])
def test_without_a_template_the_text_of_the_messages_is_completed(server):
    asked = ask_twice(FakeServer(**server))
    assert [one["prompt"] for one in asked] == ["Be brief.\n\nHello"] * 2
    assert all("messages" not in one for one in asked)


def test_a_chat_request_is_tried_once_per_server():
    """Else every request would come later by the refusal of a first one."""
    fake = FakeServer(has_chat=False)
    ask_twice(fake)
    assert fake.num_refused == 1


def test_a_refusal_for_another_reason_is_not_hidden_by_a_completion():
    fake = FakeServer(refusal="maximum context length is 1024 tokens")
    with pytest.raises(RefusedError, match="1024 tokens"):
        ask_twice(fake)
    assert not fake.asked
