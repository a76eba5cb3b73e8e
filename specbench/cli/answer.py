"""What a command prints when a run is done: tables, the report's path, and the answer last."""

import json
from collections.abc import Sequence
from pathlib import Path

import typer

from specbench.cli.console import WIDTH, open_console, say
from specbench.report.answers import answer_lines
from specbench.report.document import Document
from specbench.report.document_json import to_json
from specbench.report.terminal import terminal_report


def print_answer(document: Document, paths: Sequence[Path], told: Sequence[str] = ()) -> None:
    """Tables, where the reports lie, then one sentence per workload; `told`: warnings seen."""
    open_console(width=WIDTH).print(terminal_report(document, told))
    for path in paths:
        typer.echo(f"report: {path}")
    if paths:
        typer.echo("")
    for line in answer_lines(document):
        say(line)


def print_json(documents: Sequence[Document]) -> None:
    """The machine document; of several runs a list of them."""
    found = [to_json(document) for document in documents]
    typer.echo(json.dumps(found[0] if len(found) == 1 else found, indent=2, allow_nan=False))
