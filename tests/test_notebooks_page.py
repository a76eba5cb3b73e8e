"""docs/notebooks.md: its example runs and prints what it says, its tables are the columns."""

import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from benchmarks import notebooks
from tests.report.stored_runs import SMALL, keep, stored_run

TEXT = notebooks.PAGE.read_text(encoding="utf-8")


def fenced(language: str) -> str:
    (block,) = re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)
    return block


def test_the_notebook_example_prints_the_output_on_its_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = stored_run(SMALL)
    keep(tmp_path / "reports", stored.run.run_id, stored)
    monkeypatch.chdir(tmp_path)
    printed = StringIO()
    with redirect_stdout(printed):
        exec(compile(fenced("python"), "docs/notebooks.md", "exec"), {})
    assert printed.getvalue() == fenced("text")
    assert Path("report.md").read_text(encoding="utf-8").startswith("# ")


def test_the_tables_of_the_notebook_page_match_the_columns() -> None:
    assert notebooks.rewritten(TEXT) == TEXT


def test_every_link_of_the_notebook_page_exists() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", TEXT)
    assert links
    assert all((notebooks.PAGE.parent / link).exists() for link in links)
