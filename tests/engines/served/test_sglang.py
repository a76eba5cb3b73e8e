"""SGLang, with answers written from its sources, not from a real server."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from specbench.engines.served_engine import find_served
from specbench.errors import ServerError
from tests.engines.served.replay import REQUEST, answer, facts, recorded, start

SGLANG = find_served("sglang")
INFO = json.loads(recorded("sglang_server_info.json"))
ANSWERS = {"/v1/chat/completions": recorded("sglang_chat.sse")}


def server_info(info: dict[str, object]) -> dict[str, str]:
    return {"/server_info": json.dumps(INFO | info)}


def test_concurrency_is_the_same_with_and_without_speculation(tmp_path):
    plain = start(tmp_path, "python", "-m", "sglang.launch_server", "--model-path", "m")
    command = SGLANG.launch(plain).command
    assert command[:5] == plain.exported
    assert command[command.index("--max-running-requests") + 1] == "8"
    assert {"--enable-metrics", "--disable-radix-cache"} <= {*command}
    kept = SGLANG.launch(replace(plain, keeps_prefixes=True, python=Path("/env/python"))).command
    assert kept[0] == "/env/python"
    assert "--disable-radix-cache" not in kept


def test_facts_of_an_sglang_server_are_read_from_its_pages():
    info = facts("sglang", server_info({"context_length": 512}))
    assert (info.version, info.model) == ("0.5.23", "tiny")
    assert (info.k.value, info.kv_tokens, info.context) == (3, 120_000, 512)
    assert info.prefix_cache.value == "off"
    assert info.settings["tp_size"] == "2"
    assert "quantization" not in info.settings
    assert "a-key-of-its-own" not in str(info)
    assert facts("sglang", server_info({"context_length": None})).context is None


@pytest.mark.parametrize(
    ("info", "k"),
    [
        ({"speculative_algorithm": None}, 0),
        ({"speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": 9}, 8),
        ({"speculative_algorithm": "DFLASH", "speculative_num_draft_tokens": 16}, 15),
        ({"speculative_num_steps": None, "speculative_num_draft_tokens": None}, None),
    ],
    ids=str,
)
def test_k_of_an_sglang_server_is_read_for_each_algorithm(info, k):
    assert facts("sglang", server_info(info)).k.value == k


def test_an_impossible_k_of_an_sglang_server_is_refused():
    with pytest.raises(ServerError, match=r"speculative_num_steps"):
        facts("sglang", server_info({"speculative_num_steps": 1_000_000}))


def test_sglang_kv_tokens_are_summed_over_data_parallel_ranks():
    old = {"/get_server_info": json.dumps(INFO | {"dp_size": 4, "disable_radix_cache": False})}
    info = facts("sglang", old)
    assert (info.kv_tokens, info.prefix_cache.value) == (480_000, "on")


def test_an_sglang_response_has_token_ids_and_counts():
    """2 rounds that accept 5 drafts would emit 7 tokens after the first, but there are 6."""
    response = answer("sglang", ANSWERS).answer
    assert (response.text, response.num_tokens, response.num_first) == ("The answer is 12.", 7, 1)
    assert list(response.token_ids) == [403, 552, 600, 311, 436, 16, 2]
    counts = SGLANG.counts(response, 3)
    assert (counts.num_rounds, counts.num_accepted, counts.num_overshot) == (2, 4, 1)
    assert (counts.num_drafted, counts.num_drafting) == (6, 2)
    assert SGLANG.counts(response, 0) is None


def test_a_request_to_sglang_asks_for_ids_and_counts():
    [request] = answer("sglang", ANSWERS).requests
    assert request["return_spec_tokens_details"]
    assert request["return_output_ids_in_sglext"]
    assert request["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert (request["top_k"], request["repetition_penalty"]) == (-1, 1)
    assert "cache_salt" in request
    kept = replace(REQUEST, keeps_prefixes=True)
    assert "cache_salt" not in answer("sglang", ANSWERS, kept).requests[0]
