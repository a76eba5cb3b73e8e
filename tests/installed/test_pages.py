"""Every example of README.md and docs/ runs with an installed wheel in an empty folder."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.examples import PAGES, Example, examples
from tests.installed.environment import clean

pytestmark = pytest.mark.docs
RUN = ("sh", "python")
# A measurement may be undecided (exit code 3), for example on a busy machine.
MEASURES = """specbench() {
    command specbench "$@" && return
    code=$?
    case "$code $1" in "3 run" | "3 sweep-k" | "3 pair") return 0 ;; esac
    return $code
}"""
WITH_EXAMPLES = [
    page
    for page in PAGES
    if page.name != "commands.md"  # its examples need the files of earlier runs
    and any(e.language in RUN and "not run" not in e.marks for e in examples(page))
]


class Reader:
    """Runs the examples of a page in order; a `cd` lasts to the next example."""

    def __init__(self, folder: Path, bin_folder: Path) -> None:
        self.folder = folder
        path = f"{bin_folder}{os.pathsep}{os.environ['PATH']}"
        self._variables = clean() | {"PATH": path, "HF_HUB_OFFLINE": "1"}

    def follow(self, example: Example, where: str) -> None:
        """Write the file, or run the lines and check the exit code; `where` is PAGE:LINE."""
        if "before" in example.marks:
            self._run(example.marks["before"].replace(";", "\n"), {0}, f"before {where}")
        if "file" in example.marks:
            (self.folder / example.marks["file"]).write_text(example.text, encoding="utf-8")
        elif example.language == "sh":
            exits = set(map(int, example.marks.get("exit", "0").split(" or ")))
            self._run(example.text, exits, where)
        elif example.language == "python":
            (self.folder / "example.py").write_text(example.text, encoding="utf-8")
            self._run("python example.py", {0}, where)

    def _run(self, lines: str, exits: set[int], where: str) -> None:
        final_folder = self.folder / ".where"
        script = f"set -e\n{MEASURES}\ntrap 'pwd > {final_folder}' EXIT\n{lines}\n"
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=self.folder,
            env=self._variables,
            capture_output=True,
            text=True,
        )
        assert done.returncode in exits, f"{where}\n{lines}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr, where
        self.folder = Path(final_folder.read_text().strip())


@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=lambda page: page.name)
def test_every_example_runs(page: Path, bin_folder: Path, tmp_path: Path) -> None:
    reader = Reader(tmp_path, bin_folder)
    for example in examples(page):
        if "not run" not in example.marks:
            reader.follow(example, f"{page.name}:{example.line}")


def test_the_tutorial_ends_with_a_gate_that_was_run() -> None:
    """Otherwise the pages could lose their examples unnoticed."""
    (tutorial,) = (page for page in WITH_EXAMPLES if page.name == "tutorial.md")
    shell = [example for example in examples(tutorial) if example.language == "sh"]
    assert any(words[1] == "check" for words in shell[-1].commands)
