"""`specbench list`: pairings (also only those that fit, or compared with the hub), workloads,
methods and their parameters, metrics, families of models and runs."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specbench.cli import options
from specbench.errors import ExitCode, UsageError
from specbench.fit.gpus import GIB
from specbench.settings.groups import DEFAULT_K, PairingsFile
from specbench.settings.words import one_of
from specbench.shipped import PACKAGE
from specbench.untrusted import inert_cell

if TYPE_CHECKING:
    from specbench.inputs.pairing import DrafterSpec, Pairing, Pairings


# Columns of each kind: keys of its rows, some under another heading.
_COLUMNS = {
    "pairings": ("pairing", "method", "K=k", "GiB=weights", "note"),
    "workloads": ("workload", "for", "prompts", "tokens=max_new_tokens", "description"),
    "methods": ("method", "model", "summary"),
    "parameters": ("method", "parameter", "default", "allowed", "description"),
    "metrics": ("metric", "header", "unit", "better", "formula"),
    "families": ("family", "transformers", "state", "why"),
    "runs": ("run", "state", "blocks", "pairings", "workloads"),
}
_HUB = ("model", "revision", "GiB=gib", "license")


def list_things(
    kind: Annotated[
        str,
        typer.Argument(
            help="What to list.", metavar="|".join(_COLUMNS), autocompletion=lambda: [*_COLUMNS]
        ),
    ],
    as_json: options.AsJson = False,
    runs_dir: options.RunsDir = options.RUNS_DIR,
    pairings_file: PairingsFile = None,
    fits: Annotated[
        bool, typer.Option("--fits", help="Only pairings whose weights fit this machine.")
    ] = False,
    gpu: Annotated[
        str | None, typer.Option(help="With --fits: this GPU instead.", show_default="this machine")
    ] = None,
    check_hub: Annotated[
        bool,
        typer.Option(
            "--check-hub", help="Ask the hub for revision, license and size of each model."
        ),
    ] = False,
    write: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="With --check-hub: write a filled-in copy of the pairings file here.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """List pairings, workloads, methods, their parameters, metrics, model families or runs."""
    kind = one_of("list", kind, *_COLUMNS)
    if kind != "pairings" and (fits or check_hub or pairings_file is not None):
        raise UsageError(f"--fits, --check-hub and --config are for list pairings, not list {kind}")
    if kind != "runs" and runs_dir != options.RUNS_DIR:
        raise UsageError(f"--runs-dir is for list runs, not list {kind}")
    _require_together(fits=fits, gpu=gpu, check_hub=check_hub, write=write)
    if check_hub:
        _check_hub(pairings_file, write, as_json=as_json)
        return
    rows_of: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "pairings": partial(_pairings, pairings_file, fits=fits, gpu=gpu),
        "workloads": _workloads,
        "methods": _methods,
        "parameters": _parameters,
        "metrics": _metrics,
        "families": _families,
        "runs": partial(_runs, runs_dir),
    }
    rows = rows_of[kind]()
    if as_json:
        options.print_json(rows)
    else:
        print_rows(_COLUMNS[kind], rows)


def _require_together(*, fits: bool, gpu: str | None, check_hub: bool, write: Path | None) -> None:
    """UsageError for options of `list pairings` that would have no effect."""
    if fits and check_hub:
        raise UsageError("--check-hub looks at every pairing; leave out --fits")
    if gpu is not None and not fits:
        raise UsageError("--gpu names the GPU that pairings must fit into; add --fits")
    if write is not None and not check_hub:
        raise UsageError("--output stores the facts from the hub; add --check-hub")


def _check_hub(file: Path | None, write: Path | None, *, as_json: bool) -> None:
    from specbench.inputs.config import load_pairings

    rows, is_right = check_hub(load_pairings(file), write)
    if as_json:
        options.print_json(rows)
    else:
        short = [{**row, "revision": (row["revision"] or "")[:12] or None} for row in rows]
        print_rows(_HUB, short)
    if not is_right:
        raise typer.Exit(ExitCode.FAILED)


def _weights(pairing: "Pairing") -> str | None:
    """GiB of the weights; `>=` if the file does not state them for every model."""
    if pairing.weights_gib is not None:
        return f"{pairing.weights_gib:g}"
    return f">={pairing.least_gib:g}" if pairing.least_gib else None


def _pairings(file: Path | None, *, fits: bool, gpu: str | None) -> list[dict[str, Any]]:
    from specbench.inputs.config import load_pairings

    loaded = load_pairings(file)
    pairings = loaded.all if file else loaded.known
    pairings = fitting(pairings, gpu) if fits else pairings
    notes = {pairing.target.name: pairing.target.note for pairing in pairings}
    return [
        {
            "pairing": pairing.name,
            "method": pairing.drafter.method,
            "target": pairing.target.model.source,
            "draft": pairing.drafter.model.source if pairing.drafter.model else None,
            "num_speculative_tokens": pairing.drafter.num_speculative_tokens,
            "k": _usual_k(pairing.drafter),
            "lossy": str(pairing.drafter.lossy) if pairing.drafter.lossy else None,
            "weights_gib": pairing.weights_gib,
            "weights": _weights(pairing),
            # The first pairing of a target begins with the target's note.
            "note": f"{notes.pop(pairing.target.name, '')} {pairing.drafter.note}".strip(),
            **_origin(pairing.drafter),
        }
        for pairing in pairings
    ]


def _usual_k(drafter: "DrafterSpec") -> int:
    """The K of a run without -k, which the drafter's files may limit further."""
    from specbench.methods import find_method

    return find_method(drafter.method).only_k or drafter.num_speculative_tokens or DEFAULT_K


