"""`python -m tools.training`: from a target and prompts to a head that `run` drafts with, and the
entry of pairings.yaml that names it.
"""

import json
import re
from pathlib import Path
from textwrap import indent

import pytest

from specbench.inputs.config import load_pairings
from specbench.inputs.model_spec import model_spec
from specbench.inputs.pairing import Pairing
from tests.cli.calls import CommandResult, specbench
from tests.training.tiny_target import METHODS
from tools.training.__main__ import main, pairing_entry
from tools.training.settings import RECIPES

SMALL = (
    *("--workload", "prompts.jsonl", "--num-texts", "20", "--max-new-tokens", "8", "--steps", "3"),
    *("--device", "cpu", "--threads", "1"),
)
PAIRINGS = """\
targets:
  tiny:
    model: ./target
    drafters:
      trained: {method: eagle, model: ./heads/eagle}
"""


def trained(method: str, out: str, *more: str, cwd: Path) -> CommandResult:
    arguments = ("--target", "./target", "--output", out, *SMALL, *more)
    return specbench(method, *arguments, cwd=cwd, entry_point=main)


@pytest.fixture(scope="session")
def eagle(tiny) -> CommandResult:
    return trained("eagle", "heads/eagle", "--json", cwd=tiny)


def test_every_head_that_has_a_recipe_is_trained_in_the_tests():
    assert RECIPES.keys() == {*METHODS}


def test_the_training_card_has_the_sources_and_the_acceptance(eagle, tiny):
    card = json.loads(eagle.out)

    assert eagle.code == 0, eagle.err
    assert json.loads((tiny / "heads" / "eagle" / "training.json").read_text()) == card
    assert card["command"][:3] == ["tools.training", "eagle", "--target"]
    assert card["target"]["source"] == "./target"
    assert list(card["texts"]["sources"]) == ["prompts.jsonl"]
    assert card["texts"]["count"] == card["texts"]["held_out"] + 20
    assert (card["training"]["steps"], card["training"]["seed"]) == (3, 0)
    assert len(card["training"]["losses_per_100_steps"]) == 1
    assert len(card["held_out"]["acceptance_per_position"]) == 6
    assert card["held_out"]["contexts"] > 0
    assert len(card["head"]["sha256"]) == 64
    assert "torch" in card["packages"]
    assert str(tiny) not in eagle.out


@pytest.fixture
def tiny_with_head(tiny, eagle, tmp_path):
    assert eagle.code == 0
    (tmp_path / "pairings.yaml").write_text(PAIRINGS)
    for name in ("target", "heads", "prompts.jsonl"):
        (tmp_path / name).symlink_to(tiny / name)
    return tmp_path


@pytest.mark.slow
def test_run_drafts_with_a_trained_head_in_the_pairings_file(tiny_with_head):
    ran = specbench(
        "run -w prompts.jsonl -k 2 --num-prompts 2 --max-new-tokens 6 --device cpu --threads 1",
        cwd=tiny_with_head,
    )

    assert ran.is_complete, ran.err
    assert "tiny/trained" in ran.out


def test_medusa_gives_its_tree_the_accuracy_of_each_rank(tiny):
    ran = trained("medusa", "heads/medusa", "--num-heads", "2", cwd=tiny)

    rates = json.loads((tiny / "heads" / "medusa" / "config.json").read_text())
    assert ran.code == 0, ran.err
    assert [len(head) for head in rates["medusa_head_accuracies"]] == [10, 10]
    assert "model: ./heads/medusa" in ran.out


