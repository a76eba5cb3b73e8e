"""What `run` and `sweep-k` share: settings, the plan, the run, the answer."""

import json
import math
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from specbench.cli.options import DEFAULT_WORKLOADS, Asked
from specbench.cli.resuming import require_as_asked
from specbench.cli.values import (
    Ks,
    one_of,
    parse_acceptance,
    parse_concurrency,
    parse_contexts,
    parse_ks,
    parse_names,
    parse_precision,
    parse_seconds,
    parse_temperatures,
)
from specbench.errors import UsageError
from specbench.exit_code import ExitCode

if TYPE_CHECKING:
    from specbench.inputs.config import Pairing
    from specbench.records import AcceptanceRule, RunSettings
    from specbench.report.document import Document
    from specbench.runs import StoredRun

ENGINES = ("builtin", "transformers")
DTYPES = ("float32", "bfloat16", "float16", "float64")


def read_settings(command: Literal["run", "sweep-k"], asked: Asked) -> "RunSettings":
    """The user's words as settings; UsageError says which word is wrong."""
    from specbench.records import RunSettings

    if asked.dtype is not None and asked.dtype not in DTYPES:
        raise UsageError(f"--dtype {asked.dtype!r}: allowed are {', '.join(DTYPES)}")
    if asked.request_rate == math.inf:
        raise UsageError(
            "--request-rate inf: expected requests per second; without the option each request "
            "starts when one ends"
        )
    if asked.top_p == 0:
        raise UsageError("--top-p 0 leaves no token; allowed: above 0, at most 1")
    ks = asked.num_speculative_tokens
    chosen = Ks(None, adaptive=False) if ks is None else parse_ks(ks)
    engines = parse_names("--engine", asked.engine, ENGINES)
    if chosen.adaptive and "builtin" not in engines:
        raise UsageError("-k auto needs the built-in decoder; add --engine builtin")
    if asked.acceptance is not None and engines != ("builtin",):
        raise UsageError(
            "--acceptance simulates acceptance in the built-in decoder only; leave out --engine "
            "transformers"
        )
    temperatures = parse_temperatures(asked.temperature)
    if asked.samples > 1:
        require_samples(asked, temperatures, engines, adaptive=chosen.adaptive)
    costs = tuple(asked.costs or ())
    is_forecast = asked.forecast or bool(costs)
    if is_forecast:
        require_forecast(asked, engines)
        if costs and chosen.fixed is not None and not any(chosen.fixed):
            raise UsageError("--costs forecasts fixed K above 0, such as -k 1..8")
    elif asked.exhaustive:
        raise UsageError("--exhaustive checks forecasts; add --forecast")
    rule = read_rule(asked)
    names = [name.strip() for item in asked.workload or () for name in item.split(",")]
    return RunSettings(
        command=command,
        pairings=tuple(asked.pairings or ()),
        workloads=tuple(dict.fromkeys(names)) or DEFAULT_WORKLOADS,
        pairings_file=str(asked.pairings_file) if asked.pairings_file else None,
        num_speculative_tokens=chosen.fixed,
        adaptive=chosen.adaptive,
        engines=engines,
        concurrency=parse_concurrency(asked.concurrency),
        request_rate=asked.request_rate,
        contexts=parse_contexts(asked.context) if asked.context is not None else (),
        forward=one_of("--forward", asked.forward, "auto", "stock", "fused"),
        graph=one_of("--graph", asked.graph, "auto", "off", "step", "round"),
        compile=asked.compile_forward,
        acceptance=parse_acceptance(asked.acceptance) if asked.acceptance is not None else None,
        dummy_weights=asked.dummy_weights,
        temperatures=temperatures,
        num_samples=asked.samples,
        forecast=is_forecast,
        exhaustive=asked.exhaustive,
        costs=costs,
        acceptance_rule=rule,
        top_k=asked.top_k,
        top_p=asked.top_p,
        max_new_tokens=asked.max_new_tokens,
        num_prompts=asked.prompts,
        num_repeats=asked.repeats,
        budget_s=parse_seconds(asked.budget) if asked.budget is not None else None,
        precision=parse_precision(asked.precision) if asked.precision is not None else None,
        device=asked.device,
        dtype=asked.dtype,
        threads=asked.threads,
        seed=asked.seed,
    )