def _origin(drafter: "DrafterSpec") -> dict[str, str | None]:
    """The page that published the entry; all values are None for entries of the user."""
    if drafter.origin is None:
        return dict.fromkeys(("source", "checked", "license", "figure"))
    return {**asdict(drafter.origin), "checked": drafter.origin.checked.isoformat()}


def _workloads() -> list[dict[str, Any]]:
    from specbench.inputs.workloads import find_workloads, load_workload
    from specbench.shipped import DEMO_WORKLOADS

    folders = (None, DEMO_WORKLOADS)
    loaded = [load_workload(w, folder=f) for f in folders for w in find_workloads(f)]
    return [
        {
            "workload": workload.name,
            "for": "the demo pair" if workload.path.parent == DEMO_WORKLOADS else "any model",
            "prompts": len(workload.prompts),
            "turns": sum(len(prompt.turns) for prompt in workload.prompts),
            "max_new_tokens": workload.max_new_tokens,
            "license": workload.license,
            "description": workload.description,
        }
        for workload in loaded
    ]


def _methods() -> list[dict[str, Any]]:
    from specbench.methods import listed_methods

    return [
        {
            "method": method.name,
            "model": method.model,
            "summary": method.summary,
        }
        for method in listed_methods()
    ]


def _parameters() -> list[dict[str, Any]]:
    from specbench.methods import listed_methods

    return [
        {
            "method": method.name,
            "parameter": parameter.name,
            "default": parameter.default,
            "allowed": parameter.wanted,
            "description": parameter.description,
        }
        for method in listed_methods()
        for parameter in method.parameters
    ]


def _metrics() -> list[dict[str, Any]]:
    from specbench.metrics.registry import all_metrics

    return [
        {
            "metric": m.name,
            "header": m.label,
            "unit": m.unit,
            "better": m.better,
            "formula": m.formula,
        }
        for m in all_metrics().values()
    ]


def _families() -> list[dict[str, Any]]:
    """A row per family and outcome, with the versions of transformers that share it."""
    tried = json.loads((PACKAGE / "families.json").read_text(encoding="utf-8"))
    versions: dict[tuple[str, str, str], list[str]] = {}
    for version, families in tried.items():
        for family, (state, why) in families.items():
            versions.setdefault((family, state, why), []).append(version)
    return [
        {"family": family, "transformers": versions[family, state, why], "state": state, "why": why}
        for family, state, why in sorted(versions)
    ]


def _runs(runs_dir: Path) -> list[dict[str, Any]]:
    from specbench.runs import list_runs

    return [
        {
            "run": run.run_id,
            "created_at": run.created_at,
            "pairings": list(run.pairings),
            "workloads": list(run.workloads),
            "blocks": run.num_blocks,
            "state": run.state,
        }
        for run in list_runs(runs_dir)
    ]


