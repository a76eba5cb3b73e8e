"""The pairings of a run in its run.json, so that a copy of the run needs no other file."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from specbench.errors import StoreError
from specbench.files.model_spec import ModelSpec
from specbench.inputs.pairing import DrafterSpec, Pairing, Pairings, Target
from specbench.records import RunRecord
from specbench.shipped import PACKAGE

_TARGETS = TypeAdapter(tuple[Target, ...])


def stored_targets(pairings: Sequence[Pairing]) -> tuple[Any, ...]:
    """The targets with their drafters as JSON; paths are absolute, or relative to the package."""
    drafters: dict[str, list[DrafterSpec]] = {}
    for pairing in pairings:
        drafters.setdefault(pairing.target.name, []).append(pairing.drafter)
    targets = {pairing.target.name: pairing.target for pairing in pairings}.values()
    stored = (
        _with_paths(replace(target, drafters=tuple(drafters[target.name])), _without_package)
        for target in targets
    )
    return tuple(_TARGETS.dump_python(tuple(stored), mode="json"))


def pairings_of(run: RunRecord) -> Pairings:
    """The pairings of a run; StoreError if they are damaged."""
    try:
        targets = _TARGETS.validate_python(run.targets)
    except ValidationError as error:
        raise StoreError(f"run {run.run_id}: run.json: targets: damaged: {error}") from error
    here = tuple(_with_paths(target, lambda path: PACKAGE / path) for target in targets)
    return Pairings(path=Path("run.json"), targets=here, default=run.settings.workload.pairings)


def _without_package(path: Path) -> Path:
    whole = path.absolute()
    return whole.relative_to(PACKAGE) if whole.is_relative_to(PACKAGE) else whole


def _with_paths(target: Target, change: Callable[[Path], Path]) -> Target:
    """The target with changed paths of folders."""

    def moved(spec: ModelSpec) -> ModelSpec:
        return replace(spec, folder=spec.folder and change(spec.folder))

    return replace(
        target,
        model=moved(target.model),
        workloads=target.workloads and change(target.workloads),
        drafters=tuple(replace(d, model=d.model and moved(d.model)) for d in target.drafters),
    )
