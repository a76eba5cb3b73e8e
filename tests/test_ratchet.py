"""The source gets no larger and no harder to read than ratchet.json states."""

import json
from pathlib import Path

from tests.ratchet import ROOT, STORED, lowered, measure, stored

LIMITS = {"lines in specbench": 20, "private words": 3}


def test_no_ratchet_number_rose() -> None:
    limits = json.loads(STORED.read_text(encoding="utf-8"))
    numbers = measure(ROOT)
    assert numbers.keys() == limits.keys()
    rose = [f"{n}: {v}, stored {limits[n]}" for n, v in numbers.items() if v > limits[n]]
    assert not rose, "; ".join(rose)


def test_the_ratchet_counts_lines_private_words_and_bad_names(tmp_path: Path) -> None:
    for folder in ("specbench", "tests"):
        (tmp_path / folder).mkdir()
    (tmp_path / "README.md").write_text("Nobody is told `told`.\n```\ntold\n```\n")
    (tmp_path / "tests" / "test_a.py").write_text("told = 1\n")
    (tmp_path / "specbench" / "a.py").write_text(
        '"""Its parts."""\n\n\nclass _Run:  # alone\n    1\n'
    )
    (tmp_path / "specbench" / "b.py").write_text(
        '"""Reads a run."""\n\n\nclass Run:\n    def told(self, own):\n'
        '        raise ValueError(f"{own} of its own is too large")\n\n\nclass Seen:\n    one = 1\n'
    )
    assert measure(tmp_path) == {
        "class names used more than once": 1,
        "docstrings with an odd first word": 1,
        "files in specbench": 2,
        "files in tests": 1,
        "lines in specbench": 15,
        "lines in tests": 1,
        "private words": 3,
        "unclear names in specbench": 4,
        "unclear names in tests": 1,
    }


def test_the_ratchet_command_only_lowers_limits() -> None:
    text = lowered(LIMITS, {"lines in specbench": 18, "private words": 4})
    assert json.loads(text) == {"lines in specbench": 18, "private words": 3}


def test_a_ratchet_merge_conflict_takes_the_larger_number() -> None:
    text = '{\n<<<<<<< ours\n "private words": 3\n=======\n "private words": 5\n>>>>>>> theirs\n}\n'
    assert stored(text) == {"private words": 5}
