"""`specbench init`: its files work unchanged."""

import re
from pathlib import Path

import pytest
import yaml

from specbench.inputs.config import load_pairings
from specbench.inputs.workloads import load_workload
from specbench.settings.groups import DEFAULT_PROMPTS
from tests.cli.calls import specbench

FILES = ("pairings.yaml", "prompts.jsonl", ".github/workflows/specbench.yml")


def test_init_creates_a_project_that_is_ready_to_run(tmp_path: Path) -> None:
    ran = specbench("init", cwd=tmp_path)
    assert (ran.code, ran.err) == (0, "")
    names = [pairing.name for pairing in load_pairings(tmp_path / "pairings.yaml").all]
    assert names == ["target/draft", "target/ngram"]
    assert len(load_workload(str(tmp_path / "prompts.jsonl")).prompts) == DEFAULT_PROMPTS
    command = ran.out.splitlines()[-1].split()[1:]
    assert specbench(*command, "--dry-run", cwd=tmp_path).code == 0
    assert "  cd " not in ran.out


def test_init_writes_the_probability_at_which_drafting_stops(tmp_path: Path) -> None:
    assert specbench("init --draft-p-min 0.6", cwd=tmp_path).code == 0
    pairings = load_pairings(tmp_path / "pairings.yaml").all
    assert [pairing.name for pairing in pairings] == ["target/draft-p0.6", "target/ngram"]
    assert pairings[0].drafter.p_min == 0.6


def test_init_advises_to_change_into_the_new_folder_first(tmp_path: Path) -> None:
    ran = specbench("init", "my gate", cwd=tmp_path)
    advice, *commands = ran.out.splitlines()[-3:]
    assert "my gate/prompts.jsonl" in advice
    assert commands == [
        "  cd 'my gate'",
        "  specbench run target/draft -w ./prompts.jsonl",
    ]


def test_init_writes_the_given_pair_into_every_file(tiny: Path, tmp_path: Path) -> None:
    ran = specbench("init", tmp_path, "--target", "./target", "--draft", "./draft", cwd=tiny)
    assert (ran.code, ran.err) == (0, "")
    (pairing,) = load_pairings(tmp_path / "pairings.yaml").all
    assert pairing.target.model.folder is not None
    assert pairing.target.model.folder.resolve() == (tiny / "target").resolve()
    workflow = yaml.safe_load((tmp_path / FILES[2]).read_text())
    steps = [step.get("run", "") for step in workflow["jobs"]["gate"]["steps"]]
    assert any(f"specbench run {pairing.name} -w ./prompts.jsonl" in step for step in steps)
    # The comment makes the baseline with the candidate's number of threads.
    runs = re.findall(r"specbench run \S+ .*", (tmp_path / FILES[2]).read_text())
    assert len(runs) == 2
    assert len({re.search(r"--threads (\d+)", run)[1] for run in runs}) == 1
    # The name without the suffix belongs to another project.
    assert 'pip install "$SPECBENCH"' in steps
    assert workflow["env"]["SPECBENCH"].startswith("./")
    assert "set SPECBENCH in" in ran.out


@pytest.mark.parametrize("taken", FILES)
def test_init_does_not_overwrite_an_existing_file(taken: str, tmp_path: Path) -> None:
    file = tmp_path / taken
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("mine")
    ran = specbench("init", cwd=tmp_path)
    assert ran.code == 2
    assert f"{taken}: " in ran.err
    assert file.read_text() == "mine"
    assert sum((tmp_path / name).exists() for name in FILES) == 1


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ran = specbench("init", "file", cwd=tmp_path)
    assert ran.code == 2
    assert "cannot be written" in ran.err
