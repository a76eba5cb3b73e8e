"""What `run` and `sweep-k` share: settings, the plan, the run, the answer."""

import json
import math
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from specbench.cli.resuming import require_as_asked
from specbench.errors import UsageError
from specbench.exit_code import ExitCode
from specbench.settings import BUILTIN, RunSettings
from specbench.settings.words import one_of, parse_names

if TYPE_CHECKING:
    from specbench.inputs.config import Pairing
    from specbench.report.document import Document
    from specbench.runs import StoredRun

DTYPES = ("float32", "bfloat16", "float16", "float64")


def checked(asked: RunSettings) -> RunSettings:
    """The settings, where they go together; UsageError says which do not."""
    draft, load, forecasting = asked.draft, asked.load, asked.forecasting
    if asked.machine.dtype is not None:
        one_of("--dtype", asked.machine.dtype, *DTYPES)
    if load.request_rate == math.inf:
        raise UsageError(
            "--request-rate inf: expected requests per second; without the option each request "
            "starts when one ends"
        )
    if asked.sampling.top_p == 0:
        raise UsageError("--top-p 0 leaves no token; allowed: above 0, at most 1")
    if draft.adaptive and BUILTIN not in load.engines:
        raise UsageError("-k auto needs the built-in decoder; add --engine builtin")
    if asked.decoder.acceptance is not None and load.engines != (BUILTIN,):
        raise UsageError(
            "--acceptance simulates acceptance in the built-in decoder only; leave out --engine "
            "transformers"
        )
    if load.num_samples > 1:
        _require_samples(asked)
    if forecasting.forecast or forecasting.costs:
        _require_forecast(asked)
        forecasting = replace(forecasting, forecast=True)
    elif forecasting.exhaustive:
        raise UsageError("--exhaustive checks forecasts; add --forecast")
    if forecasting.acceptance_rule is not None and not forecasting.costs:
        raise UsageError("--acceptance-rule describes the engine of --costs; add --costs")
    return replace(asked, forecasting=forecasting)


def _require_samples(asked: RunSettings) -> None:
    """UsageError where the best of several answers makes no sense."""
    n, load = asked.load.num_samples, asked.load
    if 0 in asked.sampling.temperatures:
        raise UsageError(
            f"--samples {n}: at temperature 0 all {n} answers are the same; use a temperature "
            "above 0, such as 0.7"
        )
    if load.concurrency != (1,) or load.request_rate is not None:
        raise UsageError(
            f"--samples {n} decodes {n} answers to one prompt at a time; leave out --concurrency "
            "and --request-rate"
        )
    if asked.draft.adaptive:
        raise UsageError(f"--samples {n} needs a fixed K; drop auto from -k")
    if load.engines != (BUILTIN,):
        raise UsageError(
            f"--samples {n} needs the built-in decoder; leave out --engine transformers"
        )
    if asked.decoder.acceptance is not None:
        raise UsageError(
            f"--samples {n} picks the likeliest text, but --acceptance makes texts up; use one "
            "of them"
        )


def _require_forecast(asked: RunSettings) -> None:
    """UsageError where nothing can be forecast, and for costs that cannot be read."""
    from specbench.forecast.engine_costs import check_sources

    costs, ks = asked.forecasting.costs, asked.draft.num_speculative_tokens
    option = "--costs" if costs else "--forecast"
    if asked.load.engines != (BUILTIN,):
        raise UsageError(f"{option} needs the built-in decoder; leave out --engine transformers")
    if asked.load.request_rate is not None:
        raise UsageError(f"{option} assumes a full batch; drop --request-rate")
    if asked.load.num_samples > 1:
        raise UsageError(f"{option} assumes one answer per prompt; drop --samples")
    if asked.decoder.acceptance is not None:
        raise UsageError(f"{option} traces real acceptance; drop --acceptance")
    if asked.forecasting.exhaustive and costs:
        raise UsageError(
            "--exhaustive measures here, but --costs describe another engine; use one of them"
        )
    check_sources(costs)
    if costs and ks is not None and not any(ks):
        raise UsageError("--costs forecasts fixed K above 0, such as -k 1..8")


