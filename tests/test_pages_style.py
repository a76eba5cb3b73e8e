"""Pages are short, have short sentences, paragraphs, cells and lines, and name source files that
exist.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OTHERS = ("CONTRIBUTING.md", "SECURITY.md", "benchmarks/README.md")
PAGES = sorted([*(ROOT / "docs").glob("*.md"), *(ROOT / name for name in OTHERS)])
# What a command prints, its page only shows how to ask for.
ASKED_FOR = ("commands.md", "families.md", "json.md", "metrics.md", "notebooks.md")

SENTENCE_WORDS, CELL_WORDS, PARAGRAPH_LINES, LINE_CHARACTERS = 30, 25, 6, 100
_END_OF_SENTENCE = re.compile(
    r"(?<=[.!?])[\"')*]*\s+(?=[\"'(*`\[]*[A-Z0-9`]|vLLM|specbench |transformers )"
)
_LIST_ITEM = re.compile(r"\s*(?:[-*]|\d+\.) ")


def faults(text: str) -> Iterator[str]:
    """The faults of a page."""
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    lines = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE).splitlines()
    for line in lines:
        if line.startswith("|"):
            cells = (cell for cell in line.split(" | ") if len(_words(cell)) > CELL_WORDS)
            yield from (f"cell: {cell}" for cell in cells)
        elif len(line) > LINE_CHARACTERS and " " in line:
            yield f"line of {len(line)} characters: {line[:60]}"
    for paragraph in _paragraphs(lines):
        if len(paragraph) > PARAGRAPH_LINES:
            yield f"paragraph of {len(paragraph)} lines: {paragraph[0]}"
        for sentence in _END_OF_SENTENCE.split(" ".join(paragraph)):
            if len(words := _words(sentence)) > SENTENCE_WORDS:
                yield f"sentence of {len(words)} words: {' '.join(sentence.split())}"


def _paragraphs(lines: list[str]) -> Iterator[list[str]]:
    """Paragraphs and items of lists, without headings and tables."""
    paragraph: list[str] = []
    for line in [*lines, ""]:
        is_prose = bool(line.strip()) and not line.startswith(("|", "#"))
        if paragraph and (not is_prose or _LIST_ITEM.match(line)):
            yield paragraph
            paragraph = []
        if is_prose:
            paragraph.append(line)


def _words(text: str) -> list[str]:
    """Words as a reader sees them: code is one word, a link is its text."""
    text = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "code", text))
    return [word for word in text.split() if re.search(r"\w", word)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_follows_the_style_rules(page: Path) -> None:
    page_faults = list(faults(page.read_text(encoding="utf-8")))
    assert not page_faults, "\n".join(page_faults)


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_a_page_is_short(page: Path) -> None:
    most = 400 if page.name in ASKED_FOR else 2000
    assert len(page.read_text(encoding="utf-8").split()) <= most


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_source_files_that_a_page_names_exist(page: Path) -> None:
    folders = ("specbench", "tests", "tools", "benchmarks")
    sources = [path.as_posix() for name in folders for path in (ROOT / name).rglob("*.py")]
    named = re.findall(r"`([\w/]+\.py)`", page.read_text(encoding="utf-8"))
    missing = [n for n in named if not any(path.endswith(f"/{n}") for path in sources)]
    elsewhere = page.name == "heads.md"  # names files of other projects
    assert elsewhere or not [n for n in missing if n != "convert_hf_to_gguf.py" and "NAME" not in n]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("| a | " + "word " * 26 + "|", "cell: "),
        ("me " * 16 + "\n" + "we " * 15, "sentence of 31 words"),
        ("- " + "me " * 31, "sentence of 31 words"),
        ("a.\n" * 7, "paragraph of 7 lines"),
        ("A line. " * 13, "line of 104 characters"),
    ],
)
def test_a_style_fault_is_detected(text: str, fault: str) -> None:
    assert [shown[: len(fault)] for shown in faults(text)] == [fault]


@pytest.mark.parametrize(
    "text",
    [
        "```text\n" + "word " * 40 + "\n```",
        "<!-- " + "word " * 40 + "-->",
        "It prints `" + "w " * 40 + "`.",
        "me " * 20 + "end.\n" + "We " * 20 + "end.",
        "[link](" + "x" * 120 + ")",
        "# Heading\n| "
        + "word " * 25
        + "|\n- item\n- item\n- item\n- item\n- item\n- item\n- item",
    ],
)
def test_code_blocks_and_comments_are_exempt_from_style_rules(text: str) -> None:
    assert not list(faults(text))
