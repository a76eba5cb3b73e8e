"""`specbench list pairings --fits` and `--check-hub`: which of them suit, and are they there?"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from specbench.errors import UsageError
from specbench.fit.gpus import GIB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specbench.inputs.pairing import Pairing, Pairings


def fitting(pairings: "Sequence[Pairing]", gpu: str | None) -> "tuple[Pairing, ...]":
    """Those whose weights fit this machine or the GPU; what was left out is told on stderr."""
    from specbench.cli.hardware import find_machine
    from specbench.fit.demand import fits
    from specbench.fit.memory_plan import DeploymentSpec

    machine = find_machine(
        DeploymentSpec(device="cpu"), "auto", gpu=gpu, gpu_memory=None, gpu_bandwidth=None
    )
    memory, device = machine.place.memory_bytes or 0, machine.place.device
    judged = [(pairing, fits(pairing, machine.place)) for pairing in pairings]
    kept = tuple(pairing for pairing, fit in judged if fit)
    num_unknown = sum(fit is None for _, fit in judged)
    num_large = len(judged) - len(kept) - num_unknown
    told = [
        f"{machine.name}, {memory / GIB:.1f} GiB: the weights of {len(kept)} pairings fit, those "
        f"of {num_large} do not, of {num_unknown} the file does not tell."
    ]
    if device == "cpu":
        told.append(
            "A CPU loads them in float32, twice the GiB shown, unless pairings.yaml gives a dtype."
        )
    if any(pairing.weights_gib is None for pairing in kept):
        told.append(">=: without the draft, whose size the file does not tell.")
    told.append("KV cache comes on top: specbench pair TARGET --dry-run counts it.")
    typer.echo("\n".join(told), err=True)
    return kept


def check_hub(pairings: "Pairings", write: Path | None) -> tuple[list[dict[str, Any]], bool]:
    """A row per model on the hub, and whether every entry is right.

    `write`: a copy of the file, with what the hub tells and the file does not. UsageError where
    the hub cannot be asked.
    """
    from specbench.files.hub_facts import hub_facts
    from specbench.fit.pairings_file import differences, hub_models, write_filled

    if write is not None and write.exists():
        raise UsageError(f"--output {write}: file exists; name a new one")
    found = [hub_facts(spec.source, spec.revision) for spec in hub_models(pairings)]
    facts = {one.source: one for one in found if one.problem is None}
    for one in found:
        if one.problem is not None:
            typer.echo(f"{one.source}: {one.problem}", err=True)
    wrong = dict.fromkeys(differences(pairings, facts))  # a target has many pairings
    for text in wrong:
        typer.echo(text, err=True)
    if write is not None:
        write_filled(pairings.path, write, facts)
        typer.echo(f"written: {write}", err=True)
    rows = [
        {
            "model": one.source,
            "revision": one.revision,
            "license": one.license,
            "gated": one.is_gated,
            "gib": None if one.weight_bytes is None else round(one.weight_bytes / GIB, 2),
            "problem": one.problem,
        }
        for one in found
    ]
    return rows, not wrong and len(facts) == len(found)
