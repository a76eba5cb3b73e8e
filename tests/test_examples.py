"""Every example of README.md and docs/ names existing commands, options and targets.

`make test-docs` also runs them, with an installed wheel.
"""

import re
from itertools import takewhile
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from specbench.cli import app, prepare_arguments
from tests.examples import PAGES, ROOT, examples, inline_commands

GROUP = get_command(app)
TARGETS = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
LEFT_OUT = ("MissingParameter", "BadOptionUsage")  # an argument, or the value of an option
HELP = "Exit"  # raised by --help
REASONS = ("needs ", "takes ")


def parse_command(words: list[str]) -> None:
    """Raises if the command line rejects the words, except for missing ones."""
    _, name, *rest = words
    if name.startswith("-"):
        return
    command = GROUP.get_command(None, name)
    assert command is not None, f"no command {name}"
    try:
        command.make_context(name, prepare_arguments([name, *rest])[1:])
    except Exception as error:  # typer's copy of click has no public name
        if type(error).__name__ not in (*LEFT_OUT, HELP):
            raise AssertionError(f"{' '.join(words)}: {error}") from error


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_and_option_exists(page: Path) -> None:
    shell = [example for example in examples(page) if example.language == "sh"]
    commands = [words for example in shell for words in example.commands]
    for words in commands:
        assert words[0] in ("specbench", "make", "cd", "python"), words
        if words[0] == "make":
            assert words[1] in TARGETS
    own = [[*takewhile(lambda word: word not in (">", "|"), words)] for words in commands]
    for words in (*own, *inline_commands(page)):
        if words[0] == "specbench" and words[1:]:
            parse_command(words)


def test_the_pages_contain_examples_to_test() -> None:
    """A change of the pages' format must not leave this file without work."""
    shell = [example for page in PAGES for example in examples(page) if example.language == "sh"]
    assert sum(len(example.commands) for example in shell) > 50
    assert sum("not run" not in example.marks for example in shell) > 30
    assert sum(len(inline_commands(page)) for page in PAGES) > 20


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_an_example_that_is_not_run_states_its_requirement(page: Path) -> None:
    reasons = [example.marks["not run"] for example in examples(page) if "not run" in example.marks]
    assert all(reason.startswith(REASONS) for reason in reasons)


def test_the_readme_yaml_has_eight_lines_and_valid_pairings(tmp_path: Path) -> None:
    from specbench.inputs.config import load_pairings

    (block,) = (example for example in examples(ROOT / "README.md") if example.language == "yaml")
    assert len(block.text.splitlines()) == 8
    file = tmp_path / block.marks["file"]
    file.write_text(block.text, encoding="utf-8")
    assert [pairing.name for pairing in load_pairings(file).all] == ["mine/small", "mine/copy"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_yaml_and_json_example_can_be_read(page: Path) -> None:
    for example in examples(page):
        if example.language in ("yaml", "json"):
            for text in example.text.splitlines() if example.language == "json" else [example.text]:
                assert yaml.safe_load(text), f"{page.name}:{example.line}"
