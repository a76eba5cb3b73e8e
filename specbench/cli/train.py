"""`specbench train`: a first draft head for a target, and the YAML lines that measure it."""

import json
import sys
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specbench.cli import options
from specbench.cli.preflight import require_machine, require_writable
from specbench.settings import MachineSettings
from specbench.settings.groups import PairingsFile, PromptField, Seed
from specbench.settings.words import MAX_CONCURRENCY, one_of, parse_seconds, parse_temperatures

if TYPE_CHECKING:
    from specbench.files.model_spec import ModelSpec
    from specbench.inputs.pairing import Target


DTYPES = ("float32", "bfloat16", "float16")

_Method = Annotated[
    str, typer.Argument(help="Method whose head is trained, such as eagle3.", metavar="METHOD")
]
_Target = Annotated[
    str,
    typer.Option(help="Target in pairings.yaml, hub id, folder or demo:target.", metavar="MODEL"),
]
_Output = Annotated[
    Path,
    typer.Option(
        "--output",
        "-o",
        help="Folder for the head; name it as `model:` in a pairing.",
        metavar="DIR",
    ),
]
_Prompts = Annotated[
    list[str] | None,
    typer.Option(
        "--workload",
        "-w",
        help="Workloads or files of prompts; may be repeated.",
        show_default="its corpus for demo:target, else all shipped workloads",
    ),
]
_Texts = Annotated[
    Path | None,
    typer.Option(
        help=("File of the target's answers, which several heads can share."), show_default=False
    ),
]
_NumTexts = Annotated[int, typer.Option(min=20, max=10**7, help="Number of answers to train on.")]
_Temperature = Annotated[
    str, typer.Option(help="Temperatures of the answers, mixed; 0 is greedy.", metavar="N")
]
_Tokens = Annotated[int, typer.Option(min=2, max=131072, help="Maximum tokens per answer.")]
_Steps = Annotated[int, typer.Option(min=1, max=10**7, help="Number of training batches.")]
_Batch = Annotated[int, typer.Option(min=32, max=10**7, help="Approximate tokens per batch.")]
_Heads = Annotated[int, typer.Option(min=1, max=16, help="Number of Medusa heads.")]
_Layers = Annotated[int, typer.Option(min=1, max=8, help="Number of MTP layers.")]
_Rows = Annotated[
    int, typer.Option(min=1, max=MAX_CONCURRENCY, help="Answers decoded at the same time.")
]
_Budget = Annotated[
    str | None,
    typer.Option(
        "--time-budget",
        help=("Time to spend, such as 5m; reduces the steps."),
        show_default=False,
        metavar="DURATION",
    ),
]
_Resume = Annotated[bool, typer.Option("--resume", help="Resume the training in --output.")]


def train(
    method: _Method,
    target: _Target,
    output: _Output,
    prompts: _Prompts = None,
    prompt_field: PromptField = None,
    texts: _Texts = None,
    num_texts: _NumTexts = 2000,
    temperature: _Temperature = "0,0.7",
    max_new_tokens: _Tokens = 192,
    steps: _Steps = 800,
    tokens_per_batch: _Batch = 2048,
    num_heads: _Heads = 4,
    mtp_layers: _Layers = 1,
    rows: _Rows = 32,
    *,
    machine: MachineSettings,
    seed: Seed = 0,
    budget: _Budget = None,
    resume: _Resume = False,
    as_json: options.AsJson = False,
    pairings_file: PairingsFile = None,
) -> None:
    """Train a first draft head for a target.

    It is trained on the target's answers, then measured.
    """
    from specbench.methods import all_methods

    one_of("METHOD", method, *(m.name for m in all_methods() if m.head and m.head.recipe))
    if machine.dtype is not None:
        one_of("--dtype", machine.dtype, *DTYPES)
    temperatures = parse_temperatures(temperature)
    budget_s = parse_seconds(budget) if budget is not None else None
    spec = _spec(target, pairings_file)
    require_machine(machine)
    require_writable(output, "--output")

    from specbench.cli.progress import ProgressWatch

    with ProgressWatch() as watch:
        watch.stage("starting")
        import torch

        from specbench.bench.hub import download_missing
        from specbench.bench.this_process import idle_threads
        from specbench.probes.device import find_device
        from specbench.training.settings import TrainSettings
        from specbench.training.train_head import train_head

        torch.set_num_threads(machine.threads or idle_threads())
        settings = TrainSettings(
            method=method,
            target=spec,
            out=output,
            prompts=tuple(name.strip() for item in prompts or () for name in item.split(",")),
            prompt_field=prompt_field,
            texts=texts,
            num_texts=num_texts,
            temperatures=temperatures,
            max_new_tokens=max_new_tokens,
            steps=steps,
            tokens_per_batch=tokens_per_batch,
            num_heads=num_heads,
            mtp_layers=mtp_layers,
            rows=rows,
            dtype=machine.dtype,
            seed=seed,
            budget_s=budget_s,
            resume=resume,
        )
        try:
            download_missing([spec], watch.warn)
            card = train_head(settings, find_device(machine.device), tuple(sys.argv), watch)
        except KeyboardInterrupt:
            watch.close()
            typer.echo(
                "interrupted; answers and every hundredth step are kept. Resume with the same "
                "command plus --resume",
                err=True,
            )
            raise typer.Exit(watch.interrupted) from None
    if as_json:
        typer.echo(json.dumps(card, indent=2))
    else:
        _print(card, output)
        typer.echo("")
        typer.echo(pairing_entry(method, output, target, spec, pairings_file))


