"""`specbench report`: pages and tables of stored runs, and rows to share."""

import json
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specbench.cli import options
from specbench.errors import UsageError
from specbench.settings.words import parse_limits, parse_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specbench.report.document import Document


def report(
    runs: Annotated[
        list[str] | None,
        typer.Argument(help="Run ids or folders.", show_default="latest"),
    ] = None,
    formats: Annotated[
        str, typer.Option("--format", help="html, md, csv, parquet, or a list such as html,md,csv.")
    ] = "html,md,csv",
    slo: Annotated[
        str | None,
        typer.Option(
            help="Choose K by goodput within these limits, such as ttft=200ms,tpot=20ms.",
            show_default="those of the run",
            metavar="LIMITS",
        ),
    ] = None,
    runs_dir: options.RunsDir = options.RUNS_DIR,
    as_json: options.AsJson = False,
    verbose: options.Verbose = False,
    is_row: Annotated[
        bool,
        typer.Option(
            "--row",
            help="Print only a row to share for each answer: a Markdown table, or with --json a "
            "JSON object per line.",
        ),
    ] = False,
    is_opened: Annotated[
        bool, typer.Option("--open", help="Open the page in your browser.")
    ] = False,
) -> None:
    """Write reports of stored runs and print their answers again."""
    from specbench.report.write import FORMATS, write_report

    chosen = parse_names("--format", formats, FORMATS)
    if is_opened and is_row:
        raise UsageError("--open shows a page, and --row writes none; leave one of them out")
    if is_opened and "html" not in chosen:
        raise UsageError(f"--open shows the page, and --format {formats!r} has no html")
    limits = None if slo is None else parse_limits(slo)
    from specbench.runs import LATEST, load_run

    stored = [load_run(name, runs_dir) for name in runs or (LATEST,)]
    if limits is not None:
        stored = [run.with_slo(limits) for run in stored]

    from specbench.cli.answer import print_answer, print_documents
    from specbench.report.document import build_document

    documents = [build_document(run) for run in stored]
    if is_row:
        _print_rows(documents, as_json=as_json)
        return
    paths = write_report(stored, documents, chosen, stored[-1].folder)
    if as_json:
        print_documents(documents)
    else:
        for document in documents[:-1]:
            print_answer(document, (), is_verbose=verbose)
        print_answer(documents[-1], paths, is_verbose=verbose)
    if is_opened:
        _open(next(path for path in paths if path.suffix == ".html"))


def _print_rows(documents: "Sequence[Document]", *, as_json: bool) -> None:
    """Prints a row per answer; UsageError without an answer."""
    from specbench.report.rows import rows, table

    shared = [row for document in documents for row in rows(document)]
    if not shared:
        runs = ", ".join(document.run.run_id for document in documents)
        raise UsageError(
            f"--row: no answer in run {runs}: no K > 0 was compared with K = 0; measure one: "
            "specbench sweep-k -k 0..8"
        )
    as_line = (json.dumps(row, allow_nan=False) for row in shared)
    for line in as_line if as_json else table(shared):
        typer.echo(line)


def _open(page: Path) -> None:
    """Opens the page in a browser; without one, as on a server, prints its path."""
    try:
        is_open = webbrowser.open(page.resolve().as_uri())
    except webbrowser.Error:
        is_open = False
    if not is_open:
        typer.echo(f"no browser found here; open {page} on a machine with a browser", err=True)
