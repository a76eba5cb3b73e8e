"""`specbench export`: a run's winner as flags of a serving engine, or its acceptance as a file."""

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from specbench.cli import options
from specbench.cli.adhoc_pairing import known_pairings
from specbench.cli.checks import read_acceptance
from specbench.errors import CompatibilityError, ExitCode, StoreError, UsageError
from specbench.settings import BUILTIN, EXPORTED, TRANSFORMERS
from specbench.settings.groups import PairingsFile
from specbench.settings.words import (
    ENGINES,
    MAX_CONCURRENCY,
    MAX_K,
    one_of,
    parse_acceptance,
    parse_context,
    workload_named,
)
from specbench.whole_file import write_errors_named, write_whole

if TYPE_CHECKING:
    from specbench.engines.deployment import Deployment, Export
    from specbench.export.winner import Selection
    from specbench.inputs.pairing import Pairing
    from specbench.records import RunRecord
    from specbench.report.document import Document
    from specbench.runs import StoredRun


def export(
    pairing: Annotated[
        str,
        typer.Argument(metavar="PAIRING", help="target/drafter, or a target for its best drafter."),
    ],
    engine: Annotated[
        str | None,
        typer.Option(
            help=f"One of {', '.join(EXPORTED)}. With --format: only if measured in it.",
            show_default=False,
        ),
    ] = None,
    file_format: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="Write the measured acceptance instead: speculation-profile (Model Optimizer's "
            "JSON) or golden (InferenceX's YAML).",
            show_default=False,
            metavar="FORMAT",
        ),
    ] = None,
    thinking: Annotated[
        str | None,
        typer.Option(
            help="With --format golden: the thinking mode of the prompts, on or off.",
            show_default=False,
            metavar="MODE",
        ),
    ] = None,
    engine_version: Annotated[
        str | None,
        typer.Option(
            help="Engine release, such as 0.30; for llama.cpp a date or a build.",
            show_default="newest known",
            metavar="VERSION",
        ),
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(
            help="Run id or folder.",
            show_default="latest that measured the pairing",
            metavar="RUN",
        ),
    ] = None,
    num_speculative_tokens: Annotated[
        int | None,
        typer.Option(
            "-k",
            "--num-speculative-tokens",
            min=0,
            max=MAX_K,
            help="Set K by hand, without a run; 0: no speculation.",
            metavar="K",
        ),
    ] = None,
    workload: Annotated[
        str | None,
        typer.Option("--workload", "-w", help="Only this workload.", show_default="one K for all"),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MAX_CONCURRENCY,
            help="Only this many concurrent requests.",
            show_default="K by batch size",
        ),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(min=0, max=100, help="Only this temperature.", show_default="lowest measured"),
    ] = None,
    prompt_tokens: Annotated[
        str | None,
        typer.Option(
            help="Only prompts lengthened to this many tokens, such as 4k.",
            show_default="shortest measured",
            metavar="N",
        ),
    ] = None,
    simulate_acceptance: Annotated[
        str | None,
        typer.Option(
            help="Add the engine's flags that simulate this acceptance, for benchmarks: as in "
            "`run`.",
            show_default=False,
            metavar="RATES",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Write the config, or the command if there is none, to this file.",
        ),
    ] = None,
    runs_dir: options.RunsDir = options.RUNS_DIR,
    as_json: options.AsJson = False,
    pairings_file: PairingsFile = None,
) -> None:
    """Print the winner as flags of a serving engine, or write its acceptance to a file.

    Exit code 3 if undecided.
    """
    from specbench.engines.deployment import Deployment, Tier, find_exporter
    from specbench.export.winner import Selection, export_as_measured
    from specbench.fit.candidates import unsupported_reasons
    from specbench.records import Kind

    if file_format is not None:
        from specbench.export.acceptance import FORMATS

        file_format = one_of("--format", file_format, *FORMATS)
    if engine is not None:
        engine = one_of("--engine", engine, *(ENGINES if file_format else EXPORTED))
    chosen = known_pairings([pairing], pairings_file, runs_dir, run).select([pairing])
    context = None if prompt_tokens is None else parse_context(prompt_tokens)
    selection = Selection(workload, temperature, concurrency, engine, context)
    if (thinking is not None) != (file_format == "golden"):
        raise UsageError(
            "--format golden needs --thinking on or --thinking off; other formats do not take it"
        )
    if file_format is not None:
        if as_json or engine_version is not None or simulate_acceptance is not None:
            raise UsageError(
                "--format writes another file; drop --json, --engine-version and "
                "--simulate-acceptance"
            )
        if thinking is not None and num_speculative_tokens is not None:
            raise UsageError("-k: --format golden writes every K; drop -k")
        _require_one(chosen, f"--format {file_format}")
        stored = _find_run({chosen[0].name}, run, runs_dir)
        text = _acceptance(stored, chosen[0], selection, num_speculative_tokens, thinking)
        if output is not None:
            _write(output, text)
        typer.echo(text if output is None else f"# written: {output}", nl=output is not None)
        return
    if engine is None:
        raise UsageError("--engine is missing: name the engine to write flags for, or a --format")
    exporter, measured_version = find_exporter(engine), None
    if num_speculative_tokens is not None:
        if run is not None:
            raise UsageError(
                "-k and --run exclude each other: set K by hand, or take it from a run"
            )
        unused = {
            "-w": workload,
            "--concurrency": concurrency,
            "--prompt-tokens": prompt_tokens,
        }
        for option, value in unused.items():
            if value is not None:
                raise UsageError(
                    f"{option} selects among measured cells, but -k sets K by hand; use one of them"
                )
        _require_one(chosen, f"-k {num_speculative_tokens}")
        ignored = ("attention", "code", "loading")  # engines have readers of formats
        # The exporter checks GGUF files.
        loaded = [] if chosen[0].is_gguf else chosen
        refused = unsupported_reasons(loaded, drafts=num_speculative_tokens > 0, ignored=ignored)
        if refused:  # without a measurement that shows otherwise
            raise CompatibilityError("; ".join(refused.values()))
        deployment = Deployment(
            pairing=chosen[0],
            tiers=(Tier(None, num_speculative_tokens),),
            temperature=temperature or 0.0,
            dtype=None if chosen[0].target.model.dtype == "auto" else chosen[0].target.model.dtype,
            basis=(Kind.BY_HAND(),),
        )
    else:
        deployment, measured_version = measured_deployment(chosen, selection, run, runs_dir)
    if simulate_acceptance is not None:
        acceptance = read_acceptance(parse_acceptance(simulate_acceptance)).rates
        if deployment.is_tiered and isinstance(acceptance, Mapping):
            raise UsageError("--simulate-acceptance of a file needs one K: add --concurrency or -k")
        deployment = replace(deployment, acceptance=acceptance)
    config_name = str(output) if output and exporter.CONFIG_NAME else exporter.CONFIG_NAME
    if engine_version is None:
        made = export_as_measured(exporter, deployment, measured_version, config_name)
    else:
        made = exporter.export(deployment, engine_version, config_name)
    if deployment.is_undecided:
        _print_undecided(deployment, as_json=as_json)
    script = _script(made, deployment.pairing.name)
    if output is not None:
        _write(output, made.config.text if made.config else script)
    if as_json:
        options.print_json(_document(made, deployment))
    else:
        text = _script(replace(made, config=None), deployment.pairing.name) if output else script
        typer.echo(text, nl=False)
        if output is not None:
            typer.echo(f"# written: {output}")


