"""ik_llama.cpp's server, with recorded answers of a real one, and both dialects of its flags."""

from dataclasses import replace
from pathlib import Path

import pytest

from specbench.engines.deployment import find_exporter
from specbench.engines.served_engine import counter_pages, find_served
from specbench.errors import UsageError
from specbench.servers.metrics_page import read_counters
from tests.engines.served.replay import REQUEST, answer, facts, recorded, start
from tests.export.deployments import deployment, exported, flag
from tests.export.recorded_parser import METHODS, parse
from tests.export.test_adaptive_schemes import program

IK = find_served("ik_llama_cpp")
SERVER = {
    f"/{page.replace('v1_', 'v1/')}": recorded(f"ik_llama_cpp_{file}")
    for page, file in (
        ("props", "props.json"),
        ("slots", "slots.json"),
        ("metrics", "metrics.txt"),
        ("v1_models", "models.json"),
    )
}
ANSWERS = {"/v1/chat/completions": recorded("ik_llama_cpp_chat.sse")}


def test_tokens_past_the_end_of_the_text_are_not_counted():
    """`usage` counts 13: the last round accepted four drafts, and the first ended the text."""
    response = answer("ik_llama_cpp", ANSWERS).answer
    assert (response.text, response.finish_reason) == ("2 times 2 is 10.", "stop")
    assert (response.num_tokens, response.num_first, response.num_uncounted) == (10, 1, 0)
    assert len(response.token_ids) == 0
    counts = IK.counts(response, 4)
    assert (counts.num_rounds, counts.num_accepted, counts.num_overshot) == (4, 5, 3)
    assert (counts.num_drafted, counts.num_drafting) == (16, 4)
    assert sum(counts.num_by_accepted) == 4
    assert IK.counts(response, 0) is None


def test_an_answer_that_the_limit_ended_is_not_ended_by_the_text():
    """Its finish reason is "stop" as well, and all tokens of the last round are shown."""
    stream = ANSWERS["/v1/chat/completions"]
    cut = stream.replace('"completion_tokens":13', '"completion_tokens":9')
    assert cut != stream
    response = answer("ik_llama_cpp", {"/v1/chat/completions": cut}).answer
    assert (response.num_tokens, response.finish_reason) == (9, "length")


def test_rounds_without_text_leave_only_sums():
    events = ANSWERS["/v1/chat/completions"].split("\n\n")
    rest = [event for event in events if '"completion_tokens":8,' not in event]
    response = answer("ik_llama_cpp", {"/v1/chat/completions": "\n\n".join(rest)}).answer
    counts = IK.counts(response, 4)
    assert counts.num_by_accepted is counts.num_drafting is None
    assert counts.num_drafted == 16


def test_requests_turn_off_what_the_server_would_fill_in():
    (body,) = answer("ik_llama_cpp", ANSWERS).requests
    assert (body["top_k"], body["min_p"], body["cache_prompt"]) == (0, 0.0, False)
    assert body["timings_per_token"] is True
    kept = replace(REQUEST, keeps_prefixes=True)
    assert answer("ik_llama_cpp", ANSWERS, kept).requests[0]["cache_prompt"] is True


def test_its_pages_state_neither_version_nor_k():
    info = facts("ik_llama_cpp", SERVER)
    assert (info.version, info.model, info.k.state) == ("", "target.gguf", "unknown")
    assert (info.settings["n_ctx"], info.settings["total_slots"]) == ("1024", "1")


def test_its_counters_are_told_from_those_of_llama_cpp():
    pages = counter_pages()
    assert read_counters(SERVER["/metrics"], pages).engine == "ik_llama_cpp"
    assert read_counters(recorded("llama_cpp_metrics.txt"), pages).engine == "llama_cpp"


def test_the_chat_template_of_the_model_is_used(tmp_path, monkeypatch):
    (tmp_path / "t.gguf").touch()
    monkeypatch.chdir(tmp_path)
    command = IK.launch(start(tmp_path, "llama-server", "--model", "t.gguf")).command
    assert {"--jinja", "--metrics", "--cache-ram"} <= {*command}
    assert "--no-cache-prompt" not in command  # it has no such flag


OLD = "ik_llama_cpp_before_2026_06_04"


@pytest.mark.parametrize("method", METHODS["ik_llama_cpp"])
def test_flags_follow_the_build(method):
    for version in (None, "2026-09", "b4900"):
        parse(exported("ik_llama_cpp", deployment(method), version))
    first = {"dflash": "2026-06-16", "dspark": "2026-08-10"}.get(method, "2026-06-04")
    newest = exported("ik_llama_cpp", deployment(method)).written_for
    assert newest == f"builds since {first}"
    if method in ("dflash", "dspark", "gemma4_mtp"):
        with pytest.raises(UsageError, match=r"a build since 2026-0[68]"):
            exported("ik_llama_cpp", deployment(method), "2026-05")
        return
    for version in ("2026-05", "b4556"):
        parse(exported("ik_llama_cpp", deployment(method), version), OLD)
    with pytest.raises(ValueError, match=r"is unknown|is not one of"):
        parse(exported("ik_llama_cpp", deployment(method)), OLD)


def test_a_stage_has_k_and_what_else_the_method_sets():
    new, old = exported("ik_llama_cpp", deployment("mtp", 3)), deployment("ngram_mod", 16)
    assert flag(new, "--spec-type") == "mtp:n_max=3,n_min=0,p_min=0"
    stage = "ngram-mod:n_max=16,ngram_size_n=24,n_min=1"
    assert flag(exported("ik_llama_cpp", old), "--spec-type") == stage
    command = exported("ik_llama_cpp", deployment("mtp", 3), "2026-05").command
    assert command[3:] == ("-mtp", "--draft-max", "3", "--draft-min", "0", "--draft-p-min", "0")


def test_an_export_with_a_draft_model_asks_for_a_context():
    for method, asks in (("draft_model", True), ("mtp", False)):
        notes = exported("ik_llama_cpp", deployment(method)).not_expressed
        assert any("--ctx-size" in note for note in notes) == asks


def test_a_build_is_asked_for_its_number_or_else_for_its_flags(tmp_path):
    ask = IK.PROPERTIES.ask_version
    assert ask(program(tmp_path, "version: 4840 (8337e4cd)")) == "b4840"
    assert ask(program(tmp_path, "version: 0 (unknown) --spec-type SPEC[:k=v] ")) == "2026-06-04"
    assert ask(program(tmp_path, "-mtp, --spec-autotune")) == "2026-04-08"
    assert ask(program(tmp_path, "-mtp")) == "2026-02-22"
    assert ask(program(tmp_path, "--model")) is None
    assert ask(Path("/nowhere/llama-server")) is None


def test_it_tunes_its_drafts_by_its_own_scheme_if_the_build_has_one(tmp_path):
    exporter, made = find_exporter("ik_llama_cpp"), deployment("draft_model")
    assert exporter.adaptive(made, None, None) == {"autotune": ("--spec-autotune",)}
    assert exporter.adaptive(made, None, program(tmp_path, "--spec-autotune"))
    with pytest.raises(UsageError, match="2026-04-08"):
        exporter.adaptive(made, None, program(tmp_path, "-mtp"))
    with pytest.raises(UsageError, match="2026-04-08"):
        exporter.adaptive(made, "2026-03", None)
