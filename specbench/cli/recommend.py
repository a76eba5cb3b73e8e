"""`specbench recommend`: what to run, for latency, throughput or cost, from stored runs."""

from collections.abc import Sequence
from typing import Annotated

import typer

from specbench.cli import options
from specbench.errors import ExitCode, UsageError


def recommend(
    run: Annotated[
        str | None,
        typer.Argument(help="Run id or folder.", show_default="latest"),
    ] = None,
    objective: Annotated[
        str,
        typer.Option(
            help=(
                "latency (seconds per token of one user), throughput (tokens/s of all users), "
                "goodput (requests/s within --slo) or cost (per million tokens)."
            )
        ),
    ] = "latency",
    slo: Annotated[
        str | None,
        typer.Option(
            help="Limits to meet, such as tpot=30ms,ttft=0.5s,tpot_p95=50ms; for goodput, limits "
            "of each request.",
            show_default=False,
            metavar="LIMITS",
        ),
    ] = None,
    price_per_hour: Annotated[
        float | None,
        typer.Option(min=0.0, help="Cost of the machine per hour.", show_default=False),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=("Only this many concurrent requests."),
            show_default="any measured",
        ),
    ] = None,
    workload: Annotated[
        list[str] | None,
        typer.Option(
            "--workload", "-w", help="Only these workloads.", show_default="all in the run"
        ),
    ] = None,
    runs_dir: options.RunsDir = options.RUNS_DIR,
    as_json: options.AsJson = False,
) -> None:
    """Recommend a drafter, K and concurrency, or no speculation, from a stored run.

    Exit code 1 if no configuration meets the limits, 3 if undecided.
    """
    from specbench.decide.objective import LIMITS, OBJECTIVES, Objective
    from specbench.settings.words import REQUEST_LIMITS, one_of, parse_limits, workload_named

    name = one_of("--objective", objective, *OBJECTIVES)
    if name == "cost" and price_per_hour is None:
        raise UsageError("--objective cost needs the machine's --price-per-hour, such as 2.50")
    if name != "cost" and price_per_hour is not None:
        raise UsageError(
            "--price-per-hour only applies to --objective cost; leave it out, or use that objective"
        )
    is_goodput = name == "goodput"
    limits = parse_limits(slo, REQUEST_LIMITS if is_goodput else LIMITS) if slo is not None else {}
    wanted = Objective(
        name=name, limits={} if is_goodput else limits, price_per_hour=price_per_hour
    )

    from specbench.cli.answer import print_part
    from specbench.report.answers import has_undecided
    from specbench.report.blocks import Lines, ReportPart
    from specbench.report.document import build_document
    from specbench.report.recommendation import (
        candidate_grid,
        is_open,
        recommendation_json,
        recommendation_lines,
        recommendations_of,
        without_recommendation,
    )
    from specbench.runs import LATEST, load_run
    from specbench.words.answers import noise_lines

    stored = load_run(run or LATEST, runs_dir)
    if is_goodput and not (limits or stored.run.settings.load.slo):
        raise UsageError(
            f"--objective goodput needs limits, and run {stored.run.run_id} had none; give --slo, "
            "such as ttft=200ms,tpot=20ms"
        )
    if limits or not is_goodput:  # the other objectives are about speed
        stored = stored.with_slo(limits if is_goodput else None)
    document = build_document(stored)
    known = sorted({cell.key.condition.workload for cell in document.cells})
    workloads = [workload_named(word, known) for word in workload or ()]
    _require_measured("--workload", workloads, known)
    rows = sorted({cell.key.condition.concurrency for cell in document.cells})
    _require_measured("--concurrency", () if concurrency is None else (concurrency,), rows)
    picks = recommendations_of(document, wanted, concurrency=concurrency, workloads=workloads)
    if not picks:
        text = (
            f"run {document.run.run_id} has no valid K=0 to compare with; see `specbench "
            "report` for what was measured"
        )
        if not has_undecided(document):
            raise UsageError(text)
        if as_json:
            options.print_json(recommendation_json(document, picks, wanted, workloads=workloads))
        else:
            typer.echo(f"undecided: {text}")
        raise typer.Exit(ExitCode.INCONCLUSIVE)
    if not document.is_complete:
        notice = f"run {document.run.run_id} was interrupted: based on what it measured so far"
        typer.echo(notice, err=True)
    for warning in noise_lines(document.noise):
        typer.echo(f"warning: {warning}", err=True)
    if as_json:
        recommendations = recommendation_json(document, picks, wanted, workloads=workloads)
        options.print_json(recommendations)
    else:
        grids = [candidate_grid(document, pick, wanted, picks) for pick in picks]
        lines = recommendation_lines(document, picks, wanted, workloads=workloads)
        typer.echo(f"run {document.run.run_id}")
        print_part(ReportPart("", [*grids, Lines(lines, is_answer=True)]))
    if any(pick.best is None for pick in picks):
        raise typer.Exit(ExitCode.FAILED)
    if any(is_open(document, pick) for pick in picks) or without_recommendation(
        document, picks, workloads
    ):
        raise typer.Exit(ExitCode.INCONCLUSIVE)


def _require_measured(option: str, named: Sequence[object], known: Sequence[object]) -> None:
    for value in named:
        if value not in known:
            raise UsageError(
                f"{option} {value}: the run only measured {', '.join(map(str, known)) or 'nothing'}"
            )
