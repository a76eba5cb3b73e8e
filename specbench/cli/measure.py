"""`specbench run` and `sweep-k`: nodes, the plan, a new or resumed run, the answer."""

import re
import shlex
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from specbench.cli import options
from specbench.cli.adhoc_pairing import AdhocPairing, known_pairings, yaml_snippet
from specbench.cli.checks import checked
from specbench.cli.preflight import (
    preflight,
    require_device_and_out,
    require_loadable,
    require_reachable,
)
from specbench.errors import DeviceLostError, ExitCode, UsageError
from specbench.settings import DraftSettings, RunSettings, ServerSettings
from specbench.settings.option import choices_of, leaves
from specbench.settings.words import parse_names

if TYPE_CHECKING:
    from specbench.bench.cluster import RayCluster
    from specbench.bench.expected_time import EarlierSession
    from specbench.bench.planning import RunPlan
    from specbench.inputs.pairing import Pairing
    from specbench.records import RunRecord
    from specbench.report.document import Document
    from specbench.runs import StoredRun


DEFAULT_KS = DraftSettings(num_speculative_tokens=tuple(range(9)), is_default_range=True)
_FAR_OVER = 1.5  # times the budget
_ADDRESS = re.compile(r"auto|local|[\w.-]+:\d+|\[[0-9a-fA-F:]+\]:\d+")


Adaptive = Annotated[
    bool,
    typer.Option(
        "--adaptive",
        help="Also measure an adaptive K: auto, or the serving engine's own scheme. Is it faster "
        "than the best fixed K?",
    ),
]


class Nodes(NamedTuple):
    """The cluster's address, and GPUs per task; None: 1 if the nodes have any."""

    address: str
    gpus_per_task: int | None

    @classmethod
    def parsed(cls, ray: str | None, gpus_per_task: int | None) -> "Nodes | None":
        """The nodes of --ray; UsageError for an invalid address."""
        if ray is None:
            if gpus_per_task is not None:
                raise UsageError("--gpus-per-task divides the nodes of a cluster: add --ray")
            return None
        if _ADDRESS.fullmatch(ray) is None:
            raise UsageError(f"--ray {ray!r}: choose from auto, local, host:port")
        return cls(ray, gpus_per_task)

    @property
    def words(self) -> tuple[str, ...]:
        """The options of the command line for these nodes."""
        shared = () if self.gpus_per_task is None else ("--gpus-per-task", str(self.gpus_per_task))
        return ("--ray", self.address, *shared)

    def connected(self, settings: RunSettings) -> "AbstractContextManager[RayCluster]":
        """The cluster; UsageError without Ray, or if it cannot be reached."""
        from specbench.bench.cluster import ray_cluster

        return ray_cluster(self.address, self.gpus_per_task, settings.machine)


