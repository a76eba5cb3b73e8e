"""TensorRT-LLM, with answers written from its sources, not from a real server."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from specbench.engines.served_engine import find_served
from specbench.errors import ServerError
from specbench.servers.client import StreamedResponse
from tests.engines.served.replay import answer, facts, recorded, start

TRTLLM = find_served("tensorrt_llm")
PAGE = recorded("tensorrt_llm_metrics.txt")
ANSWERS = {"/v1/chat/completions": recorded("tensorrt_llm_chat.sse")}


def test_the_tensorrt_llm_config_sets_counters_and_prefix_reuse(tmp_path):
    path = tmp_path / "speculative.yaml"
    path.write_text("speculative_config:\n  decoding_type: Eagle3\n", encoding="utf-8")
    drafted = start(tmp_path, "trtllm-serve", "m", "--config", str(path), config=path)
    command = TRTLLM.launch(drafted).command
    config = Path(command[command.index("--config") + 1])
    assert yaml.safe_load(config.read_text(encoding="utf-8")) == {
        "speculative_config": {"decoding_type": "Eagle3"},
        "kv_cache_config": {"enable_block_reuse": False},
        "enable_iter_perf_stats": True,
        "return_perf_metrics": True,
    }
    assert "reuse" not in path.read_text(encoding="utf-8")
    TRTLLM.launch(replace(drafted, keeps_prefixes=True))
    assert "enable_block_reuse: true" in config.read_text(encoding="utf-8")
    TRTLLM.launch(replace(drafted, constrains_output=True))
    assert "guided_decoding_backend: xgrammar" in config.read_text(encoding="utf-8")


def test_a_started_tensorrt_llm_gets_a_config_with_counters(tmp_path):
    plain = start(tmp_path, "trtllm-serve", "m", python=Path("/env/bin/python"))
    launch = TRTLLM.launch(plain)
    assert launch.command[:3] == ("/env/bin/trtllm-serve", "m", "--config")
    assert Path(launch.command[3]).is_file()
    assert launch.environment["TRTLLM_NO_USAGE_STATS"] == "1"


def test_facts_of_a_tensorrt_llm_server_are_read_from_its_metrics():
    info = facts("tensorrt_llm", {"/prometheus/metrics": PAGE})
    assert (info.k.value, info.kv_tokens) == (3, 16_000)
    assert (info.version, info.prefix_cache.value) == ("0.32.0", "off")
    assert info.settings["spec_draft_model"] == "eagle3"


@pytest.mark.parametrize(
    ("page", "k"),
    [(PAGE.replace('spec_enabled="true"', 'spec_enabled="false"'), 0), ("", None)],
    ids=["not speculating", "no counters"],
)
def test_k_is_refused_if_absent_or_unknown(page, k):
    assert facts("tensorrt_llm", {"/prometheus/metrics": page}).k.value == k


def test_rounds_of_a_tensorrt_llm_response_follow_from_its_mean():
    """7 tokens at 2.33 per iteration are 3: prefill and 2 rounds, which accepted 4 drafts."""
    response = answer("tensorrt_llm", ANSWERS).answer
    assert (response.text, response.num_tokens, response.num_first) == ("The answer is 12.", 7, 1)
    assert (list(response.token_ids), response.finish_reason) == ([], "stop")
    counts = TRTLLM.counts(response, 3)
    assert (counts.num_rounds, counts.num_accepted, counts.num_drafted) == (2, 4, None)
    assert TRTLLM.counts(response, 0) is None
    assert TRTLLM.counts(StreamedResponse(num_tokens=7), 3) is None


def test_a_mean_below_one_token_per_iteration_is_refused():
    response = StreamedResponse(num_tokens=7, metrics={"avg_decoded_tokens_per_iter": 0.5})
    with pytest.raises(ServerError, match="cannot be"):
        TRTLLM.counts(response, 3)


def test_only_fields_that_tensorrt_llm_accepts_are_sent():
    [request] = answer("tensorrt_llm", ANSWERS).requests
    engine_fields = {"top_k", "stream_options", "stream"}
    common = {"model", "max_tokens", "temperature", "top_p", "seed", "messages"}
    assert {*request} == engine_fields | common
