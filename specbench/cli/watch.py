"""`specbench watch`: what a running server's own traffic shows about its drafts."""

import json
from contextlib import aclosing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specbench.errors import ExitCode, ServerError, UsageError
from specbench.settings.words import parse_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specbench.inputs.address import Address
    from specbench.records import EngineCost, Reason
    from specbench.watch.report import Watched


def watch(
    base_url: Annotated[
        str,
        typer.Option(
            "--base-url",
            help="Server to watch, such as http://localhost:8000, with #k=4 if it does not "
            "report its K.",
            metavar="URL",
        ),
    ],
    duration: Annotated[
        str, typer.Option("--for", help="How long: 90s, 10m, 8h.", metavar="TIME")
    ] = "10m",
    every: Annotated[
        str, typer.Option("--every", help="Time between readings.", metavar="TIME")
    ] = "5s",
    step_times: Annotated[
        list[str] | None,
        typer.Option(
            "--step-times",
            help="Forecast K with the step times of this run of the server, or of a table. "
            "Repeatable.",
            metavar="FILE",
        ),
    ] = None,
    served_model_name: Annotated[
        str | None,
        typer.Option("--served-model-name", help="Its model, if it has several.", metavar="NAME"),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a line of JSON for each window.")
    ] = False,
) -> None:
    """Watch the acceptance of a running server, without sending it requests.

    Reads its counters, names a collapse of acceptance and faults, and forecasts K. Ctrl-C ends it
    with its summary. Exit code 1: acceptance collapsed, or no or all draft tokens were accepted.
    """
    seconds, every_s = parse_seconds(duration, "--for"), parse_seconds(every, "--every")
    if every_s > seconds:
        raise UsageError(f"--every {every}: longer than --for {duration}")
    import asyncio

    from specbench.forecast.engine_costs import read_file
    from specbench.inputs.address import Address

    address = Address.at(base_url, "--base-url")

    costs = [cost for file in step_times or () for cost in read_file(Path(file))]
    from specbench.watch.report import has_fault

    with asyncio.Runner() as runner:
        try:
            summary = runner.run(
                _watch(address, served_model_name, seconds, every_s, costs, as_json)
            )
        except ServerError as error:
            raise UsageError(f"--base-url {error}") from error
    if has_fault(summary.reasons):
        raise typer.Exit(ExitCode.FAILED)


async def _watch(
    address: "Address",
    model: str | None,
    seconds: float,
    every_s: float,
    costs: "Sequence[EngineCost]",
    as_json: bool,
) -> "Watched":
    """Print each window, then the summary; also if the user interrupts it."""
    from asyncio import CancelledError, current_task, get_running_loop
    from signal import SIGINT, SIGTERM

    from specbench.watch.k_forecast import curve_near
    from specbench.watch.report import DOCUMENT, line_of, of_window, summary_of
    from specbench.watch.server import Restart, watched_server, windows
    from specbench.watch.traffic import WatchedTraffic
    from specbench.words.answers import text

    traffic = WatchedTraffic()
    found: list[Reason] = []

    def show(watched: "Watched") -> None:
        if as_json:
            typer.echo(json.dumps(DOCUMENT.of(watched), allow_nan=False))
        elif watched.part == "window":
            typer.echo(line_of(watched))
        for reason in () if as_json else watched.reasons:
            typer.echo(text(reason))

    def heading(engine: str, k: int | None) -> str:
        return f"{engine}, K={'unknown' if k is None else k}"

    loop, task = get_running_loop(), current_task()
    assert task is not None

    def end() -> None:
        """Once: a second signal has its usual effect."""
        for number in (SIGINT, SIGTERM):
            loop.remove_signal_handler(number)
        task.cancel()

    async with watched_server(address, model) as server:
        k, engine = server.k, server.title
        if costs and k:
            curve_near(costs, engine, 1.0, k)  # its errors, before hours of watching
        with suppress(CancelledError):
            for number in (SIGINT, SIGTERM):
                loop.add_signal_handler(number, end)
            async with aclosing(windows(server, seconds=seconds, every_s=every_s)) as seen:
                async for window in seen:
                    new = traffic.add(window)
                    if isinstance(window, str):
                        typer.echo(window, err=True)
                        if isinstance(window, Restart):
                            before = k or traffic.total.num_positions or k, engine
                            server = await server.again()
                            k, engine = server.k, server.title
                            if k is None or (k, engine) != before:
                                typer.echo(f"counted anew: {heading(engine, k)}", err=True)
                                traffic = WatchedTraffic()
                                found.clear()
                        continue
                    found += new
                    show(of_window(window, new))
    k = k or traffic.total.num_positions
    summary = summary_of(traffic, found, k)
    try:
        if costs and k:
            at = curve_near(costs, engine, traffic.mean_in_progress, k)
            summary = summary_of(traffic, found, k, *at)
    except UsageError as error:  # nothing that was seen is lost
        typer.echo(f"warning: {error}", err=True)
    if not as_json:
        typer.echo(f"\n{heading(engine, k)}:")
    show(summary)
    return summary
