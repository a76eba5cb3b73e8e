"""Output of a finished run: tables, the path of the report, and the answer last."""

from collections.abc import Sequence
from pathlib import Path

import typer
from rich.console import Group

from specbench.cli import options
from specbench.cli.console import WIDTH, open_console, say
from specbench.report.answers import answer_lines
from specbench.report.blocks import ReportPart, run_report
from specbench.report.document import Document
from specbench.report.document_json import to_json
from specbench.report.terminal import terminal_part, terminal_report


def print_answer(
    document: Document,
    paths: Sequence[Path],
    seen: Sequence[str] = (),
    *,
    is_verbose: bool = False,
) -> None:
    """Prints tables, the paths of reports, then all verdicts; `seen`: warnings already printed."""
    report = run_report(document)
    answers = [*answer_lines(document), *report.shared.lines]
    if len(report.answers) > 1:
        answers.append(f"{report.conclusion}.")
    _print(terminal_report(document, seen, is_verbose=is_verbose), paths, answers)


def print_part(part: ReportPart, paths: Sequence[Path] = ()) -> None:
    """Prints tables and sentences, the paths of reports, then the answers."""
    _print(terminal_part(part), paths, part.answers)


def _print(shown: Group, paths: Sequence[Path], answers: Sequence[str]) -> None:
    open_console(width=WIDTH).print(shown)
    print_paths(paths)
    for line in answers:
        say(line)


def print_paths(paths: Sequence[Path]) -> None:
    """Prints the path of a report and the names of its other files on one line, if there are any,
    with an empty one below."""
    if paths:
        first, *rest = paths
        more = f" (and {', '.join(path.name for path in rest)})" if rest else ""
        typer.echo(f"report: {first}{more}\n")


def print_documents(documents: Sequence[Document]) -> None:
    """Prints the JSON document, or a list of documents for several runs."""
    printed = [to_json(document) for document in documents]
    options.print_json(printed[0] if len(printed) == 1 else printed)
