"""What `train` prints can be pasted, and names the head that was trained."""

import re
from pathlib import Path
from textwrap import indent

import pytest

from specbench.cli.train import pairing_entry
from specbench.inputs.config import load_pairings
from specbench.inputs.model_spec import model_spec
from specbench.inputs.pairing import Pairing

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
    """Where to paste, and what."""
    spec = load_pairings(file).target(word).model if "/" not in word else model_spec(word)
    entry = pairing_entry("eagle", Path("heads/first"), word, spec, file)
    where, _, lines = entry.partition("\n")
    return where, lines + "\n"


def trained(file: Path) -> Pairing:
    return next(p for p in load_pairings(file).all if p.drafter.name == "first")


def test_the_entry_is_a_complete_file_if_no_file_exists(work: Path) -> None:
    where, lines = entry("../models/mine")
    assert where.endswith("write this to pairings.yaml")
    Path("pairings.yaml").write_text(lines)
    pairing = trained(Path("pairings.yaml"))
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
    model = trained(path).drafter.model
    assert model is not None
    assert model.folder is not None
    assert model.folder.resolve() == work / "work/heads/first"


def test_another_target_gets_a_separate_entry(work: Path) -> None:  # noqa: ARG001
    Path("pairings.yaml").write_text(FILE)
    where, lines = entry("../models/other")
    assert where.endswith("under `targets:` in pairings.yaml")
    Path("pairings.yaml").write_text(FILE + indent(lines, ""))
    assert trained(Path("pairings.yaml")).name == "other/first"
