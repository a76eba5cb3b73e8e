"""`specbench verify`: tests whether the output of a pairing is that of its target."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated

import typer

from specbench.cli import options
from specbench.cli.adhoc_pairing import AdhocPairing
from specbench.cli.checks import checked
from specbench.cli.measure import read_methods
from specbench.cli.preflight import preflight
from specbench.doc import Doc, Key
from specbench.errors import UsageError
from specbench.settings import (
    BUILTIN,
    SERVED,
    DraftSettings,
    MachineSettings,
    RunSettings,
    SamplingSettings,
    ServerSettings,
    WorkloadSettings,
)
from specbench.settings.groups import (
    PROMPTS,
    AttentionBackend,
    CudaGraph,
    Engines,
    K,
    ModelImplementation,
    PairingsFile,
    Seed,
)
from specbench.settings.words import MAX_CONCURRENCY, parse_seconds, parse_share

if TYPE_CHECKING:
    from specbench.bench.planning import RunPlan
    from specbench.cli.progress import ProgressWatch
    from specbench.inputs.pairing import Pairing
    from specbench.verify.evidence import Evidence
    from specbench.verify.judge import Finding

# The deviation that 8,192 tokens per cell detect with four cells. With more cells, the correction
# for several tests needs more tokens per cell: docs/verify.md has a table.
PRECISION = 0.0305
BUDGET = "30m"
TOKENS_OF_SERVERS = 16384  # of each K and temperature
ROWS, ROWS_OF_SERVERS = 16, 4  # concurrent requests, which may share a server's context


_SAMPLING = SamplingSettings(temperatures=(0.0, 0.7))


@dataclass(frozen=True, kw_only=True)
class VerifyOptions:
    """The settings that `verify` and `run` have in common."""

    workload: WorkloadSettings
    draft: Annotated[DraftSettings, replace(K, help="K: 4, 1..8 or 1,2,4.")] = field(
        default_factory=DraftSettings
    )
    sampling: SamplingSettings = _SAMPLING
    num_prompts: Annotated[int | None, replace(PROMPTS, shown="10")] = None
    engines: Engines = (BUILTIN,)
    servers: ServerSettings = field(default_factory=ServerSettings)
    forward: ModelImplementation = "auto"
    graph: CudaGraph = "auto"
    kernels: AttentionBackend = "auto"
    machine: MachineSettings
    seed: Seed = 0
    pairings_file: PairingsFile = None


def verify(
    pair: AdhocPairing,
    call: VerifyOptions,
    tokens: Annotated[
        int | None,
        typer.Option(
            "--num-tokens",
            min=100,
            max=10**8,
            help="Tokens to sample for each K and temperature above 0.",
            show_default=f"at least 8,192, by --time-budget; {TOKENS_OF_SERVERS:,} on a server",
        ),
    ] = None,
    detect: Annotated[
        str | None,
        typer.Option(
            help="Sample enough tokens to find, with 80% power, a fault that displaces this share "
            "of them, such as 1%.",
            show_default=False,
            metavar="PERCENT",
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            "--time-budget",
            help="Time limit for sampling what a verdict needs, such as 1h. Not for servers.",
            show_default=BUDGET,
            metavar="DURATION",
        ),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MAX_CONCURRENCY,
            help="Concurrent requests.",
            show_default=f"{ROWS} in the built-in decoder, {ROWS_OF_SERVERS} on a server",
        ),
    ] = None,
    skip_memory_check: options.SkipMemoryCheck = False,
    as_json: options.AsJson = False,
) -> None:
    """Test that speculation does not change the output.

    Exit code 1 if a pairing changes it, 3 if undecided.
    """
    settings = checked(RunSettings.with_options(call))
    if settings.draft.adaptive:
        raise UsageError(
            "-k auto: verify tests fixed K, and auto only picks among them; name them, as in "
            "-k 1..8"
        )

    if settings.servers.cycles is not None or settings.servers.num_warmups is not None:
        raise UsageError(
            "--restart-cycles and --warmup: verify starts each K once and measures no time; drop "
            "them"
        )

    if settings.servers.variants:
        raise UsageError(
            "--variant: verify compares outputs under one set of engine arguments; give one set as "
            "--engine-args"
        )

    if tokens is not None and detect is not None:
        raise UsageError("--detect and --num-tokens both say how much is sampled; use one of them")
    if budget is not None and (tokens is not None or detect is not None):
        raise UsageError(
            "--time-budget bounds how much is sampled, --num-tokens and --detect set it; use one "
            "of them"
        )
    if budget is not None and not settings.load.in_process:
        raise UsageError(
            "--time-budget limits the engines in this process; for servers use --num-tokens"
        )
    budget_s = parse_seconds(budget or BUDGET)
    share = None if detect is None else parse_share(detect, "--detect")
    chosen = pair.pairings(settings, read_methods(settings.workload.methods))
    plan = preflight(settings, chosen, skip_memory_check=skip_memory_check)
    from specbench.bench.planning import require_verifiable
    from specbench.cli.progress import ProgressWatch

    require_verifiable(plan.targets)

    last_words = "interrupted: evidence is judged as a whole, so nothing was kept"
    with ProgressWatch(lambda _: last_words) as watch:
        watch.stage("starting")
        if share is not None:
            tokens = enough_tokens(share, settings, chosen)
        evidence = _collect(plan, watch, tokens, budget_s, concurrency)
    from specbench.verify.judge import judge
    from specbench.verify.report import document, exit_code, sentences

    findings = judge(evidence)
    try:
        if as_json:
            options.print_json(document(findings))
        else:
            _print(findings)
    except OSError as error:
        if not isinstance(error, BrokenPipeError):  # a full disk must not lose a long measurement
            for line in sentences(findings):
                typer.echo(line, err=True)
        raise
    raise typer.Exit(exit_code(findings))


def enough_tokens(share: float, settings: RunSettings, chosen: "Sequence[Pairing]") -> int:
    """Tokens per cell that detect the share, over all cells of the call."""
    from specbench.verify.judge import tokens_for

    ks = len(settings.draft.num_speculative_tokens or (4,))
    cells = len(chosen) * ks + len({pairing.target.name for pairing in chosen})
    hot = sum(temperature > 0 for temperature in settings.sampling.temperatures)
    return tokens_for(share, cells * hot * len(settings.load.engines))


def _collect(
    plan: "RunPlan",
    watch: "ProgressWatch",
    num_tokens: int | None,
    budget_s: float,
    concurrency: int | None,
) -> "list[Evidence]":
    """Evidence about the engines in this process, then about servers, which do not need torch."""
    load = plan.settings.load
    evidence: list[Evidence] = []
    if load.in_process:
        from specbench.bench.verification import collect_evidence

        evidence += collect_evidence(
            plan,
            watch,
            num_tokens=num_tokens or enough_tokens(PRECISION, plan.settings, plan.pairings),
            budget_s=None if num_tokens else budget_s,
            num_rows=concurrency or ROWS,
        )
    if load.served:
        from specbench.bench.served.verification import collect_served_evidence

        evidence += collect_served_evidence(
            plan,
            watch,
            num_tokens=num_tokens or TOKENS_OF_SERVERS,
            concurrency=concurrency or ROWS_OF_SERVERS,
        )
    return evidence


def _print(findings: "Sequence[Finding]") -> None:
    """Prints one row per finding, then the verdict."""
    from specbench.cli.console import WIDTH, open_console, plain_table, say
    from specbench.verify.report import divergence_lines, false_alarm_note, sentences
    from specbench.words.table import Table, column

    several = len({finding.subject.engine for finding in findings}) > 1
    names = [
        column("pairing", attrgetter("subject.pairing")),
        *([column("engine", attrgetter("subject.engine"))] if several else []),
        column("method", _method),
    ]
    table = Table(
        columns=[
            *names,
            column("K", attrgetter("subject.num_speculative_tokens")),
            column("T", attrgetter("subject.temperature"), "{:g}"),
            Key(str, Doc("", label="verdict"), lambda finding: finding.verdict.replace("_", " ")),
            column("match", lambda f: "" if f.match_rate is None else f"{f.match_rate:.0%}"),
            column("p", lambda f: "" if f.p_value is None else f"{f.p_value:.2g}"),
            column("tokens", attrgetter("num_tokens"), "{:,}"),
        ],
        records=findings,
        num_names=len(names),
    )
    console = open_console(width=WIDTH)
    console.print(plain_table(table))
    if note := false_alarm_note(findings):
        console.print(note)
    for line in divergence_lines([f for f in findings if f.subject.engine in SERVED]):
        say(line)
    typer.echo("")
    for line in sentences(findings):
        say(line)


def _method(finding: "Finding") -> str:
    subject = finding.subject
    return f"{subject.method} (lossy)" if subject.lossy else subject.method
