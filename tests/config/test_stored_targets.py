"""The pairings of a run in its run.json."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from specbench.errors import StoreError
from specbench.inputs.config import load_pairings
from specbench.inputs.pairing import Pairing
from specbench.inputs.stored_targets import pairings_of, stored_targets
from specbench.records import RunRecord
from specbench.shipped import PACKAGE, shipped
from tests.runs.stored_examples import run

FILE = """\
targets:
  big:
    model: ./big
    workloads: ./talk
    dtype: bfloat16
    drafters:
      tree: {method: draft_model, model: demo:draft, parameters: {tree: [2, 2]}}
      own: {method: ngram, lossy: typical, num_speculative_tokens: 3}
"""


def stored(pairings: tuple[Pairing, ...]) -> RunRecord:
    """A run of the pairings, as run.json has it."""
    targets = json.loads(json.dumps(stored_targets(pairings)))
    return replace(run(), targets=tuple(targets))


@pytest.fixture
def own(tmp_path: Path) -> tuple[Pairing, ...]:
    (tmp_path / "big").mkdir()
    (tmp_path / "big" / "config.json").write_text("{}")
    (tmp_path / "talk").mkdir()
    (tmp_path / "pairings.yaml").write_text(FILE)
    return load_pairings(tmp_path / "pairings.yaml").all


def test_a_run_has_every_pairing_as_it_was(own: tuple[Pairing, ...]) -> None:
    every = (*own, *load_pairings(shipped("pairings.yaml")).all)
    read = pairings_of(stored(every)).all
    assert read == every
    assert [pairing.sha256 for pairing in read] == [pairing.sha256 for pairing in every]


def test_only_the_drafters_of_the_run_are_stored(own: tuple[Pairing, ...]) -> None:
    assert [p.drafter.name for p in pairings_of(stored(own[1:])).all] == ["own"]


def test_shipped_models_are_found_in_another_installation(own: tuple[Pairing, ...]) -> None:
    text = json.dumps(stored_targets(own))
    assert str(PACKAGE) not in text
    assert str(own[0].target.model.folder) in text


def test_damaged_pairings_are_an_error(own: tuple[Pairing, ...]) -> None:
    (target,) = stored(own).targets
    with pytest.raises(StoreError, match="targets"):
        pairings_of(replace(run(), targets=({**target, "drafters": 3},)))
