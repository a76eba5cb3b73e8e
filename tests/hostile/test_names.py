"""Names from foreign files and servers are shown harmlessly everywhere."""

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from specbench.cli import _PlainStream
from specbench.untrusted import inert_cell, plain
from tests.cli.calls import specbench
from tests.hostile.file_readers import RUN

NAME = "=1+1\x1b]0;owned\x07\x1b[31m\u202e<script>alert(1)</script>../../up\nrow\x9b2J"
ACTIVE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
RUN_ID = "20261121-010203-a1b2"


def renamed(value: Any) -> Any:
    """The workload, a drafter and every prompt have the name, also within ids."""
    if isinstance(value, dict):
        return {renamed(key): renamed(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [renamed(inner) for inner in value]
    if isinstance(value, str):
        return re.sub(r"\bcode\b|\bmedusa-typical\b", lambda _: NAME, value)
    return value


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("hostile") / "reports"
    folder = root / RUN_ID
    folder.mkdir(parents=True)
    run = renamed(json.loads((RUN / "run.json").read_bytes()))
    (folder / "run.json").write_text(json.dumps({**run, "run_id": RUN_ID}))
    lines = (RUN / "records.jsonl").read_text().splitlines()
    compact = (json.dumps(renamed(json.loads(line)), separators=(",", ":")) for line in lines)
    (folder / "records.jsonl").write_text("".join(f"{line}\n" for line in compact))
    return root


COMMANDS = ("report --format csv", "recommend", "list runs", f"check {RUN_ID} {RUN_ID}")


@pytest.mark.parametrize("command", COMMANDS)
def test_hostile_names_are_printed_without_escapes_or_formulas(command: str, root: Path) -> None:
    ran = specbench(*command.split(), "--runs-dir", root, cwd=root.parent)
    assert ran.code in (0, 1, 3), ran.err
    assert not ACTIVE.search(ran.out + ran.err)
    assert ";owned" in ran.out + ran.err  # a name was shown at all
    if command == "list runs":  # cells between tabs, which a spreadsheet also opens
        cells = [word for line in ran.out.splitlines() for word in line.split("\t")]
        assert not [word for word in cells if word.startswith(("=", "@", "+", "-"))]
        assert any(word.startswith("'=1+1") for word in cells)


FORMULAS = ("=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", " =1")


@pytest.mark.parametrize("text", FORMULAS)
def test_a_formula_becomes_text(text: str) -> None:
    assert inert_cell(text) == f"'{text}"


@pytest.mark.parametrize("text", ["-1", "+1.5", "-.5e-3", "-3%", "1..8", "a=1", "", "tiny/draft"])
def test_plain_numbers_and_words_are_not_escaped(text: str) -> None:
    assert inert_cell(text) == text


def test_hostile_names_are_escaped_in_every_report(root: Path) -> None:
    before = {path for path in root.parent.rglob("*")}
    specbench("report", "--runs-dir", root, cwd=root.parent)
    written = {path for path in root.parent.rglob("*")} - before
    assert {path.parent for path in written} <= {root / RUN_ID}
    for name in ("report.html", "report.md", "cells.csv"):
        text = (root / RUN_ID / name).read_text()
        assert not ACTIVE.search(text)
        assert "owned" in text
        assert "<script>alert" not in text or name == "cells.csv"
    cells = [*csv.reader(io.StringIO((root / RUN_ID / "cells.csv").read_text()))]
    assert not [word for row in cells for word in row if word.startswith(("=", "@", "+"))]
    assert any(word.startswith("'=1+1") for row in cells for word in row)


def test_the_plain_stream_keeps_progress_bars_and_escapes_names() -> None:
    written = io.StringIO()
    for text in ("\r50%", "\x1b[A", "\n\x1b[A", "\x1b[31m\rname\n", "a\tb \udcff"):
        _PlainStream(written).write(text)
    assert written.getvalue() == "\r50%\x1b[A\n\x1b[A\u241b[31m\u240dname\na\tb \ufffd"
    assert plain("Grüße, 字, \u05d0 😀\n\t") == "Grüße, 字, \u05d0 😀\n\t"
