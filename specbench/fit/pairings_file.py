"""Writes a target with chosen drafters as a pairings.yaml of its own."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from specbench.errors import UsageError
from specbench.files.model_spec import ModelSpec
from specbench.inputs.pairing import Drafter, Target
from specbench.shipped import PACKAGE
from specbench.whole_file import write_new


def write_pairings(path: Path, target: Target, drafters: Sequence[Drafter], comment: str) -> None:
    """A file that `load_pairings` reads back as these; UsageError if it is there or cannot be
    written."""
    text = pairings_text(target, drafters, path.parent)
    lines = "".join(f"# {line}\n" for line in comment.splitlines())
    try:
        write_new(path, lines + text)
    except FileExistsError:
        raise UsageError(f"--write {path}: file exists; name a new one") from None
    except OSError as error:
        raise UsageError(f"--write {path}: {error.strerror}") from error


def pairings_text(target: Target, drafters: Sequence[Drafter], folder: Path) -> str:
    """The YAML of a file in that folder, from where folders of models are named."""
    entry: dict[str, Any] = {
        **_model(target.model, folder),
        **({"workloads": _workloads(target.workloads, folder)} if target.workloads else {}),
        "drafters": {drafter.name: _drafter(drafter, folder) for drafter in drafters},
    }
    return yaml.safe_dump(
        {"default": target.name, "targets": {target.name: entry}},
        sort_keys=False,
        default_flow_style=False,
        allow_unicode=True,
        width=1000,
    )


def beside(folder: Path, own: Path) -> str:
    """A folder of models as a file in the folder `own` may write it."""
    path = Path(os.path.relpath(folder.resolve(), own.resolve())).as_posix()
    return path if path.startswith("..") else f"./{path}"


def _workloads(workloads: Path, folder: Path) -> str:
    return "demo" if workloads == PACKAGE / "demo" / "workloads" else beside(workloads, folder)


def _drafter(drafter: Drafter, folder: Path) -> dict[str, Any]:
    entry: dict[str, Any] = {"method": drafter.method}
    if drafter.model is not None:
        entry |= _model(drafter.model, folder)
    if drafter.parameters:
        entry["parameters"] = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in drafter.parameters.items()
        }
    if drafter.num_speculative_tokens is not None:
        entry["num_speculative_tokens"] = drafter.num_speculative_tokens
    if drafter.lossy is not None:
        entry["lossy"] = {"rule": drafter.lossy.name, **drafter.lossy.parameters}
    return entry


def _model(spec: ModelSpec, folder: Path) -> Mapping[str, Any]:
    entry: dict[str, Any] = {"model": spec.source}
    if spec.folder is not None and not spec.source.startswith(("demo:", "shape:")):
        entry["model"] = beside(spec.folder, folder)
    given = {
        "revision": spec.revision,
        "dtype": None if spec.dtype == "auto" else spec.dtype,
        "device_map": spec.device_map,
        "quantization": spec.quantization,
        "trust_remote_code": spec.trust_remote_code or None,
        "needs_gib": spec.needs_gib,
        "vocab_size": spec.vocab_size,
    }
    return entry | {name: value for name, value in given.items() if value is not None}
