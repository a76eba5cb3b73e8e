"""families.json has the outcome of every family, on both versions of transformers."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import transformers

from specbench.shipped import PACKAGE
from tests.versions import OLDEST, python_of
from tools.families.__main__ import text_of
from tools.families.proof import IDENTICAL, NOT_BUILT, REFUSED, Verdict, verdict
from tools.families.registry import families

ROOT = Path(__file__).parents[2]
FILE = PACKAGE / "families.json"
TRIED: dict[str, dict[str, list[str]]] = json.loads(FILE.read_text(encoding="utf-8"))
NEWEST = "5.24.0"
# One family per case: fused, windows, chunks, experts and latents, keys that
# layers share, custom masks, windows with states, a text part, and refusals by name, by
# numbers and by an error.
SAMPLE = (
    *("llama", "gemma4_text", "llama4_text", "deepseek_v3", "gptj", "afmoe", "zaya", "qwen2_audio"),
    *("mistral3", "mpt", "moshi", "bart", "blip-2", "openai-gpt", "udop"),
)


@pytest.mark.sampled(one_in=5)
@pytest.mark.slow
@pytest.mark.parametrize("family", SAMPLE)
def test_the_verdict_on_a_family_is_the_listed_one(family: str) -> None:
    row = verdict(family)
    assert transformers.__version__ != NEWEST or TRIED[NEWEST][family] == [*row.shown]


def test_no_family_changes_the_text_and_refusals_give_a_remedy() -> None:
    verdicts = [tuple(row) for rows in TRIED.values() for row in rows.values()]
    assert {state for state, _ in verdicts} == {IDENTICAL, REFUSED, NOT_BUILT}
    refusals = [why for state, why in verdicts if state == REFUSED]
    assert all(re.search(r"; (measure|choose)", why) for why in refusals)


def test_every_decoder_of_the_registry_was_tried() -> None:
    assert transformers.__version__ != NEWEST or set(families()) <= TRIED[NEWEST].keys()


def test_the_file_has_a_line_per_family_and_reads_back() -> None:
    tried = {"1.0": {"b": Verdict(REFUSED, "has | in it"), "a": Verdict(IDENTICAL, "stock")}}
    text = text_of(tried)
    assert [line[:4] for line in text.splitlines()] == ['{"1.', '"a":', '"b":', "}}"]
    assert json.loads(text) == {
        "1.0": {"a": ["identical", "stock"], "b": ["refused", "has | in it"]}
    }
    assert text_of(TRIED) == FILE.read_text(encoding="utf-8")


@pytest.mark.models
@pytest.mark.parametrize(
    ("version", "python"), [("5.17.0", python_of(OLDEST)), (NEWEST, Path(sys.executable))]
)
def test_all_family_verdicts_are_the_listed_ones(
    version: str, python: Path, tmp_path: Path
) -> None:
    file = tmp_path / "families.json"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [python, "-m", "tools.families", file]
    subprocess.run(command, check=True, env=environment, cwd=ROOT)
    assert json.loads(file.read_text()) == {version: TRIED[version]}
