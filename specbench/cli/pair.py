"""`specbench pair`: ranks the drafters of a target, each at its best K."""

import os
import shlex
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specbench.cli import options
from specbench.cli.adhoc_pairing import at_p_mins, find_target, named_drafters, split
from specbench.cli.checks import checked
from specbench.cli.measure import (
    DEFAULT_KS,
    of_pairings,
    preflight_with_times,
    require_complete,
    require_decided,
    require_same_settings,
    run_planned,
    written_report,
)
from specbench.cli.preflight import preflight, require_device_and_out
from specbench.errors import CompatibilityError, ModelError, UsageError, WorkloadError
from specbench.settings import (
    BUILTIN,
    EXPORTED,
    DraftSettings,
    ForecastSettings,
    MachineSettings,
    RunSettings,
)
from specbench.settings.groups import (
    DEFAULT_PROMPTS,
    ENOUGH_PROMPTS,
    PROMPTS,
    BudgetS,
    EngineArgs,
    EngineCommand,
    EnginePython,
    EngineVariants,
    IgnoreRequestSettings,
    K,
    MaxNewTokens,
    PairingsFile,
    PromptField,
    Repeats,
    Seed,
    Temperatures,
    Workloads,
)
from specbench.settings.words import MAX_CONCURRENCY, parse_context

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from specbench.bench.plan import TargetPlan
    from specbench.bench.planning import RunPlan
    from specbench.cli.hardware import MachineSummary
    from specbench.files.model import ModelFiles
    from specbench.fit.candidates import CandidateList, DraftCandidate
    from specbench.fit.weights import Weights
    from specbench.inputs.pairing import DrafterSpec, Pairing, Target
    from specbench.runs import StoredRun


DEFAULT_CONTEXT = 2048
LLAMA_CPP = "llama_cpp"
GGUF_BUDGET_S = 600.0
FEWEST_KS = (0, 3)  # of a GGUF file's drafters, if a budget does not fit the default range


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
    p_min: Annotated[
        str | None,
        typer.Option(
            "--draft-p-min",
            metavar="P",
            help="Rank each drafter also with chains that end where the draft has no token of this "
            "probability: 0,0.6,0.8.",
            show_default="the pairing's, or 0: K tokens",
        ),
    ] = None
    draft: Annotated[
        DraftSettings, replace(K, help="K to rank at: 4, 1..8 or 1,2,4.", shown="0..8")
    ] = DEFAULT_KS
    temperatures: Temperatures = (0.0,)
    max_new_tokens: MaxNewTokens = None
    num_prompts: Annotated[
        int | None,
        replace(
            PROMPTS,
            shown=f"{ENOUGH_PROMPTS} measured of {DEFAULT_PROMPTS} forecast; 3 per concurrent "
            "request; with --time-budget: all; of a GGUF file those that fit it",
        ),
    ] = None
    num_repeats: Repeats = None
    budget_s: BudgetS = None
    concurrency: Annotated[
        int, typer.Option(min=1, max=MAX_CONCURRENCY, help="Concurrent requests.")
    ] = 1
    launch: EngineCommand = None
    engine_python: EnginePython = None
    engine_args: EngineArgs = ()
    variants: EngineVariants = None
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
    runs_dir: options.RunsDir = options.RUNS_DIR
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


def _interrupted_run(call: PairOptions, settings: RunSettings) -> "StoredRun | None":
    """The run to resume; UsageError if it is not of `pair` or has other settings."""
    from specbench.runs import load_run, resume_command

    if call.resume is None:
        return None
    if call.drafts or call.discover or call.published or call.dry_run or call.p_min:
        raise UsageError(
            "--resume uses the drafters of its run; leave out --draft, --draft-p-min, --discover, "
            "--published and --dry-run"
        )
    stored = load_run(call.resume, call.runs_dir, also_empty=True)
    was = stored.run.settings
    if was.forecasting.most_drafters is None:
        raise UsageError(
            f"run {stored.run.run_id} was not made by `specbench pair`; resume it with "
            f"`{resume_command(stored.folder, stored.run)}`"
        )
    if call.measure not in (PairOptions.measure, was.forecasting.most_drafters):
        raise UsageError(
            f"--measure-top {call.measure}: run {stored.run.run_id} was started with "
            f"{was.forecasting.most_drafters}; leave it out"
        )
    require_same_settings(stored.run, settings, (), call.runs_dir)
    return stored


