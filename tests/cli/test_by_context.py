"""K by context length, from a stored run and from a small real one."""

import json
import re
from pathlib import Path

import pytest

from tests.cli.calls import specbench
from tests.report.served_runs import context_run
from tests.report.stored_runs import keep

EXPORT = ("export", "demo/draft", "--engine", "vllm")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a run in which K = 4 helps up to 16k tokens and loses at 64k."""
    keep(tmp_path / "reports", "made", context_run((512, 16_384, 65_536)))
    return tmp_path


def test_recommend_ends_with_k_by_context(folder: Path) -> None:
    ran = specbench("recommend", "made", cwd=folder)
    assert "K=4 up to 16,384 tokens; do not speculate from 65,536" in " ".join(ran.out.split())
    (entry,) = json.loads(specbench("recommend made --json", cwd=folder).out)["by_context"]
    assert [at["num_speculative_tokens"] for at in entry["contexts"]] == [4, 4, 0]
    assert entry["break_even_k"] == 4


def test_export_takes_the_k_of_a_length(folder: Path) -> None:
    short = json.loads(specbench(*EXPORT, "--json", cwd=folder).out)
    assert [tier["num_speculative_tokens"] for tier in short["tiers"]] == [4]
    assert any("512 tokens is used for all" in text for text in short["not_expressed"])
    long = json.loads(specbench(*EXPORT, "--prompt-tokens", "64k", "--json", cwd=folder).out)
    assert [tier["num_speculative_tokens"] for tier in long["tiers"]] == [0]


def test_an_acceptance_export_is_for_one_prompt_length(folder: Path) -> None:
    export = ("export", "demo/draft", "--format", "speculation-profile", "--prompt-tokens")
    assert specbench(*export, "64k", cwd=folder).code == 0
    other = specbench(*export, "4k", cwd=folder)
    assert (other.code, "no valid acceptance" in other.err) == (2, True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--prompt-tokens 4k", "no decision .* with prompts of 4,096 tokens"),
        ("--prompt-tokens 512,64k", "expected a single length"),
        ("--prompt-tokens many", "expected tokens such as"),
        ("--prompt-tokens 512 -k 4", "-k sets K by hand"),
    ],
)
def test_a_length_that_cannot_be_exported_is_refused(folder: Path, options, message) -> None:
    ran = specbench(*EXPORT, *options.split(), cwd=folder)
    assert ran.code == 2
    assert re.search(message, " ".join(ran.err.split()))


@pytest.mark.slow
def test_a_measured_run_ends_with_k_by_context(tiny: Path, tmp_path: Path) -> None:
    options = ("-w", "code", "-k", "4", "--num-prompts", "5", "--max-new-tokens", "12")
    lengths = ("--prompt-tokens", "80,200", "--runs-dir", tmp_path)
    ran = specbench("run", "tiny/draft", *options, *lengths, cwd=tiny)
    assert ran.is_complete, ran.err
    answer = r"(K=4|undecided|do not speculate)"
    tiers = rf"({answer} from 80 to 200 tokens|{answer} up to 80 tokens; {answer} from 200)"
    line = ran.out.strip().splitlines()[-2]
    assert re.match(rf"tiny/draft, code, by context: {tiers}(; break-even with K=4: .*)?$", line)
    assert line in specbench("recommend", "--runs-dir", tmp_path, cwd=tiny).out