def read_methods(methods: str | None) -> tuple[str, ...]:
    """The named methods; empty for all. UsageError for an unknown one."""
    from specbench.methods import listed_methods

    if methods is None or methods.strip() == "all":
        return ()
    if "all" in (word.strip() for word in methods.split(",")):
        raise UsageError(f"--method {methods!r}: all excludes other names; use only one of them")
    return parse_names("--method", methods, tuple(method.name for method in listed_methods()))


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of `run` and `sweep-k` that are not settings of the run."""

    runs_dir: options.RunsDir = options.RUNS_DIR
    resume: options.Resume = None
    dry_run: options.DryRun = False
    ray: options.Ray = None
    gpus_per_task: options.GpusPerTask = None
    skip_memory_check: options.SkipMemoryCheck = False
    as_json: options.AsJson = False
    verbose: options.Verbose = False


def run(pair: AdhocPairing, settings: RunSettings, call: RunOptions) -> None:
    """Measure pairings and say per workload whether to speculate.

    To find the best K, use sweep-k. Exit code 3 if undecided.
    """
    measure(checked(settings, is_resumed=call.resume is not None), pair, call)


def sweep_k(
    pair: AdhocPairing, settings: RunSettings, call: RunOptions, adaptive: Adaptive = False
) -> None:
    """Measure a range of K and report the best per workload.

    To measure only a pairing's own K, use run. Exit code 3 if undecided.
    """
    draft = DEFAULT_KS if settings.draft == DraftSettings() else settings.draft
    draft = replace(draft, adaptive=draft.adaptive or adaptive)
    settings = replace(settings, command="sweep-k", draft=draft)
    measure(checked(settings, is_resumed=call.resume is not None), pair, call)


def measure(settings: RunSettings, pair: AdhocPairing, call: RunOptions) -> None:
    """Plans, measures and answers. Exits 4 if something was not measured, 3 if undecided."""
    nodes, runs_dir, resume = Nodes.parsed(call.ray, call.gpus_per_task), call.runs_dir, call.resume
    methods = read_methods(settings.workload.methods)
    if resume is not None:
        if pair.target is not None or pair.drafts or pair.p_min:
            raise UsageError(
                "--resume keeps the pair of its run; leave out --target, --draft and --draft-p-min"
            )
        from specbench.runs import load_run

        stored = load_run(resume, runs_dir, also_empty=True)
        require_same_settings(stored.run, settings, methods, runs_dir, is_empty=stored.is_empty)
        settings = _with_requests_of(settings, stored) if stored.is_empty else stored.run.settings
        resume, runs_dir = stored.folder.name, stored.folder.parent
        names, run_folder = settings.workload.pairings, str(stored.folder)
        known = known_pairings(names, settings.pairings_file, runs_dir, run_folder)
        pairings = known.select(names, methods)
    else:
        only_servers = not settings.load.in_process
        if settings.machine.threads is not None and only_servers and nodes is None:
            raise UsageError(
                "--threads is for engines in this process, and for the cores of a --ray worker; "
                "give servers theirs with --engine-args"
            )
        pairings = pair.pairings(settings, methods, runs_dir)
    if nodes is not None and settings.servers.base_urls:
        raise UsageError(
            "--ray starts servers on its nodes, and --base-url measures those that run already; "
            "leave one or the other out"
        )
    if call.dry_run:
        is_here = nodes is None
        _show_plan(settings, pairings, runs_dir, is_here=is_here, as_json=call.as_json)
        return
    settings = of_pairings(settings, pairings)
    if nodes is None:
        plan = preflight_with_times(settings, pairings, runs_dir, skip=call.skip_memory_check)
    else:
        from specbench.bench.planning import plan_run

        plan = plan_run(settings, pairings)
    if pair.target is not None:
        typer.echo(yaml_snippet(pairings), err=True)
    skips = ("--skip-memory-check",) if call.skip_memory_check else ()
    command = [settings.command, *(nodes.words if nodes else ()), *skips]
    began_s = time.monotonic()
    run = run_planned(plan, runs_dir, resume, command, nodes, is_verbose=call.verbose)
    if warning := over_budget(settings.effort.budget_s, time.monotonic() - began_s):
        typer.echo(warning, err=True)
    _print_outcome(run, command, as_json=call.as_json, is_verbose=call.verbose)


def preflight_with_times(
    settings: RunSettings, pairings: "Sequence[Pairing]", runs_dir: Path, *, skip: bool
) -> "RunPlan":
    """The checked plan; prints the estimated time of each target, and its limits."""
    from specbench.cli.plan_table import plan_outlook, time_lines

    plan = preflight(settings, pairings, runs_dir, skip_memory_check=skip)
    is_limited = settings.effort.budget_s is not None
    outlook = plan_outlook(plan.targets, settings, runs_dir)
    for line in time_lines(outlook, is_limited=is_limited):
        typer.echo(line, err=True)
    return plan


def over_budget(budget_s: float | None, took_s: float) -> str | None:
    """A warning if a run took far longer than its budget, else None."""
    if budget_s is None or took_s <= _FAR_OVER * budget_s:
        return None
    return (
        f"took {took_s:.0f} s with a budget of {budget_s:g} s: loading and warm-up are not cut "
        "short, and take longer on a busy machine"
    )


def of_pairings(settings: RunSettings, pairings: "Sequence[Pairing]") -> RunSettings:
    """The settings with the names of these pairings."""
    names = tuple(pairing.name for pairing in pairings)
    return replace(settings, workload=replace(settings.workload, pairings=names, methods=None))


def run_planned(
    plan: "RunPlan",
    runs_dir: Path,
    resume: str | None,
    command: Sequence[str],
    nodes: Nodes | None = None,
    *,
    is_verbose: bool = False,
) -> "StoredRun":
    """The run, with its progress shown; exits 130 if interrupted and 4 if the device is lost.
    `command`: the words to resume it with, without its folder and id."""
    from specbench.cli.progress import ProgressWatch

    settings = plan.settings

    def last_words(run_id: str | None) -> str:
        if run_id is None:
            return "interrupted before anything was measured"
        return f"interrupted; {_to_resume(command, runs_dir, run_id)}"

    with ProgressWatch(last_words, is_verbose=is_verbose) as watch:
        watch.stage("starting")
        try:
            from specbench.bench.benchmark import run_benchmark

            with nullcontext() if nodes is None else nodes.connected(settings) as cluster:
                return run_benchmark(plan, runs_dir, watch, resume=resume, cluster=cluster)
        except DeviceLostError as error:
            watch.close()
            if watch.id is None:
                raise
            text = f"error: {error}; {_to_resume(command, runs_dir, watch.id)}"
            typer.echo(text, err=True)
            raise typer.Exit(ExitCode.INCOMPLETE) from None


def _to_resume(command: Sequence[str], runs_dir: Path, run_id: str) -> str:
    words = ["specbench", *command, "--runs-dir", str(runs_dir), "--resume", run_id]
    return f"finished blocks are kept. Resume with: {shlex.join(words)}"


def _print_outcome(
    run: "StoredRun", command: Sequence[str], *, as_json: bool, is_verbose: bool
) -> None:
    from specbench.cli.answer import print_answer, print_documents
    from specbench.report.answers import has_undecided
    from specbench.words.answers import noise_lines, text

    document, paths = written_report(run, command)
    if as_json:
        print_documents([document])
    else:
        # The run printed its warnings at its start; its results only add signs of noise.
        seen = (
            *map(text, run.run.warnings),
            *(noise_lines(document.noise) if run.run.busy else ()),
        )
        print_answer(document, paths, seen=seen, is_verbose=is_verbose)
    require_complete(document)
    require_decided(has_undecided(document))


def written_report(run: "StoredRun", command: Sequence[str]) -> "tuple[Document, tuple[Path, ...]]":
    """The analysis of a run that has just ended, and its report; exits as `require_measured`."""
    from specbench.report.document import build_document
    from specbench.report.write import TEXTS, write_report

    require_measured(run, command)
    document = build_document(run)
    return document, write_report([run], [document], TEXTS, run.folder)


def require_measured(run: "StoredRun", command: Sequence[str]) -> None:
    """Exits 4 if a run ended without a figure, and 2, without keeping the run, if no model could be
    loaded. `command`: as in `run_planned`.
    """
    if run.is_failed:
        is_unloadable = {(f.stage, f.ended_process) for f in run.failures} == {("load", False)}
        if is_unloadable and not run.servers:
            shutil.rmtree(run.folder)
            typer.echo("error: nothing was measured or kept: see the warnings above", err=True)
            raise typer.Exit(ExitCode.USER_ERROR)
        text = f"run {run.run.run_id} failed and measured nothing"
        # For servers it was printed when they failed.
        text += "; see the warnings above" if run.servers else f": {run.why_failed}"
        if run.was_budget_too_short:
            remedy = "start again with a longer --time-budget"
        else:
            remedy = _to_resume(command, run.folder.parent, run.run.run_id)
        typer.echo(f"error: {text}; {remedy}", err=True)
        raise typer.Exit(ExitCode.INCOMPLETE)


def require_complete(document: "Document") -> None:
    """Exits 4 if something failed, or was not measured for another reason than the budget."""
    has_failed = any(cell.metrics.get("num_failed") for cell in document.cells)
    is_missing = any(not document.is_skipped_for_budget(key) for key in document.missing)
    if is_missing or has_failed or document.failures:
        raise typer.Exit(ExitCode.INCOMPLETE)


def require_decided(is_undecided: bool) -> None:
    """Exits 3 if an answer is undecided."""
    if is_undecided:
        raise typer.Exit(ExitCode.INCONCLUSIVE)


def _show_plan(
    settings: RunSettings,
    pairings: "Sequence[Pairing]",
    runs_dir: Path,
    *,
    is_here: bool,
    as_json: bool,
) -> None:
    """Prints the plan; if `is_here`, also the reasons why it cannot be measured here."""
    from specbench.bench.planning import fit_warnings, plan_run
    from specbench.bench.rendering import rendered_for_plan
    from specbench.bench.served.host import require_startable
    from specbench.cli.console import WIDTH, open_console
    from specbench.cli.plan_table import outlook_lines, plan_document, plan_outlook, print_plan
    from specbench.cli.preflight import shortages
    from specbench.words.answers import text

    plan = plan_run(settings, pairings, render=rendered_for_plan)
    plans = plan.targets
    if is_here:
        require_loadable(settings, pairings)
    missing = list(shortages(plans, settings)) if is_here else []
    earlier = _earlier_sessions(runs_dir) if any(plan.served for plan in plans) else ()
    outlook = plan_outlook(plans, settings, runs_dir) if is_here else []
    if as_json:
        document = plan_document(plans, earlier) | {
            "estimates": [asdict(estimate) for estimate in outlook]
        }
        options.print_json(document)
    else:
        print_plan(plans, earlier)
        width = open_console(width=WIDTH).width
        for line in outlook_lines(outlook):
            typer.echo(fill(line, width, subsequent_indent="  ", break_on_hyphens=False))
    for warning in (warning for plan in plans for warning in fit_warnings(plan, is_dry=True)):
        typer.echo(f"warning: {text(warning)}", err=True)
    if is_here and not plan.running:
        try:
            require_device_and_out(settings, None)
            require_reachable(plans, settings)
            require_startable(plans)
        except UsageError as error:
            missing.insert(0, str(error))
        for lack in missing:
            typer.echo(f"warning: this plan cannot be measured here: {lack}", err=True)


def _earlier_sessions(runs_dir: Path) -> "tuple[EarlierSession, ...]":
    from specbench.bench.expected_time import earlier_sessions
    from specbench.runs import list_runs, load_run

    readable = [listing.run_id for listing in list_runs(runs_dir) if not listing.problem]
    stored = (load_run(run_id, runs_dir, also_empty=True) for run_id in readable)
    return tuple(session for run in stored for session in earlier_sessions(run))


# Options of requests to a server, which may change if all requests so far were rejected.
_OF_REQUESTS = ("served_model_name", "omit_fields")


def _with_requests_of(requested: RunSettings, stored: "StoredRun") -> RunSettings:
    """The settings of a run that has measured nothing, with the requested form of its requests."""
    was, unset = stored.run.settings.servers, ServerSettings()
    named = {name: getattr(requested.servers, name) for name in _OF_REQUESTS}
    given = {name: value for name, value in named.items() if value != getattr(unset, name)}
    settings = replace(stored.run.settings, servers=replace(was, **given))
    return checked(settings) if given else settings


def require_same_settings(
    run: "RunRecord",
    requested: RunSettings,
    methods: Sequence[str],
    runs_dir: Path,
    *,
    is_empty: bool = False,
) -> None:
    """Raises UsageError if names or options next to --resume differ from those of the run.
    `is_empty`: nothing is measured yet, so the form of its requests may change."""
    _require_choices(run)
    _require_names(run, requested, methods, runs_dir)
    changed = list(dict.fromkeys(_other_options(run.settings, requested, is_empty=is_empty)))
    if changed:
        raise UsageError(
            f"run {run.run_id} was started with different settings ({', '.join(changed)}), and a "
            "resumed run keeps its own; leave these options out, or start a new run without "
            "--resume"
        )


def _require_choices(run: "RunRecord") -> None:
    stored = run.settings.stored
    for name, kind, _, option, _ in leaves(RunSettings):
        value, choices = getattr(stored, name), choices_of(kind)
        if option is not None and choices and value not in (None, *choices):
            raise UsageError(
                f"run {run.run_id} cannot be resumed: {option.names_of(name)[0]} {value!r} was "
                f"removed since (allowed: {', '.join(choices)}); start a new run without --resume"
            )


def _require_names(
    run: "RunRecord", requested: RunSettings, methods: Sequence[str], runs_dir: Path
) -> None:
    names, was = requested.workload.pairings, run.settings.workload.pairings
    if not names and not methods:
        return
    known = known_pairings(names, run.settings.pairings_file, runs_dir)
    pairings = known.select(names, methods)
    now = {pairing.name for pairing in pairings}
    if now != set(was):
        raise UsageError(
            f"run {run.run_id} measures {', '.join(was)} and cannot be resumed "
            f"with {', '.join(sorted(now))}; leave the names out, or start a new run without "
            "--resume"
        )


def _other_options(was: RunSettings, requested: RunSettings, *, is_empty: bool) -> Iterator[str]:
    earlier, now, default = was.stored, requested.stored, RunSettings.unset().stored
    for name, _, _, option, _ in leaves(RunSettings):
        is_default_k = name == "num_speculative_tokens" and requested.draft.is_default_range
        is_free = is_empty and name in _OF_REQUESTS
        if option is None or name in ("pairings", "is_default_range") or is_default_k or is_free:
            continue
        if getattr(now, name) not in (getattr(default, name), getattr(earlier, name)):
            yield option.names_of(name)[0]
