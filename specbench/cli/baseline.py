"""`specbench baseline`: pools runs into a small file to commit, which `check` reads."""

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specbench.cli import options
from specbench.errors import StoreError, UsageError
from specbench.settings.words import nearest

if TYPE_CHECKING:
    from specbench.gate.baseline import Snapshot


AllowDifferent = Annotated[
    str | None,
    typer.Option(
        help="Compare even if these differ: K, hardware, prompts, model ...; comma-separated.",
        show_default=False,
        metavar="KEYS",
    ),
]


def baseline(
    runs: Annotated[list[str], typer.Argument(help="Run ids or folders, ideally five or more.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write.")] = Path(
        "baseline.json"
    ),
    allow_different: AllowDifferent = None,
    runs_dir: options.RunsDir = Path("reports"),
) -> None:
    """Pool comparable runs into a baseline.

    It keeps the variation between them.
    """
    from specbench.gate.baseline import left_out, pool, write_baseline
    from specbench.gate.comparable import WORDS
    from specbench.report.gate import baseline_lines
    from specbench.report.numbers import plural

    allowed = parse_allowed(allow_different, WORDS)
    snapshots = [read_run(name, runs_dir) for name in runs]
    pooled = pool(snapshots, allowed)
    for line in left_out(snapshots, pooled):
        typer.echo(f"left out: {line}", err=True)
    write_baseline(pooled, output)
    for line in baseline_lines(pooled):
        typer.echo(line)
    cells, of_runs = plural(len(pooled.cells), "cell"), plural(pooled.num_runs, "run")
    typer.echo(f"{output}: {cells} of {of_runs}, {output.stat().st_size / 1000:.0f} kB")


def read_run(name: str, root: Path, names: Collection[str] | None = None) -> "Snapshot":
    """A stored run (an id, a folder, `latest`) boiled down; `names`: to these metrics."""
    from specbench.gate.baseline import snapshot
    from specbench.runs import load_run

    return snapshot(load_run(name, root), names)


def read_side(name: str, root: Path, names: Collection[str]) -> "Snapshot":
    """A file of `specbench baseline`, or a stored run; StoreError if it is neither."""
    from specbench.gate.baseline import read_baseline
    from specbench.runs import disk_errors_named

    with disk_errors_named(Path(name)):
        if Path(name).is_file() or Path(name).suffix == ".json":
            return read_baseline(Path(name))
    try:
        return read_run(name, root, names)
    except StoreError:
        if not _names_a_file(name) or Path(name).exists():
            raise
    near = nearest(Path(name).name, [file.name for file in Path(name).parent.glob("*.json")])
    raise StoreError(f"{name}: no such file{near}; a run is named by its id or its folder")


def _names_a_file(name: str) -> bool:
    """Whether it has an ending, like `old/base.txt`; ids and most folders have none."""
    return bool(Path(name).suffix) or "/" in name


def parse_allowed(text: str | None, words: Collection[str]) -> tuple[str, ...]:
    """The words of --allow-different, in any case, since K is one of them."""
    by_lower = {word.lower(): word for word in words}
    named = [part.strip() for part in (text or "").split(",") if part.strip()]
    for word in named:
        if word.lower() not in by_lower:
            raise UsageError(f"--allow-different {word!r}: choose from {', '.join(words)}")
    return tuple(dict.fromkeys(by_lower[word.lower()] for word in named))