def require_samples(
    asked: Asked, temperatures: tuple[float, ...], engines: tuple[str, ...], *, adaptive: bool
) -> None:
    """UsageError where the best of several answers makes no sense."""
    n = asked.samples
    if 0 in temperatures:
        raise UsageError(
            f"--samples {n}: at temperature 0 all {n} answers are the same; use a temperature "
            "above 0, such as 0.7"
        )
    if asked.concurrency != "1" or asked.request_rate is not None:
        raise UsageError(
            f"--samples {n} decodes {n} answers to one prompt at a time; leave out --concurrency "
            "and --request-rate"
        )
    if adaptive:
        raise UsageError(f"--samples {n} needs a fixed K; drop auto from -k")
    if engines != ("builtin",):
        raise UsageError(
            f"--samples {n} needs the built-in decoder; leave out --engine transformers"
        )
    if asked.acceptance is not None:
        raise UsageError(
            f"--samples {n} picks the likeliest text, but --acceptance makes texts up; use one "
            "of them"
        )


def read_rule(asked: Asked) -> "AcceptanceRule | None":
    """How the engine of --costs drafts; None: as engines of its name do."""
    if asked.acceptance_rule is None:
        return None
    if not asked.costs:
        raise UsageError("--acceptance-rule describes the engine of --costs; add --costs")
    rule: AcceptanceRule = one_of(
        "--acceptance-rule", asked.acceptance_rule, "exact", "greedy_draft"
    )
    return rule


def require_forecast(asked: Asked, engines: tuple[str, ...]) -> None:
    """UsageError where nothing can be forecast, and for costs that cannot be read."""
    from specbench.forecast.engine_costs import check_sources

    option = "--costs" if asked.costs else "--forecast"
    if engines != ("builtin",):
        raise UsageError(f"{option} needs the built-in decoder; leave out --engine transformers")
    if asked.request_rate is not None:
        raise UsageError(f"{option} assumes a full batch; drop --request-rate")
    if asked.samples > 1:
        raise UsageError(f"{option} assumes one answer per prompt; drop --samples")
    if asked.acceptance is not None:
        raise UsageError(f"{option} traces real acceptance; drop --acceptance")
    if asked.exhaustive and asked.costs:
        raise UsageError(
            "--exhaustive measures here, but --costs describe another engine; use one of them"
        )
    check_sources(asked.costs or ())


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
    settings: "RunSettings",
    methods: str | None = None,
    *,
    out: Path,
    resume: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Plan, measure, report, answer. Exits 4 when something could not be measured."""
    from specbench.inputs.config import load_pairings

    if resume is not None:
        from specbench.runs import load_run

        stored = load_run(resume, out)
        require_as_asked(stored.run, settings, read_methods(methods))
        settings, resume, out = stored.run.settings, stored.folder.name, stored.folder.parent
    file = Path(settings.pairings_file) if settings.pairings_file else None
    pairings = load_pairings(file).select(settings.pairings, read_methods(methods))
    if dry_run:
        _show_plan(settings, pairings, as_json=as_json)
        return
    settings = replace(settings, pairings=tuple(pairing.name for pairing in pairings))
    _run(settings, pairings, out, resume, as_json=as_json)


def run_settings(
    settings: "RunSettings",
    pairings: "Sequence[Pairing]",
    out: Path,
    resume: str | None = None,
    again: Sequence[str] = (),
) -> "StoredRun":
    """The run, with its progress shown; exits 130 with how to go on when it is interrupted.

    `again`: the command that goes on with --resume, if it is not that of the settings.
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
    settings: "RunSettings",
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


def _show_plan(settings: "RunSettings", pairings: "Sequence[Pairing]", *, as_json: bool) -> None:
    from specbench.bench.plan import plan_targets
    from specbench.cli.plan_table import plan_document, print_plan

    plans = plan_targets(settings, pairings, lambda t: settings.dtype or t.model.dtype)
    if as_json:
        typer.echo(json.dumps(plan_document(plans), indent=2))
    else:
        print_plan(plans)
