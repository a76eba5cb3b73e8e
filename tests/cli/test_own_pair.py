"""A pair without a file: --target and --draft."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from specbench.inputs.config import load_pairings
from specbench.runs import load_run
from tests.cli.calls import specbench
from tests.cli.conftest import SMALL


@pytest.mark.slow
def test_a_pair_of_two_folders_is_measured_stored_and_printed_as_yaml(tiny: Path, tmp_path: Path):
    ran = specbench(
        *("run", "--target", "./target", "--draft", "./draft", "--draft", "ngram"),
        *("-w", "prompts.jsonl", "-k", "2", "--out", tmp_path / "out", *SMALL),
        cwd=tiny,
    )
    assert ran.code in (0, 3), ran.err
    (folder,) = (tmp_path / "out").glob("*/run.json")
    run = load_run(folder.parent, tmp_path / "out")
    assert run.run.settings.workload.pairings == ("target/draft", "target/ngram")
    assert load_pairings(run.run.settings.pairings_file).all[0].drafter.method == "draft_model"

    _, _, rest = ran.err.partition("To keep this pair, write to pairings.yaml:\n\n")
    kept = yaml.safe_load(rest.partition("\n\n")[0])
    assert kept["targets"]["target"]["model"] == "./target"
    assert kept["targets"]["target"]["drafters"]["draft"]["model"] == "./draft"


@pytest.mark.slow
def test_an_interrupted_run_of_it_is_resumed_without_naming_it_again(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("specbench.bench.session.Session.run_block", interrupt)
        ran = specbench(
            *("run", "--target", "target", "--draft", "draft", "-w", "prompts.jsonl", "-k", "2"),
            *("--out", tmp_path / "out", *SMALL),
            cwd=tiny,
        )
    assert ran.code == 130
    (command,) = re.findall(r"Resume with: specbench (.*)$", ran.err, re.MULTILINE)
    again = specbench(*shlex.split(command), cwd=tiny)
    assert again.code in (0, 3), again.err


def test_a_dry_run_writes_nothing(tiny: Path, tmp_path: Path):
    ran = specbench(
        *("sweep-k", "--target", "./target", "--method", "ngram", "--dry-run"),
        *("-w", "prompts.jsonl", "--out", tmp_path / "out"),
        cwd=tiny,
    )
    assert ran.code == 0, ran.err
    assert "target/ngram" in ran.out
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--target", "./target", "--draft", ""], "--draft: expected a folder"),
        (["--draft", "./draft"], "--draft ./draft: say for which model, with --target"),
        (["tiny", "--target", "./target"], "--target ./target: leave out tiny"),
        (["--target", "./nowhere"], "the folder ./nowhere does not exist"),
        (["--target", "./target", "--draft", "eagle"], "--draft eagle: the method needs weights"),
        (["--resume", "latest", "--target", "./target"], "--resume keeps the pair of its run"),
    ],
)
@pytest.mark.parametrize("command", ["run", "sweep-k"])
def test_what_cannot_be_meant_is_refused(tiny: Path, command: str, words: list[str], said: str):
    ran = specbench(command, *words, cwd=tiny)
    assert ran.code == 2
    assert said in ran.err


def test_pair_takes_the_same_words(tiny: Path):
    ran = specbench("pair", "--target", "./target", "--draft", "./draft", "--dry-run", cwd=tiny)
    assert ran.code == 0, ran.err
    assert "draft" in ran.out
    assert specbench("pair", cwd=tiny).code == 2
