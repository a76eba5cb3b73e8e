"""Pairings listed as fitting a machine, and the words of the list."""

import json
import re
from pathlib import Path

import pytest

from specbench.fit.demand import fits
from specbench.fit.memory_plan import DeploymentSpec
from specbench.inputs.config import load_pairings
from tests.cli.calls import specbench

GIB = 2**30


def test_only_pairings_whose_weights_fit_are_listed(tmp_path: Path) -> None:
    (tmp_path / "pairings.yaml").write_text(
        """\
targets:
  small: {model: org/a, weights_gib: 20, drafters: {copy: {method: ngram}}}
  tight: {model: org/b, weights_gib: 20, drafters: {
    whole: {method: draft_model, model: org/c, weights_gib: 3},
    too-much: {method: draft_model, model: org/c, weights_gib: 4},
    untold: {method: eagle3, model: org/d}}}
  untold: {model: org/e, drafters: {copy: {method: ngram}}}
  large: {model: org/f, weights_gib: 30, drafters: {untold: {method: eagle3, model: org/d}}}
"""
    )
    ran = specbench("list pairings --fits --gpu RTX-4090 --json", cwd=tmp_path)
    rows = {row["pairing"]: row["weights"] for row in json.loads(ran.out)}
    names = [n for n in rows if n.partition("/")[0] in ("small", "tight", "untold", "large")]
    assert {name: rows[name] for name in names} == {
        "small/copy": "20",
        "tight/whole": "23",
        "tight/untold": ">=20",
    }
    # In addition to the shipped ones.
    assert re.search(rf"RTX-4090, 23\.2 GiB: .* {len(rows)} pairings", ran.err)
    assert ">=: without the draft" in ran.err
    assert "float32" not in ran.err


def test_fits_uses_the_weights_stated_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "pairings.yaml").write_text(
        "targets: {big: {model: org/big, weights_gib: 15.1, drafters: "
        "{head: {method: eagle3, model: org/head}, copy: {method: ngram}}}}"
    )
    head, copy = load_pairings(tmp_path / "pairings.yaml").all
    assert fits(head, DeploymentSpec(device="cuda", memory_bytes=16 * GIB))
    assert fits(copy, DeploymentSpec(device="cuda", memory_bytes=15 * GIB)) is False


def test_weights_that_may_be_spread_over_cards_are_not_known_to_be_too_large(
    tmp_path: Path,
) -> None:
    (tmp_path / "pairings.yaml").write_text(
        "targets: {big: {model: org/big, weights_gib: 20, device_map: auto, drafters: "
        "{copy: {method: ngram}}}}"
    )
    (copy,) = load_pairings(tmp_path / "pairings.yaml").all
    assert fits(copy, DeploymentSpec(device="cuda", memory_bytes=16 * GIB)) is None
    assert fits(copy, DeploymentSpec(device="cuda", memory_bytes=24 * GIB))


@pytest.mark.parametrize(
    ("entry", "needed"),
    [
        ("weights_gib: 3", 6),
        ("weights_gib: 3, dtype: bfloat16", 3),
        ("weights_gib: 3, quantization: int8", 3),
    ],
)
def test_a_cpu_needs_twice_the_memory_for_float32(tmp_path: Path, entry: str, needed: int) -> None:
    (tmp_path / "pairings.yaml").write_text(
        f"targets: {{t: {{model: org/a, {entry}, drafters: {{copy: {{method: ngram}}}}}}}}"
    )
    (copy,) = load_pairings(tmp_path / "pairings.yaml").all
    assert fits(copy, DeploymentSpec(device="cpu", memory_bytes=needed * GIB))
    assert fits(copy, DeploymentSpec(device="cpu", memory_bytes=needed * GIB - 1)) is False


def test_a_targets_note_is_next_to_its_first_pairing(tmp_path: Path) -> None:
    (tmp_path / "pairings.yaml").write_text(
        "targets: {t: {model: org/a, weights_gib: 1, note: Slow., drafters: "
        "{big: {method: eagle3, model: org/b, weights_gib: 99}, "
        "a: {method: ngram, note: Old.}, b: {method: ngram, note: New.}}}}"
    )
    ran = specbench("list pairings --fits --gpu L4 --json", cwd=tmp_path)
    rows = [row for row in json.loads(ran.out) if row["pairing"].startswith("t/")]
    assert [row["note"] for row in rows] == ["Slow. Old.", "New."]
