"""`specbench baseline`: pools runs into a small file to commit, which `check` reads."""

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specbench.cli import options

if TYPE_CHECKING:
    from specbench.gate.baseline import Snapshot


def baseline(
    runs: Annotated[list[str], typer.Argument(help="Run ids or folders, ideally five or more.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write.")] = Path(
        "baseline.json"
    ),
    allow_different: options.AllowDifferent = None,
    runs_dir: options.RunsDir = options.RUNS_DIR,
) -> None:
    """Pool comparable runs into a baseline.

    It keeps the variation between them.
    """
    from specbench.gate.baseline import left_out, pool, write_baseline
    from specbench.gate.comparable import WORDS
    from specbench.report.gate import baseline_lines
    from specbench.words.numbers import plural

    allowed = options.allowed_words(allow_different, WORDS)
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
