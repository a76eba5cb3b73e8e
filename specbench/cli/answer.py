"""Output of a finished run: tables, the path of the report, and the answer last."""

import json
from collections.abc import Sequence
from pathlib import Path

import typer

from specbench.cli.console import WIDTH, open_console, say
from specbench.report.answers import answer_lines
from specbench.report.blocks import run_report
from specbench.report.document import Document
from specbench.report.document_json import to_json
from specbench.report.terminal import terminal_report


def print_answer(
    document: Document,
    paths: Sequence[Path],
    seen: Sequence[str] = (),
    *,
    is_verbose: bool = False,
) -> None:
    """Prints tables, the paths of reports, then all verdicts; `seen`: warnings already printed."""
    open_console(width=WIDTH).print(terminal_report(document, seen, is_verbose=is_verbose))
    for path in paths:
        typer.echo(f"report: {path}")
    if paths:
        typer.echo("")
    for line in (*answer_lines(document), *run_report(document).shared.lines):
        say(line)


def print_json(documents: Sequence[Document]) -> None:
    """Prints the JSON document, or a list of documents for several runs."""
    printed = [to_json(document) for document in documents]
    typer.echo(json.dumps(printed[0] if len(printed) == 1 else printed, indent=2, allow_nan=False))
