"""What servers that run already say of themselves, and what is only believed of them."""

import asyncio
import re

import pytest

from specbench.bench.served.running import RunningServer, describe_servers, server_warnings
from specbench.errors import UsageError
from specbench.files.model_spec import ModelSpec
from specbench.inputs.address import Address
from specbench.inputs.pairing import Target
from tests.bench.served.running import running


def looked(*urls: str, engine: str = "vllm"):
    return asyncio.run(describe_servers(engine, urls))


def test_k_is_what_the_address_says_or_else_the_server():
    with running(0, 2) as (plain, drafting):
        found = looked(drafting.url, f"{plain.url}#k=0", plain.url)
        assert [(one.address.root, one.address.k, one.is_k_known) for one in found] == [
            (drafting.url, 2, True),
            (plain.url, 0, True),
            (plain.url, 0, True),
        ]
        with pytest.raises(UsageError, match="K = 2"):
            looked(f"{drafting.url}#k=4")
        with pytest.raises(UsageError, match="K = 0"):
            looked(f"{plain.url}#k=4")


def test_a_server_of_another_engine_is_refused_by_its_counters():
    with running(0) as (server,), pytest.raises(UsageError, match="--engine vllm"):
        looked(server.url, engine="sglang")


def test_what_is_believed_of_a_server_and_not_told_by_it_is_said():
    target = Target(name="big", model=ModelSpec(source="org/Llama-3-8B"), drafters=())

    def said(model, *, is_k_known=True, ks=(0, 4)):
        servers = [
            RunningServer(address=Address(root="http://a", k=k), model=model, is_k_known=is_k_known)
            for k in ks
        ]
        return list(server_warnings(servers, "vllm", target))

    for model in ("org/Llama-3-8B", "llama-3-8b", "/models/Llama-3-8B", "big", "llama-3-8b.gguf"):
        assert not said(model)
    one, _ = said("org/Llama-3-70B")
    assert re.search("org/Llama-3-70B, .*big .*org/Llama-3-8B", one)
    assert "#k=4" in said("big", is_k_known=False, ks=(0,))[0]
    (note,) = said("big", ks=(0, 0))
    assert re.match("2 servers .*K = 0: ", note)


def test_a_server_that_does_not_say_what_it_is_is_warned_of():
    target = Target(name="big", model=ModelSpec(source="big"), drafters=())
    address = Address(root="http://a", k=0)
    one = RunningServer(address=address, model="big", is_k_known=True, is_engine_known=False)
    assert list(server_warnings([one], "openai", target)) == []
    (told,) = server_warnings([one], "vllm", target)
    assert re.search("check .*vllm$", told)