def print_rows(columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> None:
    """A table on a terminal, with nothing cut off; elsewhere tabs between the same columns."""
    from specbench.cli.console import is_terminal, open_console, plain_table
    from specbench.words.table import text_table

    if not rows:
        typer.echo("none", err=True)
        return
    headers = [column.partition("=")[0] for column in columns]
    texts = [[_entry(row, column.rpartition("=")[2]) for column in columns] for row in rows]
    if not is_terminal():
        for line in (headers, *texts):
            typer.echo("\t".join(inert_cell(" ".join(cell.split())) for cell in line))
        return
    # The first column is for copying, so it does not wrap; the last one wraps first.
    wraps = ("allowed", "pairings", "workloads", "state", headers[-1])
    table = text_table(
        "",
        headers,
        texts,
        num_names=len(headers),
        wraps=[i for i, header in enumerate(headers) if i and header in wraps],
    )
    shown = plain_table(table)
    shown.columns[0].min_width = max(len(line[0]) for line in texts)
    open_console().print(shown)


def _entry(row: dict[str, Any], key: str) -> str:
    if key == "default":  # as in YAML
        return json.dumps(row[key]).strip('"') if row[key] != () else "none"
    if key == "model" and row[key] == "refused":
        return "none"
    text = _text(row[key])
    return f"{text} (lossy)" if key == "method" and row.get("lossy") else text


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def fitting(pairings: "Sequence[Pairing]", gpu: str | None) -> "tuple[Pairing, ...]":
    """The pairings whose weights fit this machine or the GPU; stderr counts the others."""
    from specbench.cli.hardware import find_machine
    from specbench.fit.demand import fits
    from specbench.fit.memory_plan import DeploymentSpec

    machine = find_machine(
        DeploymentSpec(device="cpu"), "auto", gpu=gpu, gpu_memory=None, gpu_bandwidth=None
    )
    memory, device = machine.setup.memory_bytes, machine.setup.device
    size = "unknown memory" if memory is None else f"{memory / GIB:.1f} GiB"
    judged = [(pairing, fits(pairing, machine.setup)) for pairing in pairings]
    kept = tuple(pairing for pairing, fit in judged if fit)
    num_unknown = sum(fit is None for _, fit in judged)
    num_large = len(judged) - len(kept) - num_unknown
    lines = [
        f"{machine.name}, {size}: the weights of {len(kept)} pairings fit, those "
        f"of {num_large} do not, and those of {num_unknown} are unknown."
    ]
    if device == "cpu":
        lines.append(
            "A CPU loads them in float32, twice the GiB shown, unless pairings.yaml gives a dtype."
        )
    if any(pairing.weights_gib is None for pairing in kept):
        lines.append(">=: without the draft model, whose size the file does not state.")
    lines.append("KV cache comes on top: specbench pair TARGET --dry-run counts it.")
    typer.echo("\n".join(lines), err=True)
    return kept


def check_hub(pairings: "Pairings", write: Path | None) -> tuple[list[dict[str, Any]], bool]:
    """A row per model on the hub, and whether every entry is right.

    `write`: a copy of the file, with facts from the hub that it does not have. UsageError if the
    hub cannot be reached.
    """
    from specbench.files.hub_facts import hub_facts
    from specbench.fit.pairings_file import differences, hub_models, require_new, write_filled

    require_new(write)
    models = [(spec.source, spec.revision) for spec in hub_models(pairings)]
    known = [hub_facts(*model) for model in models]
    facts = {model: fact for model, fact in zip(models, known, strict=True) if fact.problem is None}
    for fact in known:
        if fact.problem is not None:
            typer.echo(f"{fact.source}: {fact.problem}", err=True)
    wrong = dict.fromkeys(differences(pairings, facts))  # a target has many pairings
    for text in wrong:
        typer.echo(text, err=True)
    if write is not None:
        write_filled(pairings.path, write, facts)
        typer.echo(f"written: {write}", err=True)
    rows = [
        {
            "model": fact.source,
            "revision": fact.revision,
            "license": fact.license,
            "gated": fact.is_gated,
            "gib": None if fact.weight_bytes is None else round(fact.weight_bytes / GIB, 2),
            "problem": fact.problem,
        }
        for fact in known
    ]
    return rows, not wrong and len(facts) == len(known)
