"""llama.cpp's own server, compared with our decoder on the same prompts."""

import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest

from specbench.metrics.aggregate import aggregate_run
from specbench.metrics.speed import mean_num_speculative_tokens
from specbench.report.document import build_document
from specbench.shipped import DEMO_WORKLOADS
from tests.padded_pair import write_padded_pair
from tests.real_engines import make_gguf
from tests.real_engines.environments import GGUF, GLM, LLAMA_CPP, LLAMA_SERVER, SLOW
from tests.real_engines.sweeps import (
    ASKED,
    DRAFTING_K,
    EXACT,
    PLAIN,
    UNDECIDED,
    WORKLOADS,
    K,
    Sweep,
    faults_of_streams,
    pair_with_builtin,
    print_table,
    process,
    specbench,
    sweep,
    texts_other_than_without_speculation,
)

pytestmark = pytest.mark.engines

DRAFTERS = ("draft", "eagle3", "ngram")
STARTED = ("--engine", "llama_cpp", "--engine-python", LLAMA_SERVER)


@pytest.fixture(scope="module")
def builtin(tmp_path_factory) -> Sweep:
    pairings = [f"demo/{drafter}" for drafter in DRAFTERS]
    out = tmp_path_factory.mktemp("builtin")
    return sweep("run", *pairings, "-k", str(K), "--dtype", "float32", *ASKED, cwd=out, out=out)


@pytest.fixture(scope="module")
def drafting(tmp_path_factory) -> Sweep:
    """K = 0, 2 and 4 with the draft model."""
    options = ("-k", f"0,2,{K}", "--restart-cycles", "2", "--engine-args", " ".join(EXACT), *ASKED)
    out = tmp_path_factory.mktemp("drafting")
    return sweep("sweep-k", "demo/draft", *STARTED, *options, cwd=GGUF, out=out)


@pytest.fixture(scope="module")
def other_drafters(tmp_path_factory) -> Sweep:
    """The EAGLE-3 head, and llama.cpp's own lookup."""
    options = ("-k", f"0,{K}", "--restart-cycles", "2", "--engine-args", " ".join(EXACT), *ASKED)
    out = tmp_path_factory.mktemp("others")
    return sweep("sweep-k", "demo/eagle3", "demo/ngram", *STARTED, *options, cwd=GGUF, out=out)


def test_every_session_counts_and_its_two_counts_agree(drafting, other_drafters):
    """A request's `timings` and the metrics page; if they differ there is a warning."""
    for result in (drafting, other_drafters):
        assert result.run.is_complete
        assert result.run.servers
        assert [(s.place, s.problems, s.warnings) for s in result.run.servers] == [
            (s.place, (), ()) for s in result.run.servers
        ]
        assert not faults_of_streams(result)
    drafted = [s.counters["num_accepted"] for s in drafting.run.servers if s.drafter == "draft"]
    assert min(drafted) > 0


def test_drafts_leave_the_text_of_llama_cpp_unchanged(drafting, other_drafters):
    assert not texts_other_than_without_speculation(drafting, "draft", 2)
    assert not texts_other_than_without_speculation(drafting, "draft", K)
    assert not texts_other_than_without_speculation(other_drafters, "eagle3", K)
    assert not texts_other_than_without_speculation(other_drafters, "ngram", K)


def test_a_llama_cpp_sweep_decides_for_each_workload(drafting):
    for workload in WORKLOADS:
        assert f"\ndemo {workload}: " in drafting.ran.out
    assert ("undecided" in drafting.ran.out) == (drafting.ran.code == UNDECIDED)


def test_llama_cpp_accepts_as_many_drafts_as_our_decoder(drafting, other_drafters, builtin):
    print_table(drafting, builtin, "llama.cpp", ("draft",))
    print_table(other_drafters, builtin, "llama.cpp", ("eagle3", "ngram"))
    for engine, drafter in ((drafting, "draft"), (other_drafters, "eagle3")):
        for workload in WORKLOADS:
            same = pair_with_builtin(engine, builtin, drafter, workload, K)
            assert same.num_equal > same.num_texts / 2
            assert (same.rounds, same.accepted) == (same.own_rounds, same.own_accepted)
            engines = engine.cells[drafter, workload, K]["mean_acceptance_length_of_engine"]
            ours = engine.cells[drafter, workload, K]["mean_acceptance_length"]
            assert float(engines) >= float(ours)


