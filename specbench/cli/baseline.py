"""`specbench baseline`: runs as a small file to be committed next to code."""

from pathlib import Path
from typing import Annotated

import typer

from specbench.cli import options

AllowDifferent = Annotated[
    str | None,
    typer.Option(
        help="Compare even if these differ: K, hardware, prompts, model ...; comma-separated.",
        show_default=False,
    ),
]


def baseline(
    runs: Annotated[list[str], typer.Argument(help="Run ids or folders, ideally five or more.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write.")] = Path(
        "baseline.json"
    ),
    allow_different: AllowDifferent = None,
    out: options.Out = Path("reports"),
) -> None:
    """Pool comparable runs into a baseline.

    It keeps the variation between them.
    """
    from specbench.cli.sides import parse_allowed, read_run
    from specbench.gate.baseline import left_out, pool, write_baseline
    from specbench.gate.comparable import WORDS
    from specbench.report.gate import baseline_lines
    from specbench.report.numbers import plural

    allowed = parse_allowed(allow_different, WORDS)
    snapshots = [read_run(name, out) for name in runs]
    pooled = pool(snapshots, allowed)
    for line in left_out(snapshots, pooled):
        typer.echo(f"left out: {line}", err=True)
    write_baseline(pooled, output)
    for line in baseline_lines(pooled):
        typer.echo(line)
    cells, of_runs = plural(len(pooled.cells), "cell"), plural(pooled.num_runs, "run")
    typer.echo(f"{output}: {cells} of {of_runs}, {output.stat().st_size / 1000:.0f} kB")
