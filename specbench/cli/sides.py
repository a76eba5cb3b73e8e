"""The two sides of a comparison, from what people name them by: runs and baseline files."""

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from specbench.errors import UsageError

if TYPE_CHECKING:
    from specbench.gate.baseline import Snapshot


def read_run(name: str, root: Path, names: Collection[str] | None = None) -> "Snapshot":
    """A stored run (an id, a folder, `latest`) boiled down; `names`: to these metrics."""
    from specbench.gate.baseline import snapshot
    from specbench.runs import load_run

    return snapshot(load_run(name, root), names)


def read_side(name: str, root: Path, names: Collection[str]) -> "Snapshot":
    """A file of `specbench baseline`, or a stored run."""
    from specbench.gate.baseline_file import read_baseline
    from specbench.runs import disk_errors_named

    with disk_errors_named(Path(name)):
        if Path(name).is_file() or Path(name).suffix == ".json":
            return read_baseline(Path(name))
    return read_run(name, root, names)


def parse_words(option: str, text: str | None, allowed: Collection[str]) -> tuple[str, ...]:
    """A comma-separated choice; any case, since K is one of the words."""
    by_lower = {word.lower(): word for word in allowed}
    words = [part.strip() for part in (text or "").split(",") if part.strip()]
    for word in words:
        if word.lower() not in by_lower:
            raise UsageError(f"{option} {word!r}: allowed are {', '.join(allowed)}")
    return tuple(dict.fromkeys(by_lower[word.lower()] for word in words))