def _require_one(pairings: "tuple[Pairing, ...]", option: str) -> None:
    if len(pairings) > 1:
        names = ", ".join(pairing.name for pairing in pairings)
        raise UsageError(f"{option}: name one drafter: {names}")


def _acceptance(
    stored: "StoredRun",
    pairing: "Pairing",
    selection: "Selection",
    k: int | None,
    thinking: str | None,
) -> str:
    """The text of an acceptance file, from a run that measured acceptance."""
    from specbench.export.acceptance import (
        golden_lengths,
        measured_acceptance,
        speculation_profile,
    )
    from specbench.metrics.aggregate import aggregate_run

    document, selection = _analyzed(stored, selection)
    measured = measured_acceptance(
        pairing, document.run, document.cells, aggregate_run(stored), selection
    )
    if thinking is not None:
        return golden_lengths(measured, one_of("--thinking", thinking, "on", "off"))
    return json.dumps(speculation_profile(measured, k), indent=2, allow_nan=False) + "\n"


def _analyzed(stored: "StoredRun", selection: "Selection") -> "tuple[Document, Selection]":
    """The analysis of a run, and the selection with the name of its workload in the run; UsageError
    for a run with simulated acceptance or weights."""
    from specbench.report.document import build_document

    if stored.run.settings.decoder.is_synthetic:
        raise UsageError(
            f"run {stored.run.run_id} simulated acceptance or weights, so it cannot say which K to "
            "serve or how much is accepted; measure the real models, or set K by hand: -k 4"
        )
    document = build_document(stored)
    if selection.workload is not None:
        known = {cell.key.condition.workload for cell in document.cells}
        selection = selection._replace(workload=workload_named(selection.workload, known))
    return document, selection


def _print_undecided(deployment: "Deployment", *, as_json: bool) -> NoReturn:
    """Prints the missing evidence, without a command that could look like advice. Exits 3."""
    from specbench.words.answers import text

    if as_json:
        document = {
            "pairing": deployment.pairing.name,
            "undecided": True,
            **_in_words(deployment),
        }
        options.print_json(document)
    else:
        for reason in (*deployment.conditions[:1], *deployment.basis, *deployment.limits):
            typer.echo(text(reason))
        typer.echo("undecided, so nothing is exported; to set K by hand: -k 4")
    raise typer.Exit(ExitCode.INCONCLUSIVE)