def _drafters_of(stored: "StoredRun", target: "Target") -> "tuple[DrafterSpec, ...]":
    """The drafters of the run; UsageError if it has another target."""
    from specbench.inputs.stored_targets import pairings_of

    pairings = pairings_of(stored.run).all
    if any(pairing.target.model.place != target.model.place for pairing in pairings):
        raise UsageError(
            f"run {stored.run.run_id} ranks drafters for {pairings[0].target.name}, not for "
            f"{target.name}"
        )
    return tuple(pairing.drafter for pairing in pairings)


def _command_words(word: str, call: PairOptions) -> list[str]:
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
    return [*words, "--skip-memory-check"] if call.skip_memory_check else words


def pair(
    call: PairOptions,
    word: Annotated[
        str | None,
        typer.Argument(
            metavar="TARGET",
            help="Target in pairings.yaml, folder, hub id, demo:target or GGUF file.",
        ),
    ] = None,
    named: Annotated[
        str | None,
        typer.Option(
            "--target",
            help="Another way to name TARGET, as in `run`.",
            show_default=False,
            metavar="MODEL",
        ),
    ] = None,
) -> None:
    """Rank drafters for a target by fit, cost and gain.

    Exit code 3 if undecided.
    """
    from specbench.bench.planning import plan_run
    from specbench.cli.plan_table import left_out
    from specbench.files.model import open_model
    from specbench.fit.demand import shortage
    from specbench.fit.pairings_file import require_new
    from specbench.inputs.workloads import load_workloads
    from specbench.words.answers import text

    target = word or named
    if target is None or (word and named):
        raise UsageError("pair: name one target, as in `specbench pair ./models/target`")
    is_gguf = target.lower().endswith(".gguf")
    settings = _settings(call, LLAMA_CPP if is_gguf else BUILTIN)
    if call.write is not None and not os.access(call.write.absolute().parent, os.W_OK | os.X_OK):
        raise UsageError(f"--output {call.write}: directory does not exist or is not writable")
    require_new(call.write)
    if is_gguf:
        _pair_gguf(target, settings, call)
        return
    stored = _interrupted_run(call, settings)
    chosen, known = find_target(target, call.pairings_file, call.runs_dir)
    if stored is None and not call.dry_run:
        require_device_and_out(settings, call.runs_dir)
        load_workloads(call.workloads, folder=chosen.workloads, field=call.prompt_field)
    if stored is not None:
        known, settings = _drafters_of(stored, chosen), stored.run.settings
        call = replace(
            call,
            concurrency=settings.load.concurrency[0],
            machine=replace(
                call.machine, dtype=settings.machine.dtype, device=settings.machine.device
            ),
        )
    files = open_model(chosen.model)
    machine = _machine(call, settings, files.longest_context)
    prepared = _prepare(chosen, files, known, machine, call)
    if not prepared.fitting:
        _show(prepared, machine, call)
        reason = f"none of {len(prepared.candidates)} drafters fits {chosen.name}"
        if too_large := [c.drafter for c in prepared.candidates if not c.is_refused]:
            missing = shortage(chosen, too_large[:1], machine.setup)
            raise UsageError(
                f"{reason}: {too_large[0].name} {missing}. --skip-memory-check tries anyway"
            )
        raise CompatibilityError(f"{reason}; see the reasons above")
    if call.dry_run:
        pairings = _pairings(prepared.target, prepared.fitting, call)
        try:
            notes = [*map(text, left_out(plan_run(settings, pairings).targets))]
        except WorkloadError as error:  # memory is planned anyway
            notes = [f"this plan cannot be measured: {error}"]
        _show(prepared, machine._replace(notes=(*machine.notes, *notes)), call)
        _write(call.write, chosen, [pairing.drafter for pairing in pairings], "not measured")
        return
    _measure(target, prepared, machine, settings, call, stored)


