"""`specbench pair` after Ctrl-C: the hint that ranks, and what `--resume` accepts and refuses."""

import json
import re
import shlex
from pathlib import Path

import pytest

from specbench.bench.target import TargetRun
from specbench.records import SpeedupVerdict
from specbench.runs import load_run
from tests.cli.calls import specbench
from tests.cli.conftest import SMALL

pytestmark = pytest.mark.slow  # whole runs

HERE = ("-w", "prompts.jsonl", "-k", "1,2", *SMALL)
ASKED = ("pair", "./target", "--draft", "ngram", "--draft", "suffix", "--measure-top", "1", *HERE)


REFUSED = "leave out --draft, --draft-p-min, --discover, --published and --dry-run"


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.fixture(scope="module")
def interrupted(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The folder of the runs, and the command in the hint."""
    out = tmp_path_factory.mktemp("my runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TargetRun, "measure", interrupt)
        ran = specbench(*ASKED, "--runs-dir", str(out), cwd=tiny)
    assert ran.code == 130, ran.err
    (command,) = re.findall(r"Resume with: specbench (.*)$", ran.err, re.MULTILINE)
    return out, shlex.split(command)


def test_the_printed_resume_command_completes_and_ranks(tiny, interrupted):
    out, command = interrupted
    assert not load_run("latest", out, also_empty=True).is_complete
    ran = specbench(*command, "--json", cwd=tiny)
    assert ran.is_complete, ran.err
    document = json.loads(ran.out)
    assert {entry["drafter"] for entry in document["ranking"]} == {"ngram", "suffix"}
    assert document["verdict"] in set(SpeedupVerdict)
    assert document["reasons"][0]["text"] in document["text"]
    stored = load_run("latest", out)
    assert (stored.run.run_id, stored.is_complete) == (document["run_id"], True)
    assert stored.run.settings.forecasting.most_drafters == 1
    again = specbench(*command, *HERE, cwd=tiny)  # finished, and its own options repeated
    assert again.is_complete, again.err
    assert again.out.splitlines()[-1].split()[0] in ("use", "undecided:", "no")
    assert load_run("latest", out).blocks == stored.blocks


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("./target --draft ngram", REFUSED),
        ("./target --discover", REFUSED),
        ("./target --published", REFUSED),
        ("./target --dry-run", REFUSED),
        ("./target --measure-top 2", "was started with 1; leave it out"),
        ("./target --seed 5", "started with different settings (--seed)"),
        ("./draft", "ranks drafters for target, not for draft"),
    ],
)
def test_resume_refuses_drafts_that_the_run_did_not_request(tiny, interrupted, arguments, message):
    out, _ = interrupted
    ran = specbench(f"pair {arguments} --resume latest --runs-dir", out, cwd=tiny)
    assert ran.code == 2
    assert message in ran.err


def test_the_hint_names_the_file_that_has_the_target(tiny, tmp_path):
    (tmp_path / "mine.yaml").write_text(
        f"targets:\n  mine:\n    model: {tiny / 'target'}\n"
        "    drafters:\n      ngram: {method: ngram}\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TargetRun, "measure", interrupt)
        options = ("pair", "mine", "--config", str(tmp_path / "mine.yaml"), *HERE)
        ran = specbench(*options, "--runs-dir", str(tmp_path), cwd=tiny)
    (command,) = re.findall(r"Resume with: specbench (.*)$", ran.err, re.MULTILINE)
    again = specbench(*shlex.split(command), "--json", cwd=tiny)
    assert again.code in (0, 3, 4), again.err
    assert [entry["drafter"] for entry in json.loads(again.out)["ranking"]] == ["ngram"]


def test_a_run_of_another_command_is_refused_with_the_right_command(tiny, tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TargetRun, "measure", interrupt)
        specbench(
            "run", "tiny", *HERE[:2], "-k", "1", *SMALL, "--runs-dir", str(tmp_path), cwd=tiny
        )
    ran = specbench("pair tiny --runs-dir", str(tmp_path), "--resume", "latest", cwd=tiny)
    assert ran.code == 2
    assert f"`specbench run --runs-dir {tmp_path} --resume" in ran.err
