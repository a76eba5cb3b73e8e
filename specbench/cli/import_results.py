"""`specbench import`: results of other benchmark tools as a specbench run."""

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specbench.cli import options
from specbench.errors import UsageError
from specbench.settings.words import MAX_K

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specbench.importers.imported_cell import ImportedCell, ImportOverrides
    from specbench.records import CellKey, EngineCost, ForecastRecord, RunRecord


def import_results(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE[#k=K]",
            help=(
                "Results of vllm bench, aiperf, guidellm, SGLang, trtllm-bench or specdec_bench, "
                "folders, acceptance files, or rows of `report --row`; #k=4 gives K, #thinking_on "
                "chooses a curve."
            ),
        ),
    ],
    pairing: Annotated[
        str, typer.Option(help="target/drafter.", show_default="the file's target")
    ] = "",
    method: Annotated[
        str,
        typer.Option(help="Drafting method, such as eagle3.", show_default="unknown"),
    ] = "",
    workload: Annotated[
        str,
        typer.Option("--workload", "-w", help="Workload that was run.", show_default="the file's"),
    ] = "",
    num_speculative_tokens: Annotated[
        int | None,
        typer.Option(
            "-k",
            "--num-speculative-tokens",
            min=0,
            max=MAX_K,
            help="K, for all files that do not state it; 0: no speculation.",
            show_default=False,
            metavar="K",
        ),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=("Concurrent requests, for files that do not state them."),
            show_default=False,
        ),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=100,
            help=("Temperature, for files that do not state it."),
            show_default=False,
        ),
    ] = None,
    dtype: Annotated[str, typer.Option(help="Dtype of the target.", show_default="unknown")] = "",
    step_times: Annotated[
        list[str] | None,
        typer.Option(
            help="Forecast the best K of an engine from the files' acceptance and its step times: "
            "a table, a `vllm bench serve` result or a run. Repeatable.",
            show_default=False,
            metavar="FILE",
        ),
    ] = None,
    runs_dir: options.RunsDir = options.RUNS_DIR,
    as_json: options.AsJson = False,
) -> None:
    """Import other tools' results for report, check and history."""
    from specbench.cli.answer import print_answer, print_documents
    from specbench.importers import import_files
    from specbench.importers.imported_cell import ImportOverrides
    from specbench.methods import find_method
    from specbench.report.document import build_document
    from specbench.runs import create_run, load_run

    if pairing and not all(pairing.partition("/")):
        raise UsageError(f"--pairing {pairing!r}: expected target/drafter")
    if method:
        find_method(method)
    overrides = ImportOverrides(
        pairing=pairing,
        method=method,
        workload=workload,
        dtype=dtype,
        num_speculative_tokens=num_speculative_tokens,
        concurrency=concurrency,
        temperature=temperature,
    )
    cells = import_files(files, overrides, note=lambda text: typer.echo(text, err=True))
    forecasts = _forecasts(cells, step_times) if step_times else []
    run = _run_record(cells, overrides, step_times or ())
    with create_run(runs_dir, run) as writer:
        for record in (*(cell.record for cell in cells), *forecasts):
            writer.append(record)
        writer.finish()
    document = build_document(load_run(run.run_id, runs_dir))
    if as_json:
        print_documents([document])
    else:
        print_answer(document, ())
        typer.echo(f"stored: {runs_dir / run.run_id}")


def _forecasts(
    cells: "Sequence[ImportedCell]", sources: "Sequence[str]"
) -> "list[ForecastRecord | EngineCost]":
    """The step times, and a forecast from them for each drafter and setting with acceptance.

    UsageError if there is none, or if the step times do not cover it."""
    from specbench.forecast.cost_curve import curve_from
    from specbench.forecast.engine_costs import is_address, read_file
    from specbench.forecast.forecast import forecast_of_rates
    from specbench.importers import acceptance_by_k
    from specbench.records import Fixed

    for source in filter(is_address, sources):
        raise UsageError(
            f"--step-times {source}: `import` sends no requests; give a file, or measure step "
            "times there with `specbench sweep-k --engine`"
        )
    costs = [cost for source in sources for cost in read_file(Path(source))]
    groups: dict[CellKey, list[ImportedCell]] = {}
    for cell in cells:
        groups.setdefault(cell.key.at(Fixed(1)), []).append(cell)
    records: list[ForecastRecord | EngineCost] = []
    for key, group in groups.items():
        rates = acceptance_by_k(group)
        at = key.condition
        usable = [cost for cost in costs if cost.is_of(at, key.draft.drafter)]
        if rates and usable:
            curve = curve_from(usable, concurrency=at.concurrency, ks=rates)
            try:
                records.append(forecast_of_rates(key.at(Fixed(max(rates))), rates, curve))
            except ValueError as error:
                raise UsageError(f"--step-times: {error}") from error
    if not records:
        raise UsageError("--step-times: no file has acceptance at a K > 0 for these step times")
    return [*costs, *records]


def _run_record(
    cells: "Sequence[ImportedCell]", overrides: "ImportOverrides", step_times: "Sequence[str]"
) -> "RunRecord":
    """The provenance of an imported measurement, whose machine is unknown."""
    from specbench import __version__
    from specbench.records import CellPlan, Environment, RunRecord
    from specbench.runs import SCHEMA_VERSION, new_run_id
    from specbench.settings import RunSettings

    now = datetime.now(UTC)
    times = [cell.record.measured_at for cell in cells if cell.record.measured_at]
    keys = [cell.key for cell in cells]
    return RunRecord(
        schema_version=SCHEMA_VERSION,
        run_id=new_run_id(now),
        environment=Environment(
            created_at=min(times) if times else now.isoformat(timespec="seconds"),
            command=("specbench", *sys.argv[1:]),
            specbench_version=__version__,
            git_commit=None,
            python="",
            packages={},
            platform="",
            cpu="",
            num_cpu_cores=None,
            threads=None,
            device="",
        ),
        settings=RunSettings.with_options(
            RunSettings.unset(),
            command="import",
            pairings=tuple(dict.fromkeys(key.pairing for key in keys)),
            workloads=tuple(dict.fromkeys(key.condition.workload for key in keys)),
            num_speculative_tokens=tuple(sorted({key.draft.k for key in keys})),
            temperatures=tuple(sorted({key.condition.temperature for key in keys})),
            engines=tuple(dict.fromkeys(key.condition.engine for key in keys)),
            concurrency=tuple(sorted({key.condition.concurrency for key in keys})),
            forecast=bool(step_times),
            costs=tuple(step_times),
            dtype=overrides.dtype or None,
        ),
        workload_sha256={},
        cells=tuple(
            CellPlan(key=cell.key, num_prompts=cell.record.num_requests or 0, num_repeats=1)
            for cell in cells
        ),
    )
