"""The examples of README.md and docs/: fenced blocks with the instructions of the comment above.

<!-- file: NAME -->          the block is written to this file
<!-- before: COMMANDS -->    commands that a reader has run before
<!-- exit: 0 or 3 -->        the block's exit code; 0 by default
<!-- not run: REASON -->     what it needs that a test lacks
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))

_MARK = r"<!-- (file|before|exit|not run): (.+?) -->\n"
_BLOCK = re.compile(rf"((?:{_MARK})*)```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_STORED_RUN = re.compile(r"<!-- begin made-run -->.*?<!-- end made-run -->", re.DOTALL)


class Example(NamedTuple):
    """A fenced block of a page."""

    line: int
    language: str
    text: str
    marks: dict[str, str]

    @property
    def commands(self) -> list[list[str]]:
        """A shell block's lines as words, without comments, including those of loops and pipes."""
        joined = self.text.replace("\\\n", " ")
        return [
            words for line in joined.splitlines() if (words := shlex.split(line, comments=True))
        ]


def examples(page: Path) -> Iterator[Example]:
    """Every fenced block, in order."""
    text = page.read_text(encoding="utf-8")
    for match in _BLOCK.finditer(text):
        marks = dict(re.findall(_MARK, match[1]))
        yield Example(text.count("\n", 0, match.start()) + 1, match[4], match[5], marks)


def inline_commands(page: Path) -> list[list[str]]:
    """Every `specbench COMMAND ...` within the text of a page, as words, but for that of a stored
    run, which had the options of its time.
    """
    text = _STORED_RUN.sub("", _BLOCK.sub("", page.read_text(encoding="utf-8")))
    return [shlex.split(command) for command in re.findall(r"`(specbench [a-z][^`\n]*)`", text)]
