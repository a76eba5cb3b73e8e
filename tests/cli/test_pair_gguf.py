"""`specbench pair` with GGUF files: what llama.cpp compares, the plan, and exit codes."""

import json
import shlex
import sys
from collections.abc import Sequence
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

import pytest

from specbench.bench.planning import SERVED_KS, plan_run
from specbench.bench.served import running, trial
from specbench.bench.served.race import SessionTimes
from specbench.cli.pair import FEWEST_KS, fitted
from specbench.files.gguf import read_gguf
from specbench.inputs.config import load_pairings
from specbench.inputs.pairing import Pairing
from specbench.metrics import aggregate
from specbench.servers import process, traffic
from specbench.settings import RunSettings
from tests.bench.fake_runs import write_prompts
from tests.bench.served import fake_llama as fake_llama_server
from tests.cli.calls import specbench
from tests.examples import ROOT, examples
from tests.export.test_adaptive_schemes import program
from tests.gguf_files import HIDDEN, KV_BYTES, NUM_TOKENS, TOKENS, write_gguf
from tests.settings.flat_settings import settings_of


def more_tokens(count: int) -> tuple[str, ...]:
    return (*TOKENS, *(f"more{i}" for i in range(count)))


def swap_token(token_id: int) -> tuple[str, ...]:
    return (*TOKENS[:token_id], "other", *TOKENS[token_id + 1 :])