def test_resuming_a_finished_training_only_reports_it(eagle, tiny):
    again = trained("eagle", "heads/eagle", "--json", "--resume", cwd=tiny)

    before, after = json.loads(eagle.out), json.loads(again.out)
    assert after["head"] == before["head"]
    assert after["training"]["losses_per_100_steps"] == before["training"]["losses_per_100_steps"]
    assert after["held_out"] == before["held_out"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("ngram", "METHOD 'ngram': choose from eagle, eagle3, medusa, mtp"),
        ("eagle --target tinny", "no target 'tinny' in pairings.yaml, did you mean 'tiny'?"),
        ("eagle --target ./nowhere", "./nowhere does not exist"),
        ("eagle --target demo:targett", "no demo model 'targett', did you mean"),
        ("eagle --target 'a b/c'", "'a b/c' is not a target in pairings.yaml"),
        ("eagle --output .", "is not empty; resume its training with --resume"),
        ("eagle --output prompts.jsonl", "prompts.jsonl is a file; name a folder"),
        ("eagle --output prompts.jsonl/new", "--output prompts.jsonl/new"),
        ("eagle --texts draft", "draft cannot be read: Is a directory"),
        ("eagle --texts prompts.jsonl", "holds texts of another training"),
        ("eagle --resume", "new has no training to resume; leave --resume out"),
        ("eagle --temperature hot", "--temperature 'hot': expected numbers"),
        ("eagle --time-budget soon", "--time-budget 'soon': expected a time"),
        ("eagle --dtype fp8", "--dtype 'fp8': choose from float32, bfloat16, float16"),
        ("eagle --device gpu", "--device 'gpu': choose from auto, cpu, cuda, cuda:N"),
        ("eagle --workload ./none.jsonl", "none.jsonl: cannot be read"),
        ("eagle --workload chatt", "no workload 'chatt', did you mean 'chat'?"),
        ("eagle --steps 0", "--steps"),
        ("eagle --num-heads 0", "--num-heads"),
    ],
)
def test_a_wrong_value_exits_2_and_says_what_is_allowed(arguments, says, tiny, tmp_path):
    for name in ("target", "draft", "pairings.yaml", "prompts.jsonl"):
        (tmp_path / name).symlink_to(tiny / name)
    given = [] if "--target" in arguments else ["--target", "tiny"]
    given += [] if "--output" in arguments else ["--output", "new"]

    ran = specbench(f"{arguments} --num-texts 20", *given, cwd=tmp_path, entry_point=main)

    assert (ran.code, ran.out) == (2, "")
    assert says in " ".join(ran.err.split())
    assert "Traceback" not in ran.err


def test_settings_of_another_training_are_refused(eagle, tiny):
    ran = trained("eagle", "heads/eagle", "--resume", "--tokens-per-batch", "64", cwd=tiny)

    assert eagle.code == 0
    assert ran.code == 2
    assert "tokens_per_batch 2048, not 64" in ran.err


FILE = """\
targets:
  mine:
    model: ../models/mine
    drafters:
      copy: {method: ngram}
"""


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("models/mine", "models/other", "work/heads/first", "work/own"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


def entry(word: str, file: Path | None = None) -> tuple[str, str]:
    """The target file and the text to paste."""
    spec = load_pairings(file).target(word).model if "/" not in word else model_spec(word)
    entry = pairing_entry("eagle", Path("heads/first"), word, spec, file)
    where, _, lines = entry.partition("\n")
    return where, lines + "\n"


def trained_pairing(file: Path) -> Pairing:
    return next(p for p in load_pairings(file).all if p.drafter.name == "first")


def test_the_entry_is_a_complete_file_if_no_file_exists(work: Path) -> None:
    where, lines = entry("../models/mine")
    assert where.endswith("write this to pairings.yaml")
    Path("pairings.yaml").write_text(lines)
    pairing = trained_pairing(Path("pairings.yaml"))
    assert pairing.target.model.folder is not None
    assert pairing.target.model.folder.resolve() == work / "models/mine"
    assert pairing.drafter.model is not None
    assert pairing.drafter.model.folder is not None
    assert pairing.drafter.model.folder.resolve() == work / "work/heads/first"


@pytest.mark.parametrize("word", ["mine", "../models/mine"])
@pytest.mark.parametrize("file", ["pairings.yaml", "own/pairings.yaml"])
def test_a_trained_drafter_is_added_to_its_target(word: str, file: str, work: Path) -> None:
    path = Path(file)
    models = "../models" if path.parent == Path() else "../../models"
    path.write_text(FILE.replace("../models", models))
    where, lines = entry(word, None if file == "pairings.yaml" else path)
    assert re.search(r"`drafters:` .*mine", where)
    path.write_text(path.read_text() + lines)
    model = trained_pairing(path).drafter.model
    assert model is not None
    assert model.folder is not None
    assert model.folder.resolve() == work / "work/heads/first"


def test_another_target_gets_a_separate_entry(work: Path) -> None:  # noqa: ARG001
    Path("pairings.yaml").write_text(FILE)
    where, lines = entry("../models/other")
    assert where.endswith("under `targets:` in pairings.yaml")
    Path("pairings.yaml").write_text(FILE + indent(lines, ""))
    assert trained_pairing(Path("pairings.yaml")).name == "other/first"
