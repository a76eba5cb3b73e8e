"""docs/families.md gives the outcome of every family, on both versions of transformers."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import transformers

from tests.versions import OLDEST, python_of
from tools.families.__main__ import PAGE
from tools.families.proof import IDENTICAL, NOT_BUILT, REFUSED, Verdict, verdict
from tools.families.registry import families
from tools.families.table import ABSENT, render

ROOT = PAGE.parents[1]
NEWEST = "5.24.0"
# One family per case: fused, windows, chunks, experts and latents, keys that
# layers share, custom masks, windows with states, a text part, and refusals by name, by
# numbers and by an error.
SAMPLE = (
    *("llama", "gemma4_text", "llama4_text", "deepseek_v3", "gptj", "afmoe", "zaya", "qwen2_audio"),
    *("mistral3", "mpt", "moshi", "bart", "blip-2", "openai-gpt", "udop"),
)


def page_states() -> dict[tuple[str, str], tuple[str, str]]:
    """State and reason by family and version, as on the page."""
    rows = re.findall(r"^\| (\S+) \| ([\d., ]+) \| ([a-z ]+) \| (.*) \|$", PAGE.read_text(), re.M)
    return {
        (family, version): (state, why)
        for family, versions, state, why in rows
        for version in versions.split(", ")
    }


@pytest.mark.sampled(one_in=5)
@pytest.mark.slow
@pytest.mark.parametrize("family", SAMPLE)
def test_the_verdict_on_a_family_matches_the_page(family: str) -> None:
    row = verdict(family)
    assert transformers.__version__ != NEWEST or page_states()[family, NEWEST] == row.shown


def test_no_family_changes_the_text_and_refusals_give_a_remedy() -> None:
    assert {state for state, _ in page_states().values()} == {IDENTICAL, REFUSED, NOT_BUILT, ABSENT}
    refusals = [why for state, why in page_states().values() if state == REFUSED]
    assert all(re.search(r"; (measure|choose)", why) for why in refusals)


def test_the_page_has_every_decoder_of_the_registry() -> None:
    known = {family for (family, version), _ in page_states().items() if version == NEWEST}
    assert transformers.__version__ != NEWEST or set(families()) <= known


def test_verdicts_that_differ_between_versions_get_separate_rows() -> None:
    first, other = Verdict(IDENTICAL, "stock"), Verdict(REFUSED, "has no head; choose another")
    page = render(
        {
            "1.0": {"same": first, "new": first, "worse": first},
            "2.0": {"same": first, "worse": other},
        }
    )
    assert "| same | 1.0, 2.0 | identical | stock |" in page
    assert "| worse | 1.0 | identical | stock |" in page
    assert "| worse | 2.0 | refused | has no head; choose another |" in page
    assert f"| new | 2.0 | {ABSENT} |" in page


@pytest.mark.models
@pytest.mark.parametrize(
    ("version", "python"), [("5.17.0", python_of(OLDEST)), (NEWEST, Path(sys.executable))]
)
def test_all_family_verdicts_match_the_page(version: str, python: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.json"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [python, "-m", "tools.families", "--rows", rows]
    subprocess.run(command, check=True, env=environment, cwd=ROOT)

    document = json.loads(rows.read_text())

    actual = {family: Verdict(*row).shown for family, row in document["families"].items()}
    page = {family: row for (family, of), row in page_states().items() if of == version}
    assert document["transformers"] == version
    assert actual == {family: row for family, row in page.items() if row[0] != ABSENT}
