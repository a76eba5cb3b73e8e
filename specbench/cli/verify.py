"""`specbench verify`: is a pairing's output the target's own?"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from specbench.cli import options
from specbench.cli.measure import read_methods, read_settings
from specbench.errors import UsageError
from specbench.exit_code import ExitCode

if TYPE_CHECKING:
    from specbench.verify.judge import Finding


_Ks = Annotated[
    str | None,
    typer.Option(
        "-k",
        "--num-speculative-tokens",
        help="K: 4, 1..8 or 1,2,4.",
        show_default="the pairing's, else 4",
    ),
]
_Prompts = Annotated[
    int | None, typer.Option(min=1, help="Prompts per workload.", show_default="10")
]
_Rows = Annotated[
    int, typer.Option(min=1, max=1024, help="Concurrent requests in the built-in decoder.")
]
_Tokens = Annotated[
    int,
    typer.Option(min=100, max=10**8, help="Tokens to sample for each K and temperature above 0."),
]


@dataclass(frozen=True, kw_only=True)
class Examined:
    """What `verify` lets a user say of what `run` does."""

    pairings: options.PairingNames = None
    workload: options.Workloads = None
    method: options.Methods = None
    num_speculative_tokens: _Ks = None
    temperature: options.Temperature = "0,0.7"
    top_k: options.TopK = 0
    top_p: options.TopP = 1.0
    max_new_tokens: options.MaxNewTokens = None
    prompts: _Prompts = None
    engine: options.Engines = "builtin"
    forward: options.Forward = "auto"
    graph: options.Graph = "auto"
    compile_forward: options.Compile = False
    device: options.Device = "auto"
    dtype: options.Dtype = None
    threads: options.Threads = None
    seed: options.Seed = 0
    pairings_file: options.PairingsFile = None


@options.spread
def verify(
    asked: Examined,
    tokens: _Tokens = 16384,
    rows: _Rows = 16,
    as_json: options.AsJson = False,
) -> None:
    """Test that pairings reproduce the target's own output: exit 1 if not, 3 if undecided."""
    settings = read_settings("run", options.Asked(**vars(asked)))
    if settings.adaptive:
        raise UsageError(
            "-k auto: verify tests fixed K, and auto only picks among them; name them, as in "
            "-k 1..8"
        )

    from specbench.cli.progress import ProgressWatch
    from specbench.inputs.config import load_pairings

    file = load_pairings(asked.pairings_file)
    chosen = file.select(settings.pairings, read_methods(asked.method))
    with ProgressWatch() as watch:
        watch.stage("starting")
        from specbench.bench.verification import collect_evidence

        try:
            evidence = collect_evidence(settings, chosen, watch, num_tokens=tokens, num_rows=rows)
        except KeyboardInterrupt:
            watch.close()
            typer.echo("interrupted: evidence is judged as a whole, so nothing was kept", err=True)
            raise typer.Exit(ExitCode.INTERRUPTED) from None
    from specbench.verify.answer import document, exit_code, sentences
    from specbench.verify.judge import judge

    findings = judge(evidence)
    try:
        if as_json:
            typer.echo(json.dumps(document(findings), indent=2, allow_nan=False))
        else:
            _print(findings)
    except OSError as error:
        if not isinstance(error, BrokenPipeError):  # a full disk: what took so long is not lost
            for line in sentences(findings):
                typer.echo(line, err=True)
        raise
    raise typer.Exit(exit_code(findings))


def _print(findings: "Sequence[Finding]") -> None:
    """A row a finding, then what they add up to."""
    from rich.table import Table

    from specbench.cli.console import WIDTH, open_console
    from specbench.verify.answer import false_alarm_note, sentences

    several = len({finding.subject.engine for finding in findings}) > 1
    table = Table(box=None, pad_edge=False)
    for header in ("pairing", *(["engine"] if several else []), "method"):
        table.add_column(header, overflow="fold")
    for header in ("K", "T", "verdict", "match", "p", "tokens"):
        table.add_column(header, no_wrap=True, justify="left" if header == "verdict" else "right")
    for finding in findings:
        who = finding.subject
        table.add_row(
            who.pairing,
            *([who.engine] if several else []),
            f"{who.method} (lossy)" if who.lossy else who.method,
            str(who.num_speculative_tokens),
            f"{who.temperature:g}",
            finding.verdict,
            "" if finding.match_rate is None else f"{finding.match_rate:.0%}",
            "" if finding.p_value is None else f"{finding.p_value:.2g}",
            f"{finding.num_tokens:,}",
        )
    console = open_console(width=WIDTH)
    console.print(table)
    if note := false_alarm_note(findings):
        console.print(note)
    typer.echo("")
    for line in sentences(findings):
        typer.echo(line)