def test_its_adaptive_scheme_drafts_fewer_tokens_and_leaves_the_text_unchanged(tmp_path):
    """`--spec-draft-p-min` beside the fixed K, and the comparison of both."""
    options = ("-k", f"0,{K}", "--adaptive", "--restart-cycles", "2", "-w", "mixed")
    options += ("--num-prompts", "5", "--engine-args", " ".join(EXACT))
    result = sweep("sweep-k", "demo/draft", *STARTED, *options, cwd=GGUF, out=tmp_path)
    assert not [server.problems for server in result.run.servers if server.problems]
    cells = {(c.key.condition.variant, c.k): c for c in aggregate_run(result.run)}
    assert cells.keys() == {(name, k) for name in ("default", "p_min") for k in (0, K)}
    scheme, plain = cells["p_min", K], cells["default", 0]
    assert scheme.key.draft.is_adaptive
    flag = ("--spec-draft-p-min", "0.75")
    assert {server.command[-2:] for server in scheme.servers} == {flag}
    assert 0 < (mean_num_speculative_tokens(scheme) or 0) < K
    texts = {(r.prompt_id, r.turn): r.output_ids for r in plain.finished}
    assert {r.output_ids == texts[r.prompt_id, r.turn] for r in scheme.finished} == {True}
    assert [row.adaptive.condition.variant for row in build_document(result.run).adaptive] == [
        "p_min"
    ]


@pytest.mark.parametrize("drafter", ["eagle", "medusa"])
def test_a_method_that_llama_cpp_lacks_is_refused(tmp_path, drafter):
    ran = specbench("run", f"demo/{drafter}", *STARTED, "--runs-dir", tmp_path, cwd=GGUF)
    assert ran.code == 2
    assert f"llama_cpp has no method {drafter}" in ran.err
    assert "Traceback" not in ran.err


def test_running_llama_cpp_servers_are_measured(tmp_path):
    with _server(tmp_path / "0.log") as plain, _server(tmp_path / "4.log", *DRAFTING_K) as fast:
        addresses = ("--base-url", f"{plain}#k=0", "--base-url", f"{fast}#k={K}")
        options = ("demo/draft", "--engine", "llama_cpp", *addresses, "-k", f"0,{K}", *ASKED)
        run_ = sweep("sweep-k", *options, "--restart-cycles", "2", cwd=GGUF, out=tmp_path / "runs")
    assert {s.num_speculative_tokens for s in run_.run.servers} == {0, K}
    assert not [s.problems for s in run_.run.servers if s.problems]
    assert {s.addresses for s in run_.run.servers} == {(plain,), (fast,)}
    assert float(run_.cells["draft", "code", K]["mean_acceptance_length"]) > 1
    assert not texts_other_than_without_speculation(run_, "draft", K)


@pytest.mark.parametrize(("padding", "drafts"), [(128, True), (129, False)])
def test_a_padded_pair_drafts_exactly_if_it_is_exported(tmp_path, padding, drafts):
    """Beyond 128 rows the server still starts, but drafts nothing."""
    folder = write_padded_pair(tmp_path, padding)
    target = tmp_path / "target.gguf"
    make = (sys.executable, make_gguf.__file__, LLAMA_CPP, folder / "target", target)
    subprocess.run(make, check=True, capture_output=True)
    ran = specbench("export", "padded/draft", "--engine", "llama_cpp", "-k", str(K), cwd=folder)
    assert ran.code == (0 if drafts else 2)
    with _server(tmp_path / "0.log", "--model", str(target)) as plain:
        text, _ = greedy(plain)
    with _server(tmp_path / "4.log", "--model", str(target), *DRAFTING_K) as server:
        drafted_text, timings = greedy(server)
    assert drafted_text == text
    assert (timings.get("draft_n_accepted", 0) > 10) == drafts


_OF = "tokenizer.ggml."
BOS, EOS = {f"{_OF}bos_token_id": 3}, {f"{_OF}eos_token_id": 3}
ADD_BOS, ADD_EOS = {f"{_OF}add_bos_token": True}, {f"{_OF}add_eos_token": True}
SPM = {f"{_OF}model": "llama", f"{_OF}merges": None}


def _more_tokens(num: int) -> dict[str, Any]:
    return {make_gguf.TOKENS: lambda tokens: [*tokens, *(f"<more{i}>" for i in range(num))]}


def _fewer(num: int) -> dict[str, Any]:
    return {make_gguf.TOKENS: lambda tokens: tokens[:-num]}


def _other_token(token_id: int) -> dict[str, Any]:
    return {
        make_gguf.TOKENS: lambda tokens: [
            "<other>" if i == token_id % len(tokens) else token for i, token in enumerate(tokens)
        ]
    }