def read_methods(methods: str | None) -> tuple[str, ...]:
    """The methods named; none of them where all are meant. UsageError for an unknown one."""
    from specbench.inputs.methods import all_methods

    if methods is None or methods.strip() == "all":
        return ()
    if "all" in (word.strip() for word in methods.split(",")):
        raise UsageError(
            f"--method {methods!r}: all excludes other names; use it alone or leave it out"
        )
    return parse_names("--method", methods, tuple(method.name for method in all_methods()))


def measure(
    settings: RunSettings,
    *,
    out: Path,
    resume: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Plan, measure, report, answer. Exits 4 when something could not be measured."""
    from specbench.inputs.config import load_pairings

    methods = read_methods(settings.workload.methods)
    if resume is not None:
        from specbench.runs import load_run

        stored = load_run(resume, out)
        require_as_asked(stored.run, settings, methods)
        settings, resume, out = stored.run.settings, stored.folder.name, stored.folder.parent
    pairings = load_pairings(settings.pairings_file).select(settings.workload.pairings, methods)
    if dry_run:
        _show_plan(settings, pairings, as_json=as_json)
        return
    _run(of_pairings(settings, pairings), pairings, out, resume, as_json=as_json)


def of_pairings(settings: RunSettings, pairings: "Sequence[Pairing]") -> RunSettings:
    """The settings with these pairings by their names, whatever chose them."""
    names = tuple(pairing.name for pairing in pairings)
    return replace(settings, workload=replace(settings.workload, pairings=names, methods=None))


def run_settings(
    settings: RunSettings,
    pairings: "Sequence[Pairing]",
    out: Path,
    resume: str | None = None,
    again: Sequence[str] = (),
) -> "StoredRun":
    """The run, with its progress shown; exits 130 with how to go on when it is interrupted.

    `again`: the command to resume with, if it is not that of the settings.
    """
    from specbench.cli.progress import ProgressWatch

    with ProgressWatch() as watch:
        watch.stage("starting")
        try:
            from specbench.bench.benchmark import run_benchmark

            return run_benchmark(settings, pairings, out, watch, resume=resume)
        except KeyboardInterrupt:
            watch.close()
            if watch.id is None:
                typer.echo("interrupted before anything was measured", err=True)
            else:
                words = ["specbench", *(again or [settings.command]), "--out", str(out)]
                typer.echo(
                    "interrupted; finished blocks are kept. Resume with: "
                    f"{shlex.join([*words, '--resume', watch.id])}",
                    err=True,
                )
            raise typer.Exit(ExitCode.INTERRUPTED) from None


def _run(
    settings: RunSettings,
    pairings: "Sequence[Pairing]",
    out: Path,
    resume: str | None,
    *,
    as_json: bool,
) -> None:
    run = run_settings(settings, pairings, out, resume)
    from specbench.cli.answer import print_answer, print_json
    from specbench.report.document import build_document
    from specbench.report.write import write_report

    document = build_document(run)
    paths = write_report([run], ("html", "md", "csv"), run.folder)
    if as_json:
        print_json([document])
    else:
        print_answer(document, paths, told=run.run.warnings)  # told when measuring began
    require_complete(document)


def require_complete(document: "Document") -> None:
    """Exit 4 where something was not measured, or failed."""
    has_failed = any(cell.metrics.get("num_failed") for cell in document.cells)
    if document.failures or document.missing or has_failed:
        raise typer.Exit(ExitCode.INCOMPLETE)


def _show_plan(settings: RunSettings, pairings: "Sequence[Pairing]", *, as_json: bool) -> None:
    from specbench.bench.plan import plan_targets
    from specbench.cli.plan_table import plan_document, print_plan

    plans = plan_targets(settings, pairings, lambda t: settings.machine.dtype or t.model.dtype)
    if as_json:
        typer.echo(json.dumps(plan_document(plans), indent=2))
    else:
        print_plan(plans)