def _spec(target: str, pairings_file: Path | None) -> "ModelSpec":
    """The model that the word names if it has a colon or slash, else the target of the file."""
    from specbench.inputs.config import load_pairings
    from specbench.inputs.model_spec import model_spec

    if ":" in target or "/" in target:  # the file may name the head that is yet to be trained
        return model_spec(target)
    return load_pairings(pairings_file).target(target).model


def _print(card: dict[str, Any], output: Path) -> None:
    """Print a line per position, then the path of the head."""
    held_out = card["held_out"]
    typer.echo("position  accepted with all before it (held-out prompts, greedy chain)")
    for position, share in enumerate(held_out["acceptance_per_position"], 1):
        typer.echo(f"{position:8}  {share:.1%}")
    typer.echo(
        f"\n{held_out['mean_length_of_the_chain']:.2f} tokens per round with such a chain; "
        f"{card['head']['parameters']:,} parameters in {output}"
    )


FILE = "pairings.yaml"


def pairing_entry(
    method: str, head: Path, word: str, target: "ModelSpec", pairings_file: Path | None
) -> str:
    """The entry for the pairings file, with `model:` relative to the file in use.

    `word` is the target as the command line named it. The entry is a drafter if the file has the
    target, a target if it has not, and a whole file if there is none.
    """
    from specbench.fit.pairings_file import relative_path

    file = pairings_file or Path(FILE)
    drafter = {head.name: {"method": method, "model": relative_path(head, file.parent)}}
    known = _target_of(file, word, target) if file.exists() else None
    if known is not None:
        return f"To measure it, add under `drafters:` of {known.name} in {file}\n" + _lines(
            drafter, 6
        )
    name = word if not set(word) & set(":/") else word.strip("/").replace(":", "/").split("/")[-1]
    model = target.source if target.folder is None else _as_written(target, file)
    entry = {name: {"model": model, "drafters": drafter}}
    if file.exists():
        return f"To measure it, add under `targets:` in {file}\n" + _lines(entry, 2)
    return f"To measure it, write this to {file}\n" + _lines({"targets": entry}, 0)


def _target_of(file: Path, word: str, spec: "ModelSpec") -> "Target | None":
    from specbench.errors import SpecbenchError
    from specbench.inputs.config import load_pairings

    try:
        targets = load_pairings(file).targets
    except SpecbenchError:
        return None
    same = (t for t in targets if t.name == word or t.model.place == spec.place)
    return next(same, None)


def _as_written(target: "ModelSpec", file: Path) -> str:
    from specbench.fit.pairings_file import relative_path

    is_name = target.source.startswith(("demo:", "shape:"))
    return (
        target.source
        if is_name or target.folder is None
        else relative_path(target.folder, file.parent)
    )


def _lines(entry: dict[str, Any], depth: int) -> str:
    import yaml

    return indent(yaml.safe_dump(entry, sort_keys=False, width=1000).rstrip(), " " * depth)