def measured_deployment(
    chosen: "tuple[Pairing, ...]", selection: "Selection", run: str | None, runs_dir: Path
) -> "tuple[Deployment, str | None]":
    """The winner, and the version of the exported engine if the run measured it."""
    from specbench.export.winner import session_notes, sessions_of, winner
    from specbench.metrics.aggregate import aggregate_run
    from specbench.records import Kind

    stored = _find_run({p.name for p in chosen}, run, runs_dir)
    chosen = (*chosen, *_stopping_earlier(chosen, stored))
    document, selection = _analyzed(stored, selection)
    started = document.run.settings.servers
    deployment = winner(
        chosen,
        document.decisions,
        document.cells,
        selection,
        started.variants,
        aggregate_run(stored),
    )
    of_run = Kind.OF_RUN if document.is_complete else Kind.OF_INTERRUPTED_RUN
    sessions = sessions_of(deployment, selection.engine or "", document.servers)
    of_engine = session_notes(sessions, started.engine_args)
    noise = [Kind.NOISY(signs=document.noise)] if document.noise else ()
    conditions = (of_run(run_id=document.run.run_id), *of_engine, *deployment.conditions)
    limits = (*noise, *deployment.limits)
    if _is_default_of_a_cpu(deployment, document.run):
        # float32 was not requested, and a GPU engine would run at a fraction of its speed.
        limits = (*limits, Kind.CPU_DTYPE())
        deployment = replace(deployment, dtype=None)
    deployment = replace(deployment, conditions=conditions, limits=limits)
    return deployment, sessions[-1].version if sessions else None


def _stopping_earlier(chosen: "tuple[Pairing, ...]", stored: "StoredRun") -> Iterator["Pairing"]:
    """The pairings of a run that are chosen ones with a --draft-p-min."""
    from specbench.inputs.stored_targets import pairings_of

    names = {pairing.name for pairing in chosen}
    for pairing in pairings_of(stored.run).all:
        whole = f"{pairing.target.name}/{pairing.drafter.whole_name}"
        if pairing.name not in names and whole in names:
            yield pairing


def _is_default_of_a_cpu(deployment: "Deployment", run: "RunRecord") -> bool:
    """Whether the dtype is the default of the built-in decoder on a CPU."""
    is_chosen = run.settings.machine.dtype or deployment.target.dtype != "auto"
    is_ours = deployment.measured_with in (BUILTIN, TRANSFORMERS)
    is_cpu = run.environment.device == "cpu" and deployment.dtype == "float32"
    return is_ours and is_cpu and not is_chosen and not deployment.is_undecided


def _find_run(names: set[str], run: str | None, runs_dir: Path) -> "StoredRun":
    """The requested run, or else the newest that measured one of the pairings."""
    from specbench.runs import load_run, runs_of

    if run is None:
        run = next(runs_of(names, runs_dir), None)
    if run is not None:
        return load_run(run, runs_dir)
    raise StoreError(
        f"no run in {runs_dir} measured {', '.join(sorted(names))}; measure it with `specbench "
        "sweep-k`, or set K by hand: -k 4"
    )


def _script(made: "Export", name: str) -> str:
    """A shell script: why, from what, and what limits it as comments; the config; the command."""
    from specbench.words.answers import joined, text

    answer = name if made.acceptance_rule else f"do not speculate with {name}"
    lost = (f"not expressible: {sentence}" for sentence in made.not_expressed)
    comments = (
        f"{answer}: {joined(made.basis)}",
        ", ".join((f"for {made.engine} {made.written_for}", *map(text, made.conditions))),
        joined((*made.limits, *lost)),
    )
    lines = [f"# {comment}" for comment in comments if comment]
    if made.config is not None:
        lines += [
            f"cat > {shlex.quote(made.config.name)} <<'END_OF_CONFIG'",
            made.config.text.rstrip("\n"),
        ]
        lines.append("END_OF_CONFIG")
    return "\n".join([*lines, made.command_line, ""])


def _document(made: "Export", deployment: "Deployment") -> dict[str, object]:
    return {
        **asdict(made),
        **_in_words(made),
        "config": made.config._asdict() if made.config else None,
        "command_line": made.command_line,
        "pairing": deployment.pairing.name,
        "method": deployment.method if deployment.k else None,
        "temperature": deployment.temperature,
        "tiers": [tier._asdict() for tier in deployment.tiers],
        "undecided_concurrencies": deployment.undecided,
    }


def _in_words(of: "Deployment | Export") -> dict[str, object]:
    """The reasons of K, each with its sentence."""
    from specbench.words.answers import REASON

    names = ("basis", "conditions", "limits")
    return {name: [*map(REASON.of, getattr(of, name))] for name in names}


def _write(path: Path, text: str) -> None:
    with write_errors_named(path):
        write_whole(path, text)
