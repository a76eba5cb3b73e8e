"""The options of `specbench pair`, and the run that its --resume names."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specbench.cli import options
from specbench.cli.measure import DEFAULT_KS, require_same_settings
from specbench.errors import UsageError
from specbench.settings import DraftSettings, MachineSettings, RunSettings
from specbench.settings.groups import (
    PROMPTS,
    BudgetS,
    IgnoreRequestSettings,
    K,
    MaxNewTokens,
    PairingsFile,
    PromptField,
    Seed,
    Temperatures,
    Workloads,
)
from specbench.settings.words import MAX_CONCURRENCY

if TYPE_CHECKING:
    from specbench.inputs.pairing import DrafterSpec, Target
    from specbench.runs import StoredRun


DEFAULT_CONTEXT = 2048


@dataclass(frozen=True, kw_only=True)
class PairOptions:
    """The options of `pair`."""

    drafts: Annotated[
        list[str] | None,
        typer.Option(
            "--draft",
            help="Draft model or head (folder, hub id, demo:NAME), or a method such as ngram. "
            "Repeatable.",
            show_default="those of pairings.yaml, else methods without a draft model",
            metavar="DRAFT",
        ),
    ] = None
    discover: Annotated[
        bool,
        typer.Option("--discover", help="Search the hub's cache and the --search-dir folders."),
    ] = False
    published: Annotated[
        bool,
        typer.Option(
            "--published",
            help="The published drafts and heads that specbench knows for this model.",
        ),
    ] = False
    folders: Annotated[
        list[Path] | None,
        typer.Option(
            "--search-dir",
            help="Folder to search; may be repeated.",
            show_default=False,
            metavar="DIR",
        ),
    ] = None
    workloads: Workloads
    prompt_field: PromptField = None
    ignore_request_settings: IgnoreRequestSettings = False
    draft: Annotated[
        DraftSettings, replace(K, help="K to rank at: 4, 1..8 or 1,2,4.", shown="0..8")
    ] = DEFAULT_KS
    temperatures: Temperatures = (0.0,)
    max_new_tokens: MaxNewTokens = None
    num_prompts: Annotated[
        int | None, replace(PROMPTS, shown="10; 3 per concurrent request; with --time-budget: all")
    ] = None
    budget_s: BudgetS = None
    concurrency: Annotated[
        int, typer.Option(min=1, max=MAX_CONCURRENCY, help="Concurrent requests.")
    ] = 1
    context: Annotated[
        str,
        typer.Option("--plan-context", help="Tokens per request to plan memory for.", metavar="N"),
    ] = str(DEFAULT_CONTEXT)
    gpu: Annotated[
        str | None,
        typer.Option(help="Plan for this GPU: H100, L4, RTX-4090 ...", show_default="this machine"),
    ] = None
    gpu_memory: Annotated[
        str | None,
        typer.Option(
            help="That GPU's memory, such as 24GiB.", show_default="datasheet's", metavar="SIZE"
        ),
    ] = None
    gpu_bandwidth: Annotated[
        str | None,
        typer.Option(
            help=("That GPU's bandwidth, such as 1008GB/s."),
            show_default="datasheet's",
            metavar="SIZE",
        ),
    ] = None
    measure: Annotated[
        int,
        typer.Option(
            "--measure-top", min=1, max=64, help="How many top-forecast drafters to measure."
        ),
    ] = 3
    machine: MachineSettings
    seed: Seed = 0
    write: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Write the best drafters to a new pairings.yaml.",
            show_default=False,
        ),
    ] = None
    runs_dir: options.RunsDir = Path("reports")
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            help="Resume this run of `pair`, or rank a finished one again; or latest.",
            show_default=False,
        ),
    ] = None
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check compatibility and memory only; load nothing.")
    ] = False
    skip_memory_check: options.SkipMemoryCheck = False
    as_json: options.AsJson = False
    pairings_file: PairingsFile = None


def interrupted_run(call: PairOptions, settings: RunSettings) -> "StoredRun | None":
    """The run to resume; UsageError if it is not of `pair` or has other settings."""
    from specbench.runs import load_run

    if call.resume is None:
        return None
    if call.drafts or call.discover or call.dry_run:
        raise UsageError(
            "--resume uses the drafters of its run; leave out --draft, --discover and --dry-run"
        )
    stored = load_run(call.resume, call.runs_dir, also_empty=True)
    was = stored.run.settings
    if was.forecasting.most_drafters is None or was.pairings_file is None:
        raise UsageError(
            f"run {stored.run.run_id} was not made by `specbench pair`; resume it with `specbench "
            f"{was.command} --resume {stored.run.run_id}`"
        )
    if call.measure not in (PairOptions.measure, was.forecasting.most_drafters):
        raise UsageError(
            f"--measure-top {call.measure}: run {stored.run.run_id} was started with "
            f"{was.forecasting.most_drafters}; leave it out"
        )
    require_same_settings(
        stored.run, replace(settings, pairings_file=was.pairings_file), (), call.runs_dir
    )
    return stored


def drafters_of(stored: "StoredRun", target: "Target") -> "tuple[DrafterSpec, ...]":
    """The drafters of the run; UsageError if it has another target."""
    from specbench.inputs.config import load_pairings

    pairings = load_pairings(stored.run.settings.pairings_file).all
    if any(pairing.target.model.place != target.model.place for pairing in pairings):
        raise UsageError(
            f"run {stored.run.run_id} ranks drafters for {pairings[0].target.name}, not for "
            f"{target.name}"
        )
    return tuple(pairing.drafter for pairing in pairings)


def command_words(word: str, call: PairOptions) -> list[str]:
    """The command that resumes a run of `pair`, with the options that the run does not store."""
    words = ["pair", word]
    for option, value in (
        ("--config", call.pairings_file),
        ("--plan-context", call.context if call.context != PairOptions.context else None),
        ("--gpu", call.gpu),
        ("--gpu-memory", call.gpu_memory),
        ("--gpu-bandwidth", call.gpu_bandwidth),
        ("--output", call.write),
    ):
        words += [] if value is None else [option, str(value)]
    return words
