"""llama.cpp's server, with recorded answers of a real one."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from specbench.engines.served_engine import find_served
from specbench.errors import UsageError
from specbench.files.gguf import read_gguf
from specbench.servers.client import StreamedResponse
from tests.engines.served.replay import REQUEST, answer, facts, recorded, start
from tests.export.test_adaptive_schemes import program
from tests.gguf_files import write_gguf

LLAMA = find_served("llama_cpp")
SERVER = {
    "/props": recorded("llama_cpp_props.json"),
    "/slots": recorded("llama_cpp_slots.json"),
    "/v1/models": recorded("llama_cpp_models.json"),
    "/metrics": recorded("llama_cpp_metrics.txt"),
}
ANSWERS = {
    "/apply-template": recorded("llama_cpp_template.json"),
    "/tokenize": recorded("llama_cpp_tokens.json"),
    "/completion": recorded("llama_cpp_completion.sse"),
}
DRAFTED = ("llama-server", "--model", "t.gguf", "--model-draft", "d.gguf")


def with_model(folder: Path, *files: str) -> Path:
    for file in files:
        (folder / file).parent.mkdir(exist_ok=True, parents=True)
        (folder / file).touch()
    return folder


def test_every_llama_cpp_slot_has_the_context_of_one_request(tmp_path, monkeypatch):
    monkeypatch.chdir(with_model(tmp_path, "t.gguf", "d.gguf"))
    command = LLAMA.launch(start(tmp_path, *DRAFTED, context=512)).command
    assert command[:5] == DRAFTED
    assert command[command.index("--parallel") + 1] == "8"
    assert command[command.index("--ctx-size") + 1] == "4096"
    assert "--metrics" in command
    assert "--no-cache-prompt" in command


def test_llama_cpp_keeps_its_prompt_cache_on_request(tmp_path, monkeypatch):
    monkeypatch.chdir(with_model(tmp_path, "t.gguf", "d.gguf"))
    command = LLAMA.launch(start(tmp_path, *DRAFTED, keeps_prefixes=True)).command
    assert not {"--no-cache-prompt", "--cache-ram", "--ctx-size"} & {*command}


def test_the_llama_server_program_can_be_given(tmp_path, monkeypatch):
    monkeypatch.chdir(with_model(tmp_path, "t.gguf", "d.gguf"))
    command = LLAMA.launch(start(tmp_path, *DRAFTED, python=Path("/opt/llama-server"))).command
    assert command[0] == "/opt/llama-server"


@pytest.mark.parametrize("file", ["models/t.gguf", "models/t/t.gguf", "models/t/any-q8.gguf"])
def test_a_gguf_file_is_found_next_to_its_model_or_in_it(tmp_path, file):
    with_model(tmp_path, file)
    model = tmp_path / "models" / "t"
    command = LLAMA.launch(start(tmp_path, *DRAFTED[:3], models=(model,))).command
    assert command[2] == str(tmp_path / file)


def test_the_file_named_like_the_folder_is_used(tmp_path):
    with_model(tmp_path, "t/t.gguf", "t/a.gguf")
    command = LLAMA.launch(start(tmp_path, *DRAFTED[:3], models=(tmp_path / "t",))).command
    assert command[2] == str(tmp_path / "t" / "t.gguf")


def test_a_missing_gguf_file_is_an_error_with_the_convert_command(tmp_path, monkeypatch):
    monkeypatch.chdir(with_model(tmp_path, "t/a.gguf", "t/b.gguf"))
    with pytest.raises(UsageError, match=r"t\.gguf is not in") as error:
        LLAMA.launch(start(tmp_path, *DRAFTED, models=(tmp_path / "t",)))
    assert f"or {tmp_path / 't'};" in str(error.value)
    assert "convert_hf_to_gguf.py MODEL --outfile t.gguf" in str(error.value)
    assert "--engine-args '--model FILE'" in str(error.value)


def test_a_gguf_file_given_by_the_user_is_not_searched_for(tmp_path, monkeypatch):
    monkeypatch.chdir(with_model(tmp_path, "d.gguf"))
    arguments = ("--model", "/mine.gguf")
    assert LLAMA.launch(start(tmp_path, *DRAFTED, arguments=arguments)).command[-2:] == arguments


def test_facts_of_a_llama_cpp_server_are_read_from_its_pages():
    info = facts("llama_cpp", SERVER)
    assert (info.version, info.model, info.k.value) == ("b1-0c1e570", "target.gguf", 4)
    assert (info.settings["n_ctx"], info.settings["total_slots"]) == ("1024", "2")
    assert info.context == 1024  # of a slot
    assert facts("llama_cpp", SERVER | {"/props": "{}"}).context is None
    assert info.prefix_cache.value == "by request"


@pytest.mark.parametrize(
    ("listed", "devices"),
    [
        ("Available devices:\n  CUDA0: A (1 MiB)\n  CUDA1: B (1 MiB)", "CUDA0, CUDA1"),
        ("Available devices:\n  (none)", "none"),
        ("unknown argument: --list-devices", None),
    ],
)
def test_devices_and_files_are_those_of_the_command(tmp_path, listed, devices):
    server, file = program(tmp_path, listed), write_gguf(tmp_path / "t.gguf")
    header = f"Q8_0 {read_gguf(file).header_sha256}"
    words = ("--model", str(file), "--model-draft", str(tmp_path / "absent.gguf"))
    found = LLAMA.read_command((str(server), *words))
    assert (found.pop("devices", None), found) == (devices, {"gguf_file": header})


def test_k_is_read_from_idle_slots_or_from_counters_after_a_draft():
    off = SERVER["/slots"].replace("true", "false")
    page = "llamacpp:tokens_predicted_total 0\n"
    assert facts("llama_cpp", SERVER | {"/slots": off, "/metrics": page}).k.value == 0
    info = facts("llama_cpp", SERVER | {"/metrics": page})
    assert info.k.state == "unknown"
    assert facts("llama_cpp", SERVER | {"/slots": "", "/metrics": page}).k.state == "unknown"
    assert facts("llama_cpp", SERVER | {"/slots": ""}).k.value == 4


def test_counts_of_a_recorded_llama_cpp_response_exclude_the_overshot_draft():
    """The last draft is the end of text: the token that follows it is never sent."""
    response = answer("llama_cpp", ANSWERS).answer
    assert (response.num_tokens, len(response.token_ids), response.num_first) == (15, 15, 1)
    assert (response.finish_reason, response.token_ids[-1]) == ("stop", 2)
    assert response.num_prompt_tokens == 24
    assert response.metrics["draft_n_accepted"] == 9
    counts = LLAMA.counts(response, 4)
    assert (counts.num_rounds, counts.num_accepted, counts.num_overshot) == (6, 8, 1)
    assert (counts.num_drafted, counts.num_drafting, counts.num_rejecting) == (24, 6, 5)
    assert counts.num_by_accepted == (2, 1, 2, 1, 0)
    assert LLAMA.counts(response, 0) is None


def test_llama_cpp_completes_the_ids_of_the_templated_conversation():
    template, text, request = answer("llama_cpp", ANSWERS).requests
    assert template["messages"] == [{"role": "user", "content": "Hello"}]
    assert text["content"].startswith("<|im_start|>user")
    assert request["prompt"] == json.loads(ANSWERS["/tokenize"])["tokens"]
    assert (request["n_predict"], request["seed"], request["cache_prompt"]) == (20, 7, False)
    assert (request["temperature"], request["top_k"], request["min_p"]) == (
        0.5,
        0,
        0,
    )  # off, not its own
    kept = replace(REQUEST, keeps_prefixes=True)
    assert answer("llama_cpp", ANSWERS, kept).requests[-1]["cache_prompt"]


def test_token_ids_are_dropped_if_the_server_omits_one():
    """Only sums remain, in which rounds without drafts hide the tokens past the end."""
    events = ANSWERS["/completion"].split("\n\n")
    result = answer("llama_cpp", ANSWERS | {"/completion": "\n\n".join(events[:3] + events[4:])})
    assert (result.answer.num_tokens, list(result.answer.token_ids)) == (15, [])
    counts = LLAMA.counts(result.answer, 4)
    assert (counts.num_rounds, counts.num_accepted) == (5, 9)
    assert counts.num_by_accepted is counts.num_drafting is None


def test_a_stream_without_timings_has_unknown_counts():
    """Its draft tokens are not reported, which does not mean that there were none."""
    stream = ANSWERS["/completion"]
    bare = stream.replace('"timings":', '"other":')
    assert bare != stream
    response = answer("llama_cpp", ANSWERS | {"/completion": bare}).answer
    assert (response.num_tokens, len(response.token_ids)) == (15, 15)
    assert LLAMA.counts(response, 4) is None


def test_only_the_last_timings_leave_sums():
    first, last, end = ANSWERS["/completion"].rpartition('"timings":')
    stream = first.replace('"timings":', '"other":') + last + end
    counts = LLAMA.counts(answer("llama_cpp", ANSWERS | {"/completion": stream}).answer, 4)
    assert (counts.num_drafted, counts.num_by_accepted) == (24, None)


def test_rounds_without_drafts_are_counted_separately():
    """One token from prefill, two plain rounds, then a round of 3 drafts of which 1 is accepted."""
    steps = [(1, 0, 0), (2, 0, 0), (3, 0, 0), (4, 3, 1), (5, 3, 1)]
    token_steps = [LLAMA.TokenStep(*step) for step in steps]
    metrics = {"draft_n": 3, "draft_n_accepted": 1, "steps": token_steps}
    counts = LLAMA.counts(StreamedResponse(num_tokens=5, metrics=metrics), 4)
    assert (counts.num_rounds, counts.num_drafting, counts.num_accepted) == (3, 1, 1)


def test_the_users_confidence_stop_overrides_the_default(tmp_path, monkeypatch):
    monkeypatch.chdir(with_model(tmp_path, "t.gguf", "d.gguf"))
    off, on = ("--spec-draft-p-min", "0"), ("--spec-draft-p-min", "0.5")
    command = LLAMA.launch(start(tmp_path, *DRAFTED, *off, arguments=on)).command
    values = [command[i + 1] for i, word in enumerate(command) if word == on[0]]
    assert values == ["0", "0.5"]  # the last one holds