def pair(folder: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    ran = specbench("pair t.gguf --draft d.gguf --dry-run --json", *arguments, cwd=folder)
    return ran.code, json.loads(ran.out)


LLAMA_CPP = ("--engine", "llama_cpp")
SPM, ADDED = {"tokenizer__ggml__model": "llama"}, {"tokenizer__ggml__add_eos_token": True}
BOS, EOS = "tokenizer__ggml__bos_token_id", "tokenizer__ggml__eos_token_id"
EAGLE3: dict[str, Any] = {
    "general__architecture": "eagle3",
    "eagle3__target_hidden_size": HIDDEN,
    "eagle3__target_layers": [0, 1, 1],
}
ASSISTANT: dict[str, Any] = {
    "general__architecture": "gemma4-assistant",
    "gemma4-assistant__embedding_length_out": HIDDEN,
}
PAIRS: dict[str, tuple[Any, Any, Any, Any]] = {
    "the same": (TOKENS, {}, {}, None),
    "id 4 differs": (swap_token(4), {}, {}, None),
    "id 5 differs": (swap_token(5), {}, {}, ("tokens", "refused")),
    "the last id differs": (swap_token(NUM_TOKENS - 1), {}, {}, ("tokens", "refused")),
    "128 more": (more_tokens(128), {}, {}, ("vocab_size", "warning")),
    "129 more": (more_tokens(129), {}, {}, ("vocab_size", "refused")),
    "129 fewer": (TOKENS[:-129], {}, {}, ("vocab_size", "refused")),
    "other eos": (TOKENS, {}, {EOS: 3}, ("eos_token_id", "warning")),
    "other eos that is added": (TOKENS, ADDED, {**ADDED, EOS: 3}, ("eos_token_id", "refused")),
    "eos added by one": (TOKENS, {}, ADDED, ("add_eos_token", "refused")),
    "other bos that is added": (TOKENS, SPM, {**SPM, BOS: 3}, ("bos_token_id", "refused")),
    "other tokenizer": (TOKENS, {}, SPM, ("tokenizer", "refused")),
    "a head": (TOKENS, {}, EAGLE3, None),
    "a head of another width": (
        *(TOKENS, {}, {**EAGLE3, "eagle3__target_hidden_size": 64}),
        ("hidden_size", "refused"),
    ),
    "a head of a deeper model": (
        *(TOKENS, {}, {**EAGLE3, "eagle3__target_layers": [1, 2, 3]}),
        ("target_layers", "refused"),
    ),
    "a head with other tokens": (swap_token(9), {}, EAGLE3, ("tokens", "refused")),
    "an assistant": (TOKENS, {"general__architecture": "gemma4"}, ASSISTANT, None),
    "an assistant of another family": (TOKENS, {}, ASSISTANT, ("architecture", "refused")),
    "a projector": (TOKENS, {}, {"general__type": "mmproj"}, ("files", "refused")),
    "an adapter": (TOKENS, {}, {"general__type": "adapter"}, ("files", "refused")),
}


@pytest.mark.parametrize(("tokens", "target", "draft", "expected"), PAIRS.values(), ids=PAIRS)
def test_a_gguf_pair_is_refused_by_the_rules_of_llama_cpp(
    tmp_path: Path, tokens: Any, target: Any, draft: Any, expected: Any
) -> None:
    write_gguf(tmp_path / "t.gguf", **target)
    write_gguf(tmp_path / "d.gguf", tokens, **draft)
    code, document = pair(tmp_path)
    (drafter,) = document["drafters"]
    findings = [(finding["field"], finding["level"]) for finding in drafter["findings"]]
    assert findings[:1] == ([expected] if expected else [])
    is_refused = ("refused" in expected) if expected else False
    assert code == (2 if is_refused else 0)
    assert (drafter["memory"] is None) == is_refused
    words = ("--target", "t.gguf", "--draft", "d.gguf", "--engine", "llama_cpp", "--dry-run")
    ran = specbench("run", *words, cwd=tmp_path)
    assert ran.code == (2 if is_refused else 0)


PAIRINGS = """
targets:
  mine:
    model: t.gguf
    drafters:
      small: {method: draft_model, model: ./sub/d.gguf}
      far: {method: draft_model, model: ./sub/far.gguf}
      ngram: {method: ngram}
"""


def test_files_in_a_pairings_file_are_planned_and_examined(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    write_gguf(tmp_path / "t.gguf")
    draft = write_gguf(tmp_path / "sub" / "d.gguf", more_tokens(20))
    write_gguf(tmp_path / "sub" / "far.gguf", more_tokens(129))
    (tmp_path / "pairings.yaml").write_text(PAIRINGS)
    assert specbench("sweep-k", "mine", *LLAMA_CPP, "--dry-run", cwd=tmp_path).code == 0
    made = specbench("export", "mine/small", *LLAMA_CPP, "-k", "2", cwd=tmp_path)
    assert (made.code, made.err) == (0, "")
    words = made.out.split()
    files = [words[words.index(flag) + 1] for flag in ("--model", "--model-draft")]
    assert [(tmp_path / file).resolve() for file in files] == [tmp_path / "t.gguf", draft]
    assert specbench("export mine/small --engine vllm", cwd=tmp_path).code == 2
    ran = specbench("doctor mine --json", cwd=tmp_path)
    assert [row["ready"] for row in json.loads(ran.out)["pairings"]] == [True, False, True]
    assert ran.code == 1
    words = ("mine/small", *LLAMA_CPP, "--dry-run", "--json")
    (estimate,) = json.loads(specbench("run", *words, cwd=tmp_path).out)["estimates"]
    assert estimate["dtype"] == "Q8_0"
    assert estimate["memory_bytes"] > (2 * NUM_TOKENS + 20) * 34


WRONG_FILES: dict[str, tuple[str, str]] = {
    "of a dtype": ("d.gguf}", "d.gguf, dtype: float16}"),
    "absent": ("./sub/d.gguf", "./absent.gguf"),
    "cut": ("./sub/d.gguf", "./cut.gguf"),
    "a checkpoint": ("./sub/d.gguf", "demo:draft"),
    "for a head": ("draft_model", "eagle3"),
}


@pytest.mark.parametrize(("old", "new"), WRONG_FILES.values(), ids=WRONG_FILES)
def test_a_wrong_gguf_file_exits_2_before_a_start(tmp_path: Path, old: str, new: str) -> None:
    (tmp_path / "sub").mkdir()
    content = write_gguf(tmp_path / "t.gguf").read_bytes()
    for name in ("d", "far"):
        write_gguf(tmp_path / "sub" / f"{name}.gguf")
    (tmp_path / "cut.gguf").write_bytes(content[:200])
    (tmp_path / "pairings.yaml").write_text(PAIRINGS.replace(old, new))
    ran = specbench("run", "mine/small", *LLAMA_CPP, cwd=tmp_path)
    assert (ran.code, ran.out) == (2, "")
    assert "gguf" in ran.err.lower()
    assert not (tmp_path / "reports").exists()


def test_the_plan_has_both_files_and_their_caches(tmp_path: Path) -> None:
    write_gguf(tmp_path / "t.gguf")
    write_gguf(tmp_path / "d.gguf", more_tokens(20), llama__attention__head_count_kv=1)
    sizes = ("--plan-context", "1000", "--concurrency", "3", "-k", "4", "--gpu", "H100")
    _, document = pair(tmp_path, *sizes)
    memory = document["drafters"][0]["memory"]
    weights = [NUM_TOKENS * 34, (NUM_TOKENS + 20) * 34]
    assert [memory[name]["nbytes"] for name in ("target", "draft")] == weights
    assert memory["peak"]["kv_cache"] == 3 * (1000 + 4 + 1) * KV_BYTES * 1.5
    assert memory["peak"]["rest"] == 512 * 4 * (2 * NUM_TOKENS + 20 + 2 * HIDDEN)
    assert memory["max_context"] == 4096
    reads = [weights[0] + 3000 * KV_BYTES, weights[1] + 3000 * KV_BYTES // 2]
    assert memory["break_even_length"] == pytest.approx(1 + 4 * reads[1] / reads[0])


def test_a_block_head_drafts_in_one_forward(tmp_path: Path) -> None:
    write_gguf(tmp_path / "t.gguf")
    write_gguf(tmp_path / "d.gguf", general__architecture="dflash")
    _, document = pair(tmp_path, "-k", "4", "--gpu", "H100")
    assert document["drafters"][0]["memory"]["break_even_length"] == pytest.approx(2)


def test_a_pair_that_may_be_too_large_is_not_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows, layers on the host and several GPUs need less of a GPU than the plan."""
    write_gguf(tmp_path / "t.gguf")
    write_gguf(tmp_path / "d.gguf", llama__attention__key_length=2**26)
    code, document = pair(tmp_path, "--gpu-memory", "24GiB")
    memory = document["drafters"][0]["memory"]
    assert (code, memory["fits"], memory["headroom_bytes"] < 0) == (0, None, True)
    words = "pair t.gguf --draft d.gguf --dry-run --gpu-memory"
    assert "warning  d.gguf: memory: at most " in specbench(words, "24GiB", cwd=tmp_path).out
    assert "fits     d.gguf: " in specbench(words, "99TiB", cwd=tmp_path).out
    (tmp_path / "pairings.yaml").write_text(
        "targets: {t: {model: t.gguf, drafters: {d: {method: draft_model, model: d.gguf}}}}"
    )
    monkeypatch.setattr("specbench.probes.host.host_available_bytes", lambda: 24 * 2**30)
    ran = specbench("doctor t/d --json", cwd=tmp_path)
    (row,) = json.loads(ran.out)["pairings"]
    assert (ran.code, row["ready"]) == (0, True)
    assert any("needs at most " in note for note in row["notes"])


def test_the_facts_of_readable_files_are_printed(tmp_path: Path) -> None:
    write_gguf(tmp_path / "t.gguf")
    write_gguf(tmp_path / "d.gguf")
    (tmp_path / "cut.gguf").write_bytes((tmp_path / "d.gguf").read_bytes()[:-1])
    drafts = ("--draft", "d.gguf", "--draft", "cut.gguf,absent.gguf")
    ran = specbench("pair t.gguf --dry-run", *drafts, cwd=tmp_path)
    for part in ("BPE", "Q8_0", "refused  cut.gguf", "refused  absent.gguf"):
        assert part in ran.out
    document = json.loads(specbench("pair t.gguf --dry-run --json", *drafts, cwd=tmp_path).out)
    assert list(document["files"]) == ["t.gguf", "d.gguf"]
    facts = document["files"]["d.gguf"]
    assert {"eos": 2, "add_bos": False, "kv_bytes_per_token": KV_BYTES}.items() <= facts.items()


WRONG_WORDS = {  # and the word that the error names
    "absent.gguf --draft d.gguf": "absent.gguf",
    "cut.gguf --draft d.gguf": "cut.gguf",
    "d.gguf --draft demo:draft": "demo:draft",
    "d.gguf --discover": "--discover",
    "d.gguf --search-dir absent": "absent",
    "d.gguf --output new.yaml": "--output",
    "d.gguf --measure-top 1": "--measure-top",
    "d.gguf --threads 2": "--threads",
    "demo:target --engine-python llama-server": "GGUF",
}


@pytest.mark.parametrize(("words", "wrong"), WRONG_WORDS.items())
def test_pair_exits_2_for_words_that_do_not_go_with_a_gguf_file(
    tmp_path: Path, words: str, wrong: str
) -> None:
    content = write_gguf(tmp_path / "d.gguf").read_bytes()
    (tmp_path / "cut.gguf").write_bytes(content[:100])
    ran = specbench("pair", *words.split(), cwd=tmp_path)
    assert (ran.code, ran.out) == (2, "")
    assert wrong in ran.err


def folder_of_files(folder: Path) -> None:
    """A target with MTP layers, and files that do and do not draft for it."""
    large, small = {"token_embd.weight": (HIDDEN, NUM_TOKENS)}, {"token_embd.weight": (32, 32)}
    mtp = {"llama__nextn_predict_layers": 1}
    write_gguf(folder / "t.gguf", tensors={**large, "blk.0.nextn.eh_proj.weight": (32, 2)}, **mtp)
    write_gguf(folder / "small.gguf", tensors=small)
    write_gguf(folder / "head.gguf", tensors=small, **EAGLE3)
    flash, markov = {"general__architecture": "dflash"}, {"markov_w1.weight": (32, 2)}
    write_gguf(folder / "block.gguf", tensors=small, **flash)
    write_gguf(folder / "spark.gguf", tensors={**small, **markov}, **flash)
    selector = {"selector_hidden.weight": (HIDDEN, 2)}
    write_gguf(folder / "second.gguf", tensors={**small, **selector}, **flash)
    write_gguf(folder / "layers.gguf", tensors={"blk.1.nextn.eh_proj.weight": (32, 2)}, **mtp)
    write_gguf(folder / "as-large.gguf", tensors={"token_embd.weight": (HIDDEN, 2 * NUM_TOKENS)})
    write_gguf(folder / "eyes.gguf", general__architecture="clip", general__type="mmproj")
    write_gguf(folder / "lora.gguf", general__type="adapter")
    write_gguf(folder / "split-00002-of-00002.gguf")
    write_gguf(folder / "split-00002-of-00000.gguf")
    write_gguf(folder / "half-00001-of-00002.gguf", tensors=small)


SERVER_HELP = """#!/bin/sh
echo "--spec-type none,draft-simple,draft-mtp,draft-dspark,draft-new,ngram-simple,ngram-mod"
echo "    comma-separated list of types of speculative decoding to use"
"""


def test_the_files_of_the_folder_are_listed_with_why_they_draft_or_not(tmp_path: Path) -> None:
    folder_of_files(tmp_path)
    (server := tmp_path / "server").write_text(SERVER_HELP)
    server.chmod(0o755)
    ran = specbench("pair t.gguf --dry-run --json --engine-python ./server", cwd=tmp_path)
    assert (ran.code, ran.err) == (0, "")
    document = json.loads(ran.out)
    found = {d["drafter"]: (d["method"], d["level"]) for d in document["drafters"]}
    assert found == {
        "mtp": ("mtp", "ok"),
        "ngram": ("ngram", "ok"),
        "small": ("draft_model", "ok"),
        "layers": ("mtp", "ok"),
        "head": ("eagle3", "refused"),  # this server has no draft-eagle3
        "block": ("dflash", "refused"),
        "second": ("dflash2", "refused"),
        "spark": ("dspark", "ok"),
        "ngram_mod": ("ngram_mod", "ok"),
        "mtp-ngram_mod": ("mtp+ngram_mod", "ok"),
        "small-ngram_mod": ("draft_model+ngram_mod", "ok"),
        "layers-ngram_mod": ("mtp+ngram_mod", "ok"),
        "head-ngram_mod": ("eagle3+ngram_mod", "refused"),
        "block-ngram_mod": ("dflash+ngram_mod", "refused"),
        "second-ngram_mod": ("dflash2+ngram_mod", "refused"),
        "spark-ngram_mod": ("dspark+ngram_mod", "ok"),
    }
    assert [*found][-2:] == ["ngram", "ngram_mod"]  # measured after those with weights
    assert all(d["memory"] for d in document["drafters"] if d["level"] == "ok")
    left_out = {Path(skipped["source"]).name for skipped in document["left_out"]}
    assert left_out == {
        *("as-large.gguf", "eyes.gguf", "lora.gguf", "half-00001-of-00002.gguf"),
        *("split-00002-of-00002.gguf", "split-00002-of-00000.gguf", "--spec-type draft-new"),
    }


def test_a_set_of_a_file_and_a_lookup_can_be_named(tmp_path: Path) -> None:
    folder_of_files(tmp_path)
    words = "pair t.gguf --draft small.gguf+ngram,mtp+ngram_map_k,ngram_cache --dry-run --json"
    document = json.loads(specbench(words, cwd=tmp_path).out)
    found = {d["drafter"]: (d["method"], bool(d["model"])) for d in document["drafters"]}
    assert found == {
        "small.gguf-ngram": ("draft_model+ngram", True),
        "mtp-ngram_map_k": ("mtp+ngram_map_k", False),
        "ngram_cache": ("ngram_cache", False),
    }


def gguf_hash(file: Path) -> str:
    return f"gguf-header:{read_gguf(file).header_sha256}"


def fake_llama(folder: Path) -> Path:
    """A llama-server that accepts two to three drafts per round."""
    (server := folder / "llama-server").write_text(
        f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m {fake_llama_server.__name__} "$@"\n'
    )
    server.chmod(0o755)
    return server


@pytest.mark.slow
def test_a_set_is_measured_and_its_command_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "LONGEST_S", 0.0)  # warm-up
    monkeypatch.setattr(traffic, "PAUSE_S", inf)  # a busy machine's leave requests out
    monkeypatch.setattr(aggregate, "MAX_CLIENT_LAG", inf)  # and make cells client-bound
    monkeypatch.setattr(process, "POLL_S", 0.01)
    large, small = {"token_embd.weight": (HIDDEN, NUM_TOKENS)}, {"token_embd.weight": (32, 32)}
    write_gguf(tmp_path / "t.gguf", tensors=large)
    write_gguf(tmp_path / "small.gguf", tensors=small)
    prompts = write_prompts(tmp_path / "talk.jsonl", [f"prompt {i}" for i in range(12)])
    server = fake_llama(tmp_path)
    ran = specbench(
        "pair t.gguf --draft small.gguf+ngram_mod -k 0,4 --max-new-tokens 24",
        *("-w", prompts, "--engine-python", server, "--engine-args", "-ngl 99"),
        *("--plan-context", "512", "--time-budget", "20s", "--json"),
        cwd=tmp_path,
    )
    assert ran.code == 0, ran.err
    document = json.loads(ran.out)
    (entry,) = document["ranking"]
    assert (entry["drafter"], entry["num_speculative_tokens"]) == ("small.gguf-ngram_mod", 4)
    assert entry["speedup"] > 1.5
    words = shlex.split(document["command"])
    flags = dict(pairwise(words))
    assert words[0] == str(server)
    assert flags["--model-draft"] == "small.gguf"
    assert flags["--spec-type"] == "draft-simple,ngram-mod"
    assert (flags["--spec-draft-n-max"], flags["--spec-ngram-mod-n-max"]) == ("3", "4")
    assert (flags["--ctx-size"], flags["-ngl"]) == ("512", "99")
    before = {name: gguf_hash(tmp_path / name) for name in ("t.gguf", "small.gguf")}
    write_gguf(tmp_path / "t.gguf", tensors=small)  # what was measured is known all the same
    ran = specbench("report --row --json", cwd=tmp_path)
    (row,) = map(json.loads, ran.out.splitlines())
    assert {row[key]["name"]: row[key]["hash"] for key in ("model", "draft_model")} == before
    assert row["backend"] == "cuda"


def test_the_server_of_ik_llama_cpp_is_refused_by_its_name(tmp_path: Path) -> None:
    write_gguf(tmp_path / "t.gguf")
    server = program(tmp_path, "--spec-type Name --spec-autotune")
    ran = specbench(f"pair t.gguf --dry-run --engine-python {server}", cwd=tmp_path)
    assert ran.code == 2
    assert "--engine ik_llama_cpp" in ran.err


def twelve_prompts(folder: Path, **changes: Any) -> tuple[Sequence[Pairing], RunSettings]:
    """A GGUF file that drafts for itself, with a workload of twelve prompts."""
    write_gguf(folder / "t.gguf")
    (folder / "pairings.yaml").write_text(
        "targets: {t: {model: t.gguf, drafters: {a: {method: draft_model, model: t.gguf}}}}"
    )
    prompts = write_prompts(folder / "talk.jsonl", [f"prompt {i}" for i in range(12)])
    of_engine = {"pairings": ("t",), "workloads": (str(prompts),), "engines": ("llama_cpp",)}
    return load_pairings(folder / "pairings.yaml").all, settings_of(**of_engine, **changes)


def test_a_range_shortened_for_a_budget_stays_short_if_the_run_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pairings, settings = twelve_prompts(
        tmp_path,
        budget_s=60.0,
        num_speculative_tokens=tuple(range(9)),
        is_default_range=True,
    )
    monkeypatch.setattr(trial, "try_session", lambda *_: SessionTimes(10.0, 1.0))
    plan = fitted(plan_run(settings, pairings))
    again = plan_run(plan.settings, pairings)
    for planned in (plan, again):
        (target,) = planned.targets
        assert target.ks(pairings[0]) == FEWEST_KS
    (longer,) = plan_run(settings, pairings).targets
    assert longer.ks(pairings[0]) == SERVED_KS


def test_few_prompts_still_fill_the_batch_of_a_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    pairings, settings = twelve_prompts(
        tmp_path,
        budget_s=600.0,
        num_speculative_tokens=(0, 4),
        concurrency=(8,),
    )
    monkeypatch.setattr(trial, "try_session", lambda *_: SessionTimes(1.0, 0.1))
    plan = fitted(plan_run(settings, pairings))
    for planned in (plan, plan_run(plan.settings, pairings)):
        (target,) = planned.targets
        sent = target.pass_prompts(target.workloads[0], target.conditions[0])
        assert (len(sent), len({prompt.id for prompt in sent})) == (24, 12)
    assert "24 requests of each workload" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("budget_s", "concurrency", "is_enough"),
    [(41.0, 8, True), (40.0, 8, False), (18.0, 1, True), (17.9, 1, False)],
)
def test_too_little_time_is_what_the_sessions_that_confirm_would_take(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    budget_s: float,
    concurrency: int,
    is_enough: bool,
) -> None:
    """A cycle of K = 0 and one K, and two that confirm, are 12 sessions: of 24 requests, 3.4 s
    each, or of six prompts, 1.5 s each, as six others are left."""
    monkeypatch.chdir(tmp_path)
    pairings, settings = twelve_prompts(
        tmp_path,
        budget_s=budget_s,
        num_speculative_tokens=(0, 4),
        concurrency=(concurrency,),
        num_prompts=None if concurrency > 1 else 6,
    )
    per_prompt = 0.1 if concurrency > 1 else 0.5 / 6
    monkeypatch.setattr(trial, "try_session", lambda *_: SessionTimes(1.0, per_prompt))
    fitted(plan_run(settings, pairings))
    assert ("too little time" not in capsys.readouterr().err) is is_enough


def test_a_server_that_lists_no_types_refuses_no_method(tmp_path: Path) -> None:
    folder_of_files(tmp_path)
    words = ("pair t.gguf --dry-run --json --engine-python", str(tmp_path / "absent"))
    document = json.loads(specbench(*words, cwd=tmp_path).out)
    assert {d["level"] for d in document["drafters"]} == {"ok"}
    assert any("unknown" in note for note in document["machine"]["notes"])


def test_the_examples_of_the_page_run(tmp_path: Path) -> None:
    blocks = [example for example in examples(ROOT / "docs" / "pair.md") if ".gguf" in example.text]
    commands = [words for block in blocks for words in block.commands]
    assert {words[1] for words in commands} == {"pair"}
    for words in commands:
        for word in (word for word in words if word.endswith(".gguf")):
            write_gguf(tmp_path / word)
        assert specbench(*words[1:], "--dry-run", cwd=tmp_path).code == 0
