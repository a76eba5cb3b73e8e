"""`specbench check`: the gate."""

import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specbench.cli import options
from specbench.errors import ExitCode, SpecbenchError, StoreError, UsageError
from specbench.gate.tolerances import Tolerance, default_tolerances, defaults_in_words
from specbench.settings.words import nearest
from specbench.untrusted import plain
from specbench.whole_file import read_errors_named, write_errors_named

if TYPE_CHECKING:
    from specbench.gate.baseline import Snapshot
    from specbench.gate.check import Gate
    from specbench.report.blocks import ReportPart

SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"  # contains the path of a CI job's summary


def check(
    baseline: Annotated[
        str, typer.Argument(help="File of `specbench baseline`, or a run: id, folder or latest.")
    ],
    candidate: Annotated[
        str, typer.Argument(help="Run to judge, or a baseline file pooling several runs.")
    ],
    fail_on: Annotated[
        str | None,
        typer.Option(
            help="Metrics and the loss tolerated in each: decode_speedup:5%,round_s:0.1.",
            show_default=defaults_in_words(),
            metavar="METRICS",
        ),
    ] = None,
    allow_different: options.AllowDifferent = None,
    junit: Annotated[
        Path | None, typer.Option(help="Write JUnit XML to this file.", show_default=False)
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option(help="Write Markdown to this file.", show_default=False)
    ] = None,
    as_json: options.AsJson = False,
    runs_dir: options.RunsDir = options.RUNS_DIR,
) -> None:
    """Fail if CANDIDATE is worse than BASELINE.

    Exit code 1 if worse beyond noise and tolerance, 3 if undecided.
    """
    from specbench.cli.answer import print_part
    from specbench.report.gate import (
        gate_json,
        gate_junit,
        gate_report,
        incomparable_json,
        incomparable_junit,
        incomparable_report,
    )

    try:
        gate = _run_gate(baseline, candidate, fail_on, allow_different, runs_dir)
    except SpecbenchError as error:
        reason = str(error)
        _print_errors(
            _write_files(junit, incomparable_junit(reason), markdown, incomparable_report(reason))
        )
        if as_json:
            options.print_json(incomparable_json(reason))
        raise
    report = gate_report(gate)
    # Written before anything is printed, since `| head` may close the pipe.
    write_errors = _write_files(junit, gate_junit(gate), markdown, report)
    if as_json:
        options.print_json(gate_json(gate))
    else:
        print_part(report)
    _print_errors(write_errors)
    raise typer.Exit(exit_code(gate) or (ExitCode.USER_ERROR if write_errors else 0))


def _run_gate(
    baseline: str, candidate: str, fail_on: str | None, allow_different: str | None, root: Path
) -> "Gate":
    from specbench.gate.attribution import EVIDENCE
    from specbench.gate.check import check as judge
    from specbench.gate.check import metric_of
    from specbench.gate.comparable import WORDS

    tolerances = None if fail_on is None else parse_fail_on(fail_on)
    applied = tolerances or default_tolerances("")
    names = {*EVIDENCE, *(metric_of(tolerance).name for tolerance in applied)}
    allowed = options.allowed_words(allow_different, WORDS)
    return judge(
        _read_side(baseline, root, names),
        _read_side(candidate, root, names),
        tolerances,
        allowed,
    )


def _read_side(name: str, root: Path, names: Collection[str]) -> "Snapshot":
    """A file of `specbench baseline`, or a stored run; StoreError if it is neither."""
    from specbench.cli.baseline import read_run
    from specbench.gate.baseline import read_baseline

    path = Path(name)
    with read_errors_named(path, StoreError):
        if path.is_file() or path.suffix == ".json":
            return read_baseline(path)
    try:
        return read_run(name, root, names)
    except StoreError:
        # A name with an ending or a folder, like `old/base.txt`: ids and most folders have none.
        is_of_a_file = bool(path.suffix) or "/" in name
        if not is_of_a_file or path.exists():
            raise
    near = nearest(path.name, [file.name for file in path.parent.glob("*.json")])
    raise StoreError(f"{name}: no such file{near}; a run is named by its id or its folder")


def exit_code(gate: "Gate") -> int:
    """The exit code of the most severe verdict: 0 pass, 1 regression, 3 inconclusive, 4 missing."""
    from specbench.gate.judging import GateVerdict

    codes = {
        GateVerdict.PASS: ExitCode.GOOD,
        GateVerdict.REGRESSION: ExitCode.FAILED,
        GateVerdict.INCONCLUSIVE: ExitCode.INCONCLUSIVE,
        GateVerdict.MISSING: ExitCode.INCOMPLETE,
    }
    return codes[gate.verdict]


def parse_fail_on(text: str) -> tuple[Tolerance, ...]:
    """The tolerances of `mean_acceptance_length:2%,decode_speedup:0.05`; each metric once."""
    by_metric: dict[str, Tolerance] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*([A-Za-z0-9_]+(?:\[\d+\])?)\s*:\s*(\d+(?:\.\d+)?)(%?)\s*", part)
        share = float(match[2]) / (100 if match[3] else 1) if match else 1.0
        if match is None or not share < 1:
            raise UsageError(
                f"--fail-on {part.strip()!r}: expected METRIC:SHARE such as decode_speedup:5% or "
                "mean_acceptance_length:0.02, below 100%"
            )
        if match[1] in by_metric:
            raise UsageError(f"--fail-on names {match[1]} twice")
        by_metric[match[1]] = Tolerance(metric=match[1], share=share)
    return tuple(by_metric.values())


def _write_files(
    junit: Path | None, junit_text: str, markdown: Path | None, part: "ReportPart"
) -> list[str]:
    """Write the requested files and the summary of a CI job; return an error per failed file."""
    from specbench.report.markdown import part_to_markdown

    markdown_text = part_to_markdown(part)
    files = [(junit, junit_text, "w"), (markdown, markdown_text, "w")]
    if summary := os.environ.get(SUMMARY_VARIABLE):
        files.append((Path(summary), markdown_text, "a"))
    errors = []
    for path, text, mode in files:
        if path is None:
            continue
        try:
            with write_errors_named(path), path.open(mode, encoding="utf-8") as file:
                file.write(plain(text))  # a reason may contain a file name with control characters
        except StoreError as error:
            errors.append(str(error))
    return errors


def _print_errors(errors: list[str]) -> None:
    for error in errors:
        typer.echo(f"error: {error}", err=True)
