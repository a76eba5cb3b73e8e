"""`specbench train`: a first draft head for a target, and the YAML lines that measure it."""

import sys
from dataclasses import replace
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Any

import typer

from specbench.cli import options
from specbench.cli.adhoc_pairing import find_target
from specbench.cli.preflight import require_machine, require_writable
from specbench.settings import MachineSettings
from specbench.settings.groups import PairingsFile
from specbench.settings.words import DTYPES, one_of
from specbench.training.settings import TrainOptions, TrainSettings

if TYPE_CHECKING:
    from specbench.files.model_spec import ModelSpec
    from specbench.inputs.pairing import Target


def train(
    call: TrainOptions,
    machine: MachineSettings,
    as_json: options.AsJson = False,
    pairings_file: PairingsFile = None,
) -> None:
    """Train a first draft head for a target.

    It is trained on the target's answers, then measured.
    """
    from specbench.methods import all_methods

    trainable = [m.name for m in all_methods() if m.head and m.head.recipe]
    call = replace(call, method=one_of("METHOD", call.method, *trainable))
    if machine.dtype is not None:
        one_of("--dtype", machine.dtype, *DTYPES[:3])
    spec = find_target(call.target, pairings_file)[0].model
    require_machine(machine)
    require_writable(call.out, "--output")

    from specbench.cli.progress import ProgressWatch

    last_words = (
        "interrupted; answers and every hundredth step are kept. Resume with the same command "
        "plus --resume"
    )
    with ProgressWatch(lambda _: last_words) as watch:
        watch.stage("starting")
        from specbench.bench.hub import download_missing
        from specbench.bench.this_process import prepare_device
        from specbench.training.train_head import train_head

        device = prepare_device(machine)
        settings = TrainSettings(**vars(call), spec=spec, dtype=machine.dtype)
        download_missing([spec], watch.warn)
        card = train_head(settings, device, tuple(sys.argv), watch)
    if as_json:
        options.print_json(card)
    else:
        _print(card, call.out)
        typer.echo("")
        typer.echo(pairing_entry(call.method, call.out, call.target, spec, pairings_file))


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

    `word` is the target as it was typed. The entry is a drafter if the file has the target, a
    target if it does not, and a whole file if the file does not exist.
    """
    from specbench.fit.candidates import plain_name
    from specbench.fit.pairings_file import model_entry, relative_path

    file = pairings_file or Path(FILE)
    drafter = {head.name: {"method": method, "model": relative_path(head, file.parent)}}
    known = _target_of(file, word, target) if file.exists() else None
    if known is not None:
        return f"To measure it, add under `drafters:` of {known.name} in {file}\n" + _lines(
            drafter, 6
        )
    entry = {plain_name(word): {**model_entry(target, file.parent), "drafters": drafter}}
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


def _lines(entry: dict[str, Any], depth: int) -> str:
    import yaml

    return indent(yaml.safe_dump(entry, sort_keys=False, width=1000).rstrip(), " " * depth)
