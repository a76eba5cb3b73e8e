"""README.md and the pages agree with the program: parts are generated, figures are of one run."""

import json
import re
from pathlib import Path

import pytest

from benchmarks import readme

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
FRONT = (ROOT / "README.md").read_text(encoding="utf-8")
DECISIONS = json.loads(readme.MADE_RUN.read_text(encoding="utf-8"))["decisions"]


@pytest.mark.parametrize("page", readme.blocks(), ids=lambda page: page.name)
def test_generated_parts_are_what_the_program_would_write(page):
    assert readme.rewritten(page) == page.read_text(encoding="utf-8")


def test_the_readme_figure_shows_the_numbers_of_its_sentences():
    shown = re.findall(r"<title>(.*?)</title>", readme.FRONT_FIGURE.read_text(encoding="utf-8"))
    measured = [decision for decision in DECISIONS if decision["speedup"]]
    for title, decision in zip(shown, measured, strict=True):
        name, figures = title.split(": ")
        assert name == f"{decision['pairing']}, {decision['workload']}"
        estimate, *bounds = re.findall(r"[\d.]+", figures)
        is_open = decision["verdict"] == "undecided"  # which has no estimate in its sentence
        assert {*bounds, *([] if is_open else [estimate])} <= set(
            re.findall(r"\d+\.\d+", decision["text"])
        )


def test_the_readme_shows_a_faster_and_a_slower_pairing():
    verdicts = [(d["pairing"], d["verdict"]) for d in DECISIONS]
    wins = {name for name, verdict in verdicts if verdict == "faster"}
    loses = {name for name, verdict in verdicts if verdict == "no speedup"}
    assert wins
    assert loses - wins


@pytest.mark.parametrize("page", [readme.README, readme.RESULTS], ids=lambda page: page.name)
def test_strikethrough_is_explained_only_on_pages_that_use_it(page):
    text = page.read_text(encoding="utf-8")
    assert ("~~" in text) == bool(re.search("struck (out|through)", text, re.IGNORECASE))


def test_the_readme_has_fewer_than_150_lines():
    assert len(readme.README.read_text(encoding="utf-8").splitlines()) < 150


def test_readme_and_makefile_state_the_same_minutes():
    made = re.search(r"^run:.*\((about \d+ minutes)\)$", MAKEFILE, re.MULTILINE)
    assert made is not None
    front = readme.README.read_text(encoding="utf-8")
    assert f"{made[1]} after installation" in " ".join(front.split())


def test_the_readme_names_every_method():
    from specbench.methods import all_methods

    text = readme.README.read_text(encoding="utf-8")
    assert all(f"`{method.name}`" in text for method in all_methods())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_to_a_file_or_heading_exists(page):
    """Links to files, and to headings of pages."""
    text = page.read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in link:
            continue
        file, _, heading = link.partition("#")
        place = page.parent / file if file else page
        assert place.exists(), link
        if heading:
            assert heading in _headings(place.read_text(encoding="utf-8")), link


def _headings(text: str) -> set[str]:
    """The anchors that a page's headings have."""
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_readme_names_the_machine_of_its_first_figures():
    machine = json.loads(readme.MADE_RUN.read_text(encoding="utf-8"))["environment"]
    (block,) = re.findall("<!-- begin answer -->(.*?)<!-- end answer -->", FRONT, re.DOTALL)
    *_, last_line = block.strip().splitlines()
    assert machine["cpu"] in last_line
    assert f"{machine['threads']} thread" in last_line