# Changes of the target's keys, and of the draft model's.
GGUF_PAIRS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "the same": ({}, {}),
    "id 4 differs": ({}, _other_token(4)),
    "id 5 differs": ({}, _other_token(5)),
    "the last id differs": ({}, _other_token(-1)),
    "128 more": ({}, _more_tokens(128)),
    "129 more": ({}, _more_tokens(129)),
    "128 fewer": ({}, _fewer(128)),
    "129 fewer": ({}, _fewer(129)),
    "other bos": ({}, BOS),
    "bos added by one": ({}, ADD_BOS),
    "bos added by both": (ADD_BOS, ADD_BOS),
    "other bos added by both": (ADD_BOS, ADD_BOS | BOS),
    "other eos": ({}, EOS),
    "eos added by one": ({}, ADD_EOS),
    "other eos added by both": (ADD_EOS, ADD_EOS | EOS),
    "a split that adds bos": ({}, {f"{_OF}pre": "llama-bpe"}),
    "SPM and BPE": ({}, SPM),
    **{
        f"no {key}": ({}, {key: None})
        for key in (
            "general.architecture",
            "llama.block_count",
            "llama.context_length",
            "llama.embedding_length",
            "llama.feed_forward_length",
            "llama.attention.head_count",
            "llama.attention.head_count_kv",
            "llama.attention.layer_norm_rms_epsilon",
            f"{_OF}model",
            f"{_OF}pre",
            make_gguf.TOKENS,
            f"{_OF}merges",
            f"{_OF}eos_token_id",
        )
    },
}


@pytest.mark.parametrize(("of_target", "of_draft"), GGUF_PAIRS.values(), ids=GGUF_PAIRS)
def test_pair_and_the_server_agree_on_gguf_files(tmp_path, of_target, of_draft):
    target = make_gguf.change(LLAMA_CPP, GGUF / "target.gguf", tmp_path / "t.gguf", of_target)
    draft = make_gguf.change(LLAMA_CPP, GGUF / "draft.gguf", tmp_path / "d.gguf", of_draft)
    assert (_num_drafted(target, draft, tmp_path) > 0) == _is_accepted(target, draft)


def test_a_draft_model_may_be_larger_than_its_target(tmp_path):
    target, draft = (GGUF / f"{name}.gguf" for name in ("target", "draft"))
    assert _is_accepted(draft, target)
    assert _num_drafted(draft, target, tmp_path)


def test_gguf_files_are_measured_as_their_checkpoints_are(drafting, tmp_path):
    files = {name: {"model": str(GGUF / f"{name}.gguf")} for name in ("target", "draft")}
    draft = {"method": "draft_model", **files["draft"]}
    target = {**files["target"], "workloads": "demo", "drafters": {"draft": draft}}
    (tmp_path / "pairings.yaml").write_text(json.dumps({"targets": {"mine": target}}))
    options = ("-k", f"0,{K}", "--restart-cycles", "2", "--engine-args", " ".join(EXACT), *ASKED)
    run_ = sweep("sweep-k", "mine", *STARTED, *options, cwd=tmp_path, out=tmp_path / "runs")
    assert not [s.problems for s in run_.run.servers if s.problems]
    for workload in WORKLOADS:
        cells = [result.cells["draft", workload, K] for result in (run_, drafting)]
        lengths = {cell["mean_acceptance_length"] for cell in cells}
        assert len(lengths) == 1
        assert float(lengths.pop()) > 1


def test_pair_prints_a_command_that_starts_a_server_that_drafts(tmp_path):
    """All that can draft is in the folder of the target: a draft model, a head and lookup."""
    words = (SLOW.name, *STARTED[2:], "--engine-args", " ".join(EXACT), "--time-budget", "5m")
    workload = ("-w", DEMO_WORKLOADS / "code.jsonl", "--runs-dir", tmp_path)
    began_s = time.monotonic()
    ran = specbench("pair", *words, *workload, cwd=SLOW.parent)
    assert (ran.code, time.monotonic() - began_s < 1.5 * 300) == (0, True), ran.out + ran.err
    assert "fits     eagle3" in ran.out
    command = shlex.split(ran.out.splitlines()[-1])
    assert command[0] == str(LLAMA_SERVER)
    with process([*command, "--parallel", "1"], tmp_path / "log", cwd=SLOW.parent) as (root, _):
        _, timings = greedy(root)
    assert timings["draft_n_accepted"] > 0


# Drafters and the types that draft in an answer that repeats itself little.
OWN_LOOKUPS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "draft-ngram": ({"method": "draft_model+ngram"}, {"draft-simple", "ngram-simple"}),
    "draft-sure": ({"method": "draft_model+ngram", "p_min": 0.9}, {"draft-simple", "ngram-simple"}),
    "eagle3-cache": ({"method": "eagle3+ngram_cache"}, {"draft-eagle3", "ngram-cache"}),
    "map": ({"method": "ngram_map_k", "parameters": {"key_size": 3}}, {"ngram-map-k"}),
    "map4": ({"method": "ngram_map_k4v", "parameters": {"key_size": 3}}, {"ngram-map-k4v"}),
    "mod": ({"method": "ngram_mod", "parameters": {"match_length": 4}}, {"ngram-mod"}),
}
_DRAFTED = re.compile(r"statistics +(\S+): .*#gen drafts = +(\d+).*#gen tokens = +(\d+)")


