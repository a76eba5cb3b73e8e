"""`specbench history`: metrics over the stored runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specbench.cli import options
from specbench.errors import StoreError, UsageError
from specbench.whole_file import write_errors_named, write_whole

if TYPE_CHECKING:
    from specbench.gate.history import History, PastRun

DEFAULT = "decode_speedup,mean_acceptance_length"


def history(
    metric: Annotated[
        str,
        typer.Option(
            help="Metrics from `specbench list metrics`, comma-separated.",
            metavar="METRICS",
        ),
    ] = DEFAULT,
    pairing: Annotated[
        str | None, typer.Option(help="Only this pairing.", show_default="all")
    ] = None,
    workload: Annotated[
        str | None, typer.Option("--workload", "-w", help="Only this workload.", show_default="all")
    ] = None,
    run: Annotated[
        str,
        typer.Option(help="Last run to include.", show_default="latest", metavar="RUN"),
    ] = "latest",
    allow_different: Annotated[
        str,
        typer.Option(
            help="Include runs that differ in these: hardware, model, workload ...; "
            "comma-separated.",
            show_default="nothing",
            metavar="KEYS",
        ),
    ] = "",
    html: Annotated[
        Path | None, typer.Option(help=("Write an HTML page with plots to this file."))
    ] = None,
    runs_dir: options.RunsDir = options.RUNS_DIR,
    as_json: options.AsJson = False,
) -> None:
    """Show metrics across runs, with change points and trends.

    Leaves out runs that were interrupted or are not comparable.
    """
    from specbench.cli.answer import print_part
    from specbench.gate.history import WORDS
    from specbench.gate.history import history as history_of
    from specbench.metrics.registry import all_metrics
    from specbench.report.history import history_json, history_report
    from specbench.settings.words import parse_names

    metrics = parse_names("--metric", metric, tuple(all_metrics()))
    allowed = options.allowed_words(allow_different, WORDS)
    past = _past(run, runs_dir, pairing, workload)
    series_of_runs = history_of(past, metrics, allowed=allowed)
    if not series_of_runs.series:
        filters = {"--pairing": pairing, "--workload": workload}
        raise UsageError(_why_nothing(metrics, filters, past, series_of_runs))
    shown = history_report(series_of_runs)
    if html is not None:
        from specbench.report.charts.lines import history_charts
        from specbench.report.html import page

        with write_errors_named(html):
            write_whole(html, page(shown, {"history": history_charts(series_of_runs)}))
    if as_json:
        options.print_json(history_json(series_of_runs))
    else:
        print_part(shown, [html] if html else [])


def _why_nothing(
    metrics: Sequence[str],
    filters: dict[str, str | None],
    past: "list[PastRun]",
    history: "History",
) -> str:
    from specbench.report.history import left_out_lines
    from specbench.words.numbers import plural

    cells = [cell.metrics for run in past for cell in run.cells]
    if lists := [m for m in metrics if any(isinstance(cell.get(m), tuple) for cell in cells)]:
        return (
            f"--metric {', '.join(lists)}: a list, not one figure per run; `specbench report` "
            "shows it"
        )
    num_runs = len(past) - len({left.run_id for left in history.left_out})
    text = "".join(f" with {option} {word}" for option, word in filters.items() if word is not None)
    reason = (
        f"no valid cell of {plural(num_runs, 'run')}{text} has {' or '.join(metrics)}; "
        "`specbench list metrics` lists all metrics, `specbench report` those of a run"
    )
    return "\n".join((reason, *left_out_lines(history)))


def _past(newest: str, root: Path, pairing: str | None, workload: str | None) -> "list[PastRun]":
    """Every run up to the newest, analyzed; unreadable runs are named on stderr and left out."""
    from specbench.gate.fingerprint import fingerprint_of
    from specbench.gate.history import PastRun
    from specbench.report.document import build_document
    from specbench.runs import LATEST, list_runs, load_run
    from specbench.settings.words import workload_named

    listed = []
    for listing in list_runs(root):
        if listing.problem:
            typer.echo(f"{listing.run_id} left out: {listing.problem}", err=True)
        elif listing.has_measured:
            listed.append(listing)
    if newest != LATEST:
        last = load_run(newest, root).run
        listed = [x for x in listed if x.created_at <= last.environment.created_at]
    if not listed:
        raise StoreError(
            f"no runs in {root} yet that measured anything; start with `specbench run`"
        )
    past = []
    for listing in listed:
        try:
            stored = load_run(listing.run_id, root)
        except StoreError as error:
            typer.echo(f"{listing.run_id} left out: {error}", err=True)
            continue
        cells = build_document(stored).cells
        known = {cell.key.condition.workload for cell in cells}
        named = None if workload is None else workload_named(workload, known)
        cells = tuple(
            cell
            for cell in cells
            if pairing in (None, cell.key.pairing) and named in (None, cell.key.condition.workload)
        )
        past.append(
            PastRun(
                run_id=listing.run_id,
                created_at=listing.created_at,
                fingerprint=fingerprint_of(
                    stored.run, stored.models, stored.engines, stored.imported
                ),
                cells=cells,
                is_complete=stored.is_complete,
            )
        )
    if not past:
        raise StoreError(f"none of the runs in {root} can be read")
    return past
