"""Train a first draft head for a target, and print the YAML lines that measure it.

python -m tools.training eagle --target demo:target -o ./head --time-budget 5m
"""

import sys
from dataclasses import replace
from pathlib import Path
from textwrap import indent
from typing import Any

import typer
import yaml

from specbench.bench.hub import download_missing
from specbench.bench.this_process import prepare_device
from specbench.cli import options
from specbench.cli.adhoc_pairing import find_target
from specbench.cli.help import GroupedCommand
from specbench.cli.preflight import require_machine, require_writable
from specbench.cli.progress import ProgressWatch
from specbench.errors import ExitCode, SpecbenchError
from specbench.files.model_spec import ModelSpec
from specbench.fit.candidates import plain_name
from specbench.fit.pairings_file import model_entry, relative_path
from specbench.inputs.config import load_pairings
from specbench.inputs.pairing import Target
from specbench.models import library_output
from specbench.settings import MachineSettings
from specbench.settings.groups import PairingsFile
from specbench.settings.words import DTYPES, one_of
from tools.training.settings import RECIPES, TrainOptions, TrainSettings
from tools.training.train_head import train_head


def train(
    call: TrainOptions,
    machine: MachineSettings,
    as_json: options.AsJson = False,
    pairings_file: PairingsFile = None,
) -> None:
    """Train a first draft head for a target.

    It is trained on the target's answers, then measured.
    """
    call = replace(call, method=one_of("METHOD", call.method, *RECIPES))
    if machine.dtype is not None:
        one_of("--dtype", machine.dtype, *DTYPES[:3])
    spec = find_target(call.target, pairings_file)[0].model
    require_machine(machine)
    require_writable(call.out, "--output")

    last_words = (
        "interrupted; answers and every hundredth step are kept. Resume with the same command "
        "plus --resume"
    )
    with ProgressWatch(lambda _: last_words) as watch:
        watch.stage("starting")
        device = prepare_device(machine)
        settings = TrainSettings(**vars(call), spec=spec, dtype=machine.dtype)
        download_missing([spec], watch.warn)
        card = train_head(settings, device, ("tools.training", *sys.argv[1:]), watch)
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
    method: str, head: Path, word: str, target: ModelSpec, pairings_file: Path | None
) -> str:
    """The entry for the pairings file, with `model:` relative to the file in use.

    `word` is the target as it was typed. The entry is a drafter if the file has the target, a
    target if it does not, and a whole file if the file does not exist.
    """
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


def _target_of(file: Path, word: str, spec: ModelSpec) -> Target | None:
    try:
        targets = load_pairings(file).targets
    except SpecbenchError:
        return None
    same = (t for t in targets if t.name == word or t.model.place == spec.place)
    return next(same, None)


def _lines(entry: dict[str, Any], depth: int) -> str:
    return indent(yaml.safe_dump(entry, sort_keys=False, width=1000).rstrip(), " " * depth)


app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
app.command(cls=GroupedCommand)(options.with_option_per_field(train))


def main() -> None:
    """The entry point; an error of the user has exit code 2."""
    library_output.silence()
    try:
        app(prog_name="python -m tools.training")
    except SpecbenchError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(ExitCode.USER_ERROR)


if __name__ == "__main__":
    main()
