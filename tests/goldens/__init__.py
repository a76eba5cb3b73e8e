"""Expected values that no change of the program's structure may change.

`python -m tests.goldens` writes expected/*.json again, or only the named families; tests compare
them. An intended change of a value is a separate commit.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

EXPECTED = Path(__file__).parent / "expected"
FAMILIES = ("analysis", "decoding", "exports", "options")


def read(family: str) -> Any:
    return json.loads((EXPECTED / f"{family}.json").read_text(encoding="utf-8"))


def write(family: str, facts: Any) -> None:
    """Write facts sorted, a line per fact; a list of numbers is one line."""
    text = json.dumps(facts, indent=1, sort_keys=True, ensure_ascii=False)
    short = re.sub(r"\[\n[^][{}\"]*\]", lambda match: " ".join(match[0].split()), text)
    (EXPECTED / f"{family}.json").write_text(short + "\n", encoding="utf-8")


def assert_equal(family: str, actual: Any, *path: str) -> None:
    """Compare facts with the expected ones; a difference names file, key, old and new."""
    expected = read(family)
    for key in path:
        expected = expected.get(key, {})
    old, new = (dict(_flat(facts, "/".join(path))) for facts in (expected, actual))
    lines = [
        f"expected/{family}.json: {key}: expected {old.get(key)!r}, found {new.get(key)!r}"
        for key in sorted(old.keys() | new.keys())
        if key not in old or key not in new or old[key] != new[key]
    ]
    hint = f"if this is intended: python -m tests.goldens {family}"
    assert not lines, "\n".join([*lines[:20], f"{len(lines)} differences; {hint}"])


def _flat(facts: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every value with its path; a list of numbers is one value."""
    if isinstance(facts, list) and any(isinstance(fact, str | dict | list) for fact in facts):
        facts = {str(i): fact for i, fact in enumerate(facts)}
    if not isinstance(facts, dict):
        yield path, facts
        return
    for key, fact in facts.items():
        yield from _flat(fact, f"{path}/{key}")
