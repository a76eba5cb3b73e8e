"""README.md says what the program says: its generated parts are up to date."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import readme  # noqa: E402 - found through the line above


def test_generated_parts_are_what_the_program_would_write():
    text = readme.README.read_text(encoding="utf-8")
    assert readme.rewritten(text) == text


def test_every_drafter_is_named():
    from specbench.inputs.methods import all_methods

    text = readme.README.read_text(encoding="utf-8")
    assert all(method.name in text for method in all_methods())


def test_every_link_into_the_project_leads_somewhere():
    text = readme.README.read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    assert links
    assert all((ROOT / link).exists() for link in links)