@pytest.mark.parametrize("name", OWN_LOOKUPS)
def test_both_methods_of_a_set_draft_by_the_servers_log(tmp_path, name):
    entry, types = OWN_LOOKUPS[name]
    file = name.partition("-")[0]
    if "+" in entry["method"]:
        entry = {**entry, "model": str(GGUF / f"{file}.gguf")}
    target = {"model": str(GGUF / "target.gguf"), "drafters": {name: entry}}
    (tmp_path / "pairings.yaml").write_text(json.dumps({"targets": {"mine": target}}))
    ran = specbench(
        *("export", f"mine/{name}", "--engine", "llama_cpp", "-k", "8", "--json"), cwd=tmp_path
    )
    command = json.loads(ran.out)["command"]
    assert command[0] == "llama-server"
    with _server(tmp_path / "log", *command[1:], "--log-verbosity", "4") as root:
        body = {"n_predict": 300, "ignore_eos": True, "temperature": 0, "prompt": _PROMPT}
        request = Request(f"{root}/completion", json.dumps(body).encode())
        greedy(root)
        with urlopen(request) as response:
            assert json.load(response)["timings"]["draft_n_accepted"] > 0
    log = (tmp_path / "log").read_text()
    drafts: dict[str, int] = {}
    for kind, num_drafts, num_tokens in _DRAFTED.findall(log):
        drafts[kind] = int(num_drafts)
        if kind.startswith("draft-"):
            most = 3 * int(num_drafts)  # the default of model_drafts
            assert int(num_tokens) < most if "p_min" in entry else int(num_tokens) <= most
    assert {kind for kind, num in drafts.items() if num} == types


_PROMPT = (
    "<|im_start|>user\nWrite a function that adds two numbers.<|im_end|>\n<|im_start|>assistant\n"
)


def test_pair_finds_the_mtp_layers_of_a_file_and_a_k_that_pays(tmp_path):
    """A tiny model's tokens cost as much together as alone; those of this one do not, with two
    threads: one gains little."""
    words = (GLM.name, *STARTED[2:], "--engine-args", "--threads 2", "--time-budget", "5m")
    workload = ("-w", DEMO_WORKLOADS / "code.jsonl", "--runs-dir", tmp_path)
    ran = specbench("pair", *words, *workload, cwd=GLM.parent)
    assert ran.code == 0, ran.out + ran.err
    command = shlex.split(ran.out.splitlines()[-1])
    assert "draft-mtp" in command[command.index("--spec-type") + 1].split(",")
    with process([*command, "--parallel", "1"], tmp_path / "log", cwd=GLM.parent) as (root, _):
        _, timings = greedy(root)
    assert timings["draft_n_accepted"] > 10


def _is_accepted(target: Path, draft: Path) -> bool:
    ran = specbench("pair", target, "--draft", draft, "--dry-run", cwd=draft.parent)
    assert ran.code in (0, 2), ran
    return ran.code == 0


def _num_drafted(target: Path, draft: Path, folder: Path) -> int:
    """Draft tokens of one answer; 0 if the server does not start."""
    drafting = ("--spec-type", "draft-simple", "--spec-draft-p-min", "0")
    arguments = ("--model", target, "--model-draft", draft, *drafting)
    with _process(folder / "log", *arguments) as (root, server):
        try:
            return greedy(root, server)[1].get("draft_n", 0)
        except URLError:
            assert server.wait(timeout=60) != 0
            return 0


def greedy(root: str, server: subprocess.Popen[bytes] | None = None) -> tuple[str, dict[str, Any]]:
    """The text of a greedy answer and its timings; URLError if the server does not answer."""
    messages = [{"role": "user", "content": "Write a function that adds two numbers."}]
    body = {"messages": messages, "max_tokens": 64, "temperature": 0, "cache_prompt": False}
    request = Request(f"{root}/v1/chat/completions", json.dumps(body).encode())
    for i in range(60):
        try:
            with urlopen(request) as response:
                document = json.load(response)
            return document["choices"][0]["message"]["content"], document["timings"]
        except URLError:  # not up yet
            if i == 59 or (server is not None and server.poll() is not None):
                raise
            time.sleep(1)
    raise AssertionError


@contextmanager
def _server(log: Path, *arguments: str) -> Iterator[str]:
    """A server started by hand; specbench waits until it responds or reports that it does not."""
    with _process(log, *arguments) as (root, _):
        yield root


@contextmanager
def _process(log: Path, *arguments: str | Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    with process([*PLAIN, "--parallel", "1", *EXACT, *arguments], log) as started:
        yield started
