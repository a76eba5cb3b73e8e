"""`specbench export`: a shell script, a file, a document, from a run or by hand."""

import json
import runpy
import shlex
import shutil
import subprocess
import sys
from contextlib import chdir, redirect_stdout
from io import StringIO

import pytest

from specbench.decide.recommend import is_undecided
from specbench.report.document import build_document
from specbench.runs import load_run
from tests.cli.calls import specbench

BY_HAND = ("-k", "3")


def decided_k(tiny, name):
    decisions = build_document(load_run("latest", tiny / "reports")).decisions
    return next(d for d in decisions if d.leader.pairing == name)


@pytest.mark.slow
def test_export_uses_the_newest_run(tiny, finished):
    assert finished.is_complete
    for name in ("tiny/draft", "tiny/ngram"):
        ran = specbench("export", name, "--engine", "vllm", cwd=tiny)
        decision = decided_k(tiny, name)
        if is_undecided(decision):
            assert (ran.code, ran.err) == (3, "")
            assert decision.sentence in ran.out
            assert "vllm serve" not in ran.out
            continue
        assert (ran.code, ran.err) == (0, "")
        assert f"# {decision.sentence}" in ran.out
        assert ("--speculative-config" in ran.out) == (decision.draft.k > 0)
        assert ("do not speculate" in ran.out) == (decision.draft.k == 0)


@pytest.mark.slow
def test_a_target_without_a_drafter_means_its_best_one(tiny, finished):
    assert finished.is_complete
    ran = specbench("export tiny --engine vllm --json", cwd=tiny)
    assert ran.code in (0, 3)
    assert json.loads(ran.out)["pairing"] in ("tiny/draft", "tiny/ngram")


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt_llm", "llama_cpp", "transformers"])
def test_export_prints_a_shell_script_that_ends_with_the_command(tiny, engine, tmp_path):
    ran = specbench("export tiny/draft --engine", engine, *BY_HAND, cwd=tiny)
    assert (ran.code, ran.err) == (0, "")
    document = json.loads(
        specbench("export tiny/draft --engine", engine, *BY_HAND, "--json", cwd=tiny).out
    )
    assert ran.out.splitlines()[-1] == document["command_line"]
    # The shell runs it with a stand-in for the engine: its words arrive as they were meant.
    program, *words = document["command"]
    stand_in = tmp_path / program
    stand_in.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    stand_in.chmod(0o755)
    shell = subprocess.run(
        ["sh", "-c", ran.out],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
    )
    assert shell.stdout.splitlines() == words
    if document["config"]:
        assert (tmp_path / document["config"]["name"]).read_text() == document["config"]["text"]


def test_output_writes_the_config_that_the_command_names(tiny, tmp_path):
    file = tmp_path / "my file.yaml"
    ran = specbench("export tiny/draft --engine tensorrt_llm", *BY_HAND, "--output", file, cwd=tiny)
    assert ran.code == 0
    assert "decoding_type: Draft_Target" in file.read_text()
    command = ran.out.splitlines()[-2]
    assert shlex.split(command)[-2:] == ["--config", str(file)]
    assert ran.out.splitlines()[-1] == f"# written: {file}"


def test_output_writes_the_command_without_a_config(tiny, tmp_path):
    file = tmp_path / "serve.sh"
    printed = specbench("export tiny/ngram --engine vllm", *BY_HAND, cwd=tiny).out
    assert (
        specbench("export tiny/ngram --engine vllm", *BY_HAND, "--output", file, cwd=tiny).code == 0
    )
    assert file.read_text() == printed


def generated(tiny, tmp_path, pairing, k):
    """What the exported program prints for one prompt, run in this process."""
    file = tmp_path / f"generate_{k}.py"
    arguments = ("export", pairing, "--engine", "transformers", "-k", str(k), "--output", file)
    assert specbench(*arguments, cwd=tiny).code == 0
    printed = StringIO()
    with pytest.MonkeyPatch.context() as patch, chdir(tiny), redirect_stdout(printed):
        patch.setattr(sys, "argv", [str(file), "Name", "a", "colour"])
        runpy.run_path(str(file))
    return printed.getvalue()


@pytest.mark.sampled(one_in=2)
@pytest.mark.slow
@pytest.mark.parametrize("pairing", ["tiny/draft", "tiny/ngram"])
def test_the_program_for_transformers_runs_and_is_lossless(tiny, tmp_path, pairing):
    alone = generated(tiny, tmp_path, pairing, 0)
    assert len(alone) > 20
    assert generated(tiny, tmp_path, pairing, 3) == alone


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("nobody/draft --engine vllm", "no pairing 'nobody/draft'"),
        ("tiny/draft --engine ollama", "choose from llama_cpp"),
        ("tiny/draft --engine vllm --engine-version 0.1", "before 0.30"),
        ("tiny --engine vllm -k 3", "-k 3: name one drafter"),
        ("tiny/draft --engine vllm -k 3 --run x", "exclude each other"),
        ("tiny/draft --engine vllm -k 3 -w poems", "-w selects among"),
        ("tiny/draft --engine vllm -k 3 --concurrency 2", "--concurrency selects"),
        ("tiny/draft --engine vllm --run no-run", "no run 'no-run'"),
        ("tiny/draft --engine vllm -w poems", "no decision for tiny/draft on poems"),
        ("tiny/draft --engine vllm --runs-dir elsewhere", "no run in elsewhere measured"),
        ("tiny/draft --engine vllm -k 3 --output no/such/dir", "cannot write"),
    ],
)
def test_export_exits_2_for_invalid_arguments(tiny, finished, arguments, complaint):
    assert finished.is_complete
    ran = specbench(f"export {arguments}", cwd=tiny)
    assert (ran.code, ran.out) == (2, "")
    assert complaint in ran.err


def test_a_run_with_dummy_weights_gives_no_k_to_export(tiny, finished, tmp_path):
    assert finished.is_complete
    source = load_run("latest", tiny / "reports").folder
    copy = tmp_path / "reports" / source.name
    shutil.copytree(source, copy)
    text = (copy / "run.json").read_text()
    (copy / "run.json").write_text(text.replace('"dummy_weights": false', '"dummy_weights": true'))
    ran = specbench("export tiny/draft --engine vllm --runs-dir", copy.parent, cwd=tiny)
    assert ran.code == 2
    assert "which K" in ran.err