def _pair_gguf(target: str, settings: RunSettings, call: PairOptions) -> None:
    """Lists what can draft for a GGUF file by headers, with its memory."""
    from specbench.cli.pair_tables import gguf_json, pair_document, print_gguf, print_prepared
    from specbench.engines.served.llama_cpp import other_types, spec_types, why_missing
    from specbench.files.gguf import read_gguf
    from specbench.files.model_spec import ModelSpec
    from specbench.fit.candidates import Discovery, SkippedModel, plain_name, with_unique_names
    from specbench.fit.gguf import discover_gguf, prepare_gguf
    from specbench.inputs.pairing import Target
    from specbench.methods import LOOKUPS

    if call.discover or call.published or call.resume or call.write:
        raise UsageError(
            f"{target}: the files of its folder and of each --search-dir are always searched; "
            "leave out --discover, --published, --resume and --output"
        )
    if call.measure != PairOptions.measure:
        raise UsageError(f"--measure-top {call.measure}: all drafters of a GGUF file are measured")
    if settings.machine.threads is not None:
        raise UsageError("--threads: llama-server takes its own, as --engine-args '--threads N'")
    path = Path(target).expanduser()
    file = read_gguf(path)
    spec = ModelSpec(source=target, folder=path.absolute())
    chosen = Target(name=plain_name(target), model=spec, drafters=())
    types = spec_types(_llama_server(settings, "--help"))
    discovered = Discovery(drafters=(), left_out=())
    if not call.drafts or call.folders:
        known = [name for name in LOOKUPS if types and not why_missing(name, types)]
        discovered = discover_gguf(file, call.folders or (), known or LOOKUPS[:1])
    named = [_gguf_drafter(word) for word in split(call.drafts or ())]
    places = {drafter.model.place for drafter in named if drafter.model}
    drafters = [d for d in discovered.drafters if d.model is None or d.model.place not in places]
    skipped = [
        SkippedModel(source=f"--spec-type {name}", reason="specbench has no such method")
        for name in other_types(types)
    ]
    context = call.context if (size := _ctx_size(call)) is None else str(size // call.concurrency)
    machine = _machine(replace(call, context=context), settings, file.longest_context)
    if not types:
        note = "what this llama-server can draft with is unknown: its --help was not readable"
        machine = machine._replace(notes=(*machine.notes, note))
    prepared, files = prepare_gguf(
        chosen,
        file,
        with_unique_names([*named, *drafters]),
        machine.setup,
        left_out=(*discovered.left_out, *skipped),
    )
    candidates = tuple(_with_types(candidate, types) for candidate in prepared.candidates)
    prepared = replace(prepared, candidates=candidates)
    facts = {name: gguf_json(file) for name, file in files.items()}
    document = pair_document(prepared, machine) | {"files": facts}
    if not call.as_json:
        print_gguf(files)
        print_prepared(prepared, machine)
    if not prepared.fitting:
        if call.as_json:
            options.print_json(document)
        raise CompatibilityError(f"no drafter fits {chosen.name}; see the reasons above")
    if not call.dry_run:
        _measure_gguf(prepared, settings, call, document)
    elif call.as_json:
        options.print_json(document)


def _measure_gguf(
    prepared: "CandidateList", settings: RunSettings, call: PairOptions, document: dict[str, Any]
) -> None:
    """Measures the drafters that fit on llama-server within the budget, and prints the command of
    the winner."""
    from specbench.bench.served.host import require_startable
    from specbench.cli.export import measured_deployment
    from specbench.cli.pair_tables import print_ranking, ranking_json
    from specbench.decide.rank import rank
    from specbench.engines.deployment import find_exporter
    from specbench.export.winner import Selection, export_as_measured
    from specbench.metrics.aggregate import aggregate_run
    from specbench.records import SpeedupVerdict
    from specbench.report.sections import answer_about
    from specbench.words.answers import joined

    pairings = _pairings(prepared.target, prepared.fitting, call)
    settings = of_pairings(settings, pairings)
    plan = preflight(settings, pairings, call.runs_dir)
    require_startable(plan.targets)
    command = [settings.command]
    run = run_planned(fitted(plan), call.runs_dir, None, command)
    measured, paths = written_report(run, command)
    ranked = rank(measured.decisions, measured.cells, (), aggregate_run(run))
    deployment, version = measured_deployment(
        pairings, Selection(engine=LLAMA_CPP), str(run.folder), call.runs_dir
    )
    made = export_as_measured(find_exporter(LLAMA_CPP), deployment, version, "")
    arguments = [*made.command[1:], *settings.servers.engine_args]
    if call.context != PairOptions.context and _ctx_size(call) is None:  # slots share it evenly
        arguments += ["--ctx-size", str(document["machine"]["context"] * call.concurrency)]
    started_by = shlex.join(_llama_server(settings, *arguments))
    verdict, _ = answer_about(ranked, measured)
    is_undecided = deployment.is_undecided or verdict is SpeedupVerdict.UNDECIDED
    if call.as_json:
        more = {"run_id": run.run.run_id, "ranking": ranking_json(ranked)}
        options.print_json(document | more | {"command": None if is_undecided else started_by})
    else:
        print_ranking(ranked, measured, paths)
        if is_undecided:
            typer.echo(joined(made.basis))
        else:
            choice = deployment.pairing.drafter.name if deployment.k else "do not speculate"
            typer.echo(f"{choice}: {joined(made.basis)}")
            typer.echo(f"\n{started_by}")
    require_complete(measured)
    require_decided(is_undecided)


def _ctx_size(call: PairOptions) -> int | None:
    """The tokens of all slots in --engine-args; None if they are not given, or the model's (0)."""
    flags = ("-c", "--ctx-size")
    sizes = [size for flag, size in pairwise(call.engine_args) if flag in flags and size.isdigit()]
    return int(sizes[-1]) or None if sizes else None


def fitted(plan: "RunPlan") -> "RunPlan":
    """The plan with the prompts that fit the budget, by a session that is timed first; prints
    the minutes that this takes."""
    from specbench.bench.served.race import is_fixed, others_left
    from specbench.bench.served.sessions import cycle_of, served_cells
    from specbench.bench.served.trial import try_session

    effort, (target,) = plan.settings.effort, plan.targets
    budget_s = effort.budget_s
    if budget_s is None:
        return plan
    times = try_session(target, LLAMA_CPP)
    most = min(len(workload.prompts) // 2 for workload in target.workloads)
    concurrency = max(target.settings.load.concurrency)

    def sized(plan: "TargetPlan") -> tuple["TargetPlan", tuple[int, int, int]]:
        sessions = len([*cycle_of(served_cells(plan, LLAMA_CPP), 0)])
        num = effort.num_prompts or times.num_prompts(budget_s, sessions, most, concurrency)
        settings = replace(plan.settings, effort=replace(effort, num_prompts=num))
        plan = replace(plan, settings=settings)
        return plan, (num, sessions, num if is_fixed(plan) else others_left(plan))

    draft, (chosen, size) = target.settings.draft, sized(target)
    if draft.is_default_range and times.least_s(*size) > budget_s:
        draft = replace(draft, num_speculative_tokens=FEWEST_KS)
        chosen, size = sized(replace(target, settings=replace(target.settings, draft=draft)))
    settings = replace(plan.settings, draft=draft, effort=chosen.settings.effort)
    plan = replace(plan, settings=settings, targets=(chosen,))  # a resumed run keeps both settings
    num, least_s, longest_s = size[0], times.least_s(*size), times.longest_s(*size)
    unit = "prompts" if concurrency == 1 else "requests"  # which repeat prompts if they are few
    typer.echo(
        f"{target.target.name}: a start takes {times.start_s:.1f} s, {num} {unit} of each "
        f"workload {num * times.prompt_s:.1f} s; about {min(longest_s, budget_s) / 60:.1f} minutes",
        err=True,
    )
    if least_s > budget_s:
        typer.echo(
            f"too little time to decide: use --time-budget {ceil(least_s / 60)}m, or fewer -k, "
            "--draft, -w or --max-new-tokens",
            err=True,
        )
    return plan


def _gguf_drafter(word: str) -> "DrafterSpec":
    """The drafter of a --draft word; the file of a draft model may be missing or broken."""
    from specbench.files.gguf import gguf_of
    from specbench.files.model_spec import ModelSpec
    from specbench.fit.candidates import drafter_of, plain_name, with_lookup
    from specbench.inputs.pairing import DrafterSpec
    from specbench.methods import MODEL_METHOD, gguf_method, split_set

    first, lookup = split_set(word)
    if lookup:
        return with_lookup(_gguf_drafter(first), lookup)
    if not word.lower().endswith(".gguf"):
        if (drafter := drafter_of(word)).model is not None:
            raise UsageError(
                f"--draft {word} is not a GGUF file, as the target is; name one, or a method such "
                "as ngram"
            )
        return drafter
    spec, method = ModelSpec(source=word, folder=Path(word).expanduser().absolute()), MODEL_METHOD
    with suppress(ModelError):  # the list has the reason
        method = gguf_method(gguf_of(spec))
    return DrafterSpec(name=plain_name(word), method=method, model=spec)


def _llama_server(settings: RunSettings, *arguments: str) -> list[str]:
    """The command that starts llama-server with these arguments, at its default port."""
    from specbench.bench.served.host import command_line

    servers = settings.servers
    program = str(servers.engine_python or "llama-server")
    return command_line(servers.launch, [program], arguments, port=8080)


def _with_types(candidate: "DraftCandidate", types: "Collection[str]") -> "DraftCandidate":
    """The candidate, refused if a llama-server with these types of drafts lacks its method."""
    from specbench.engines.served.llama_cpp import why_missing
    from specbench.fit.compatibility import finding

    reason = why_missing(candidate.drafter.method, types)
    return candidate.noting(finding("method", "refused", reason=reason)) if reason else candidate


def _settings(call: PairOptions, engine: str) -> RunSettings:
    """The checked settings of the sweep."""
    if call.draft.adaptive or not any(call.draft.num_speculative_tokens or ()):
        raise UsageError("-k: ranking needs fixed K above 0, such as 1..8")
    given = call.launch, call.engine_python, call.engine_args, call.variants
    if engine == BUILTIN and any(given):
        raise UsageError(
            "--engine-command, --engine-python, --engine-args and --variant start llama-server, "
            "for a TARGET that is a GGUF file; leave them out, or measure a server with sweep-k "
            "--engine NAME"
        )
    budget_s = call.budget_s
    if engine == LLAMA_CPP and budget_s is None:
        budget_s = GGUF_BUDGET_S
    return checked(
        RunSettings.with_options(
            call,
            budget_s=budget_s,
            command="sweep-k",
            pairings=(),
            concurrency=(call.concurrency,),
            engines=(engine,),
        )
    )


def _machine(call: PairOptions, settings: RunSettings, longest: int | None) -> "MachineSummary":
    """The machine and settings of the plan; `longest`: the positions of the target."""
    from specbench.cli.hardware import find_machine
    from specbench.fit.memory_plan import DeploymentSpec

    given = parse_context(call.context, "--plan-context")
    context = min(given, longest or given)
    setup = DeploymentSpec(
        device="cpu",
        dtype=call.machine.dtype,
        concurrency=call.concurrency,
        context=context,
        num_speculative_tokens=max(settings.draft.num_speculative_tokens or (4,)),
        temperature=max(settings.sampling.temperatures),
    )
    machine = find_machine(
        setup,
        call.machine.device,
        gpu=call.gpu,
        gpu_memory=call.gpu_memory,
        gpu_bandwidth=call.gpu_bandwidth,
    )
    if call.skip_memory_check:
        machine = machine._replace(setup=replace(machine.setup, memory_bytes=None))
    if context == given:
        return machine
    limit = (
        f"context: capped at {context:,} tokens, the maximum by the target's files, instead of "
        f"{given:,}"
    )
    return machine._replace(notes=(*machine.notes, limit))


def _prepare(
    target: "Target",
    files: "ModelFiles",
    known: "Sequence[DrafterSpec]",
    machine: "MachineSummary",
    call: PairOptions,
) -> "CandidateList":
    from specbench.fit.candidates import (
        catalog_drafters,
        discover,
        draftless,
        prepare,
        with_unique_names,
    )
    from specbench.fit.loaded_tensors import asking

    if call.folders and not call.discover:
        raise UsageError("--search-dir names folders to search; add --discover")
    drafters = list(named_drafters(call.drafts or (), known))
    published = catalog_drafters(target.model.source) if call.published else ()
    discovered = discover(files, call.folders or ()) if call.discover else None
    for added in (published, discovered.drafters if discovered else ()):
        kinds = {(d.method, d.model) for d in drafters}
        drafters += [d for d in added if (d.method, d.model) not in kinds]
    if call.resume is not None:
        drafters += known
    elif not call.drafts and not call.discover and not call.published:
        lossless = tuple(drafter for drafter in known if drafter.lossy is None)
        drafters += lossless or tuple(draftless(files))
    with asking(partial(typer.echo, err=True)):
        prepared = prepare(
            target,
            files,
            with_unique_names(drafters),
            machine.setup,
            left_out=discovered.left_out if discovered else (),
            count=_built_hybrid if call.dry_run else _built,
            ignored=("loading",) if call.gpu or call.gpu_memory else (),
        )
    candidates = tuple(
        _with_engines(target, candidate, machine.setup.temperature)
        for candidate in prepared.candidates
    )
    return replace(prepared, candidates=candidates)


def _with_engines(
    target: "Target", candidate: "DraftCandidate", temperature: float
) -> "DraftCandidate":
    """The candidate with notes on how serving engines handle its vocabulary."""
    from specbench.engines.deployment import vocabulary_notes
    from specbench.fit.compatibility import finding
    from specbench.inputs.pairing import Pairing

    if candidate.is_refused:
        return candidate
    pairing = Pairing(target=target, drafter=candidate.drafter)
    return candidate.noting(
        *(
            finding(engine, "warning", reason=note)
            for engine in EXPORTED
            for note in vocabulary_notes(engine, pairing, temperature)
        )
    )


def _built(files: "ModelFiles", dtype: str) -> "Weights | None":
    """The weights of a model that is built without memory."""
    from specbench.bench.built_weights import built_weights

    return built_weights(files, dtype)


def _built_hybrid(files: "ModelFiles", dtype: str) -> "Weights | None":
    """The weights of a hybrid model, which need torch; None for other models."""
    from specbench.files.config import is_hybrid

    return _built(files, dtype) if is_hybrid(files.field) else None


def _measure(
    word: str,
    prepared: "CandidateList",
    machine: "MachineSummary",
    settings: RunSettings,
    call: PairOptions,
    stored: "StoredRun | None",
) -> None:
    """Forecasts all drafters that fit, measures the best ones and ranks them."""
    from specbench.bench.planning import plan_run
    from specbench.decide.rank import rank
    from specbench.inputs.stored_targets import pairings_of
    from specbench.metrics.aggregate import aggregate_run
    from specbench.records import SpeedupVerdict
    from specbench.report.sections import answer_about
    from specbench.words.answers import answer_text

    if not call.as_json:
        _show(prepared, machine, call)
    if not prepared.measurable:
        raise CompatibilityError(
            f"nothing can be measured: {prepared.target.name} or all its drafters have no weights "
            "here; download them, or plan with --dry-run"
        )
    if stored is None:
        pairings = _pairings(prepared.target, prepared.measurable, call)
        runs_dir, resume = call.runs_dir, None
        settings = replace(
            of_pairings(settings, pairings),
            forecasting=ForecastSettings(forecast=True, most_drafters=call.measure),
        )
        plan = preflight_with_times(settings, pairings, runs_dir, skip=call.skip_memory_check)
    else:
        plan = plan_run(settings, pairings_of(stored.run).select())
        runs_dir, resume = stored.folder.parent, stored.folder.name
    command = _command_words(word, call)
    run = run_planned(plan, runs_dir, resume, command)
    document, paths = written_report(run, command)
    ranked = rank(document.decisions, document.cells, run.forecasts, aggregate_run(run))
    from specbench.cli.pair_tables import pair_document, print_ranking

    if call.as_json:
        options.print_json(pair_document(prepared, machine, ranked, document))
    else:
        print_ranking(ranked, document, paths)
    by_name = {pairing.drafter.name: pairing.drafter for pairing in plan.pairings}
    best = [
        replace(by_name[r.drafter], num_speculative_tokens=r.measured.num_speculative_tokens)
        for r in ranked
        if r.measured is not None and r.measured.num_speculative_tokens
    ]
    verdict, reasons = answer_about(ranked, document)
    comment = f"measured by specbench pair, run {run.run.run_id}"
    _write(call.write, prepared.target, best, comment, answer_text(verdict, reasons))
    require_complete(document)
    require_decided(verdict is SpeedupVerdict.UNDECIDED)


def _pairings(
    target: "Target", candidates: "Iterable[DraftCandidate]", call: PairOptions
) -> "tuple[Pairing, ...]":
    """The pairings of these candidates, once for each --draft-p-min."""
    from specbench.inputs.pairing import Pairing

    fitting = [Pairing(target=target, drafter=candidate.drafter) for candidate in candidates]
    return at_p_mins(fitting, call.p_min)


def _show(prepared: "CandidateList", machine: "MachineSummary", call: PairOptions) -> None:
    from specbench.cli.pair_tables import pair_document, print_prepared

    if call.as_json:
        options.print_json(pair_document(prepared, machine))
    else:
        print_prepared(prepared, machine)


def _write(
    path: Path | None,
    target: "Target",
    drafters: "Sequence[DrafterSpec]",
    comment: str,
    why_none: str = "no drafter fits",
) -> None:
    from specbench.fit.pairings_file import write_pairings

    if path is None:
        return
    if not drafters:
        typer.echo(f"{path} not written: {why_none}", err=True)
        return
    write_pairings(path, target, drafters, comment)
    typer.echo(f"written: {path}", err=True)
