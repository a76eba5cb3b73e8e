"""vLLM, with recorded answers of a real one."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from specbench.engines.served_engine import find_served
from specbench.errors import UsageError
from specbench.records import Message
from specbench.servers.client import StreamedResponse
from tests.engines.served.replay import REQUEST, answer, facts, recorded, start

VLLM = find_served("vllm")
SPECULATIVE = ("vllm", "serve", "m", "--speculative-config", "{}")
ANSWERS = {"/v1/chat/completions": recorded("vllm_chat.sse")}
SERVER = {
    "/version": recorded("vllm_version.json"),
    "/v1/models": recorded("vllm_models.json"),
    "/metrics": recorded("vllm_metrics.txt"),
}


def test_a_server_is_started_by_its_command_or_by_the_python_of_its_environment(tmp_path):
    launched = VLLM.launch(start(tmp_path, "vllm", "serve", "m", "--dtype", "float32"))
    assert launched.command[:5] == ("vllm", "serve", "m", "--dtype", "float32")
    assert launched.environment["VLLM_NO_USAGE_STATS"] == "1"
    python = VLLM.launch(start(tmp_path, "vllm", "serve", "m", python=Path("/env/bin/python")))
    module = ("-m", "vllm.entrypoints.openai.api_server", "--model", "m")
    assert python.command[0] == "/env/bin/python"
    assert python.command[3:7] == module


def test_per_request_counts_are_enabled_only_with_speculation(tmp_path):
    flags = ("--per-request-spec-decode-metrics", "detailed")
    assert VLLM.launch(start(tmp_path, *SPECULATIVE)).command[-2:] == flags
    assert flags[0] not in VLLM.launch(start(tmp_path, "vllm", "serve", "m")).command


def test_prefixes_are_kept_only_if_enabled(tmp_path):
    assert "--no-enable-prefix-caching" in VLLM.launch(start(tmp_path, *SPECULATIVE)).command
    kept = VLLM.launch(start(tmp_path, *SPECULATIVE, keeps_prefixes=True)).command
    assert "--enable-prefix-caching" in kept
    assert "--no-enable-prefix-caching" not in kept


def test_concurrency_is_passed_only_beyond_the_engines_default(tmp_path):
    few = start(tmp_path, *SPECULATIVE)
    assert "--max-num-seqs" not in VLLM.launch(few).command
    command = VLLM.launch(replace(few, max_concurrency=200)).command
    assert command[command.index("--max-num-seqs") + 1] == "200"


@pytest.mark.parametrize(
    "words",
    [
        ("--speculative-config.draft_tensor_parallel_size", "2"),
        ("--speculative_config.draft_tensor_parallel_size=2",),
        ("--speculative-config", '{"draft_tensor_parallel_size": 2}'),
    ],
)
def test_user_speculative_config_fields_are_merged_except_at_k_0(tmp_path, words):
    ours = {"method": "ngram", "num_speculative_tokens": 4}
    exported = (*SPECULATIVE[:-1], json.dumps(ours))
    given = {"arguments": ("--seed", "1", *words, "--enforce-eager")}
    command = VLLM.launch(start(tmp_path, *exported, **given)).command
    (config,) = (command[i + 1] for i, w in enumerate(command) if w == "--speculative-config")
    assert json.loads(config) == {**ours, "draft_tensor_parallel_size": 2}
    assert command[-3:] == ("--seed", "1", "--enforce-eager")
    plain = VLLM.launch(start(tmp_path, "vllm", "serve", "m", **given)).command
    assert plain[-3:] == ("--seed", "1", "--enforce-eager")
    assert not any("speculative" in word for word in plain)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--speculative-config.num_speculative_tokens", "8"), "'num_speculative_tokens'"),
        (("--speculative-config", '{"method": "eagle"}'), "'method'"),
        (("-sc", "draft"), "'draft'"),
    ],
)
def test_fields_that_specbench_sets_are_refused(tmp_path, words, message):
    exported = (*SPECULATIVE[:-1], '{"method": "ngram", "num_speculative_tokens": 4}')
    with pytest.raises(UsageError, match=message):
        VLLM.launch(start(tmp_path, *exported, arguments=words))


def test_facts_of_a_vllm_server_are_read_from_its_pages():
    info = facts("vllm", SERVER)
    assert (info.version, info.model, info.k.value) == ("0.32.0", "demo/target", 4)
    assert (info.kv_tokens, info.prefix_cache.value, info.context) == (58240, "off", 1024)
    assert info.settings["block_size"] == "128"
    assert info.settings["max_model_len"] == "1024"
    unknown = SERVER | {"/v1/models": '{"data": [{"id": "m"}]}'}
    assert facts("vllm", unknown).context is None


def test_a_server_without_counters_of_drafts_does_not_speculate():
    assert facts("vllm", SERVER | {"/metrics": "vllm:generation_tokens_total 3\n"}).k.value == 0
    assert facts("vllm", SERVER | {"/metrics": ""}).k.state == "unknown"


def test_an_older_server_reports_its_blocks():
    page = 'vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1\n'
    info = facts("vllm", SERVER | {"/metrics": page + page.replace("1\n", "1.0\n")})
    assert info.kv_tokens == 2 * 1600  # two ranks
    assert info.prefix_cache.state == "unknown"


def test_counts_of_a_recorded_vllm_response_exclude_overshot_drafts():
    """Rounds of 4, 4, 4, 0 and 4 accepted drafts; the limit leaves 2 of the last 5 tokens out."""
    response = answer("vllm", ANSWERS).answer
    assert (response.num_tokens, len(response.token_ids), response.num_first) == (20, 20, 1)
    assert (response.num_prompt_tokens, response.finish_reason) == (40, "length")
    counts = VLLM.counts(response, 4)
    assert (counts.num_rounds, counts.num_accepted, counts.num_overshot) == (5, 14, 2)
    assert (counts.num_drafted, counts.num_drafting, counts.num_rejecting) == (20, 5, 1)
    assert counts.num_by_accepted == (1, 0, 1, 0, 3)
    assert VLLM.counts(response, 0) is None


def test_a_vllm_summary_gives_sums_without_a_histogram():
    details = answer("vllm", ANSWERS).answer.metrics["speculative_decoding"]
    summary = {name: value for name, value in details.items() if not name.startswith("per_step")}
    response = StreamedResponse(num_tokens=20, metrics={"speculative_decoding": summary})
    counts = VLLM.counts(response, 4)
    assert (counts.num_rounds, counts.num_accepted, counts.num_overshot) == (5, 14, 2)
    assert counts.num_by_accepted is None
    assert VLLM.counts(StreamedResponse(num_tokens=20, metrics={}), 4) is None


def test_a_vllm_response_without_drafts_has_one_round_per_token():
    empty = {"num_spec_steps": 0, "num_accepted_draft_tokens": 0, "num_draft_tokens": 0}
    counts = VLLM.counts(StreamedResponse(num_tokens=5, metrics={"speculative_decoding": empty}), 2)
    assert (counts.num_rounds, counts.num_by_accepted) == (4, (4, 0, 0))


def test_a_request_to_vllm_has_its_settings_and_tools_and_asks_for_ids():
    tool = {"type": "function", "function": {"name": "add"}}
    request = replace(
        REQUEST,
        messages=(Message(role="user", content="Hello", extra={"name": "Ada"}),),
        tools=(tool,),
        template_args={"enable_thinking": False},
    )
    [body] = answer("vllm", ANSWERS, request).requests
    assert body["messages"] == [{"role": "user", "content": "Hello", "name": "Ada"}]
    assert body["tools"] == [tool]
    assert body["chat_template_kwargs"] == {"enable_thinking": False}
    assert (body["temperature"], body["top_p"], body["seed"]) == (0.5, 0.9, 7)
    assert (body["max_tokens"], body["model"]) == (20, "tiny")
    # Whatever the model's generation_config.json says.
    assert (body["top_k"], body["min_p"], body["repetition_penalty"]) == (-1, 0, 1)
    assert body["return_token_ids"]


def test_cached_prefixes_are_shared_only_on_request():
    salts = [answer("vllm", ANSWERS).requests[0]["cache_salt"] for _ in range(2)]
    assert salts[0] != salts[1]
    kept = replace(REQUEST, keeps_prefixes=True)
    assert "cache_salt" not in answer("vllm", ANSWERS, kept).requests[0]


@pytest.mark.parametrize("name", ["tools", "chat_template_kwargs"])
def test_empty_fields_are_not_sent(name):
    assert name not in json.dumps(answer("vllm", ANSWERS).requests)
