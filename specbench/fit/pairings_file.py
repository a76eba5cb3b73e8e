"""Writes pairings files: a target with chosen drafters, or a copy with facts from the hub."""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from specbench.errors import UsageError
from specbench.files.hub_facts import HubFacts
from specbench.files.model_spec import ModelSpec
from specbench.fit.gpus import GIB
from specbench.inputs.pairing import DrafterSpec, Pairings, Target
from specbench.shipped import DEMO_WORKLOADS
from specbench.whole_file import write_errors_named, write_new


def write_pairings(
    path: Path, target: Target, drafters: Sequence[DrafterSpec], comment: str
) -> None:
    """Write a file from which `load_pairings` reads these; UsageError if it already exists,
    StoreError if it cannot be written."""
    text = pairings_text(target, drafters, path.parent)
    lines = "".join(f"# {line}\n" for line in comment.splitlines())
    _write(path, lines + text)


def pairings_text(target: Target, drafters: Sequence[DrafterSpec], folder: Path) -> str:
    """The YAML of a file in `folder`; paths of model folders are relative to it."""
    entry: dict[str, Any] = {
        **model_entry(target.model, folder),
        **({"workloads": _workloads(target.workloads, folder)} if target.workloads else {}),
        "drafters": {d.name: _drafter(d, target.model, folder) for d in drafters},
    }
    return yaml.safe_dump(
        {"default": target.name, "targets": {target.name: entry}},
        sort_keys=False,
        default_flow_style=False,
        allow_unicode=True,
        width=1000,
    )


def relative_path(folder: Path, base: Path) -> str:
    """The path of a model's folder, relative to `base`, for a file in `base`."""
    path = Path(os.path.relpath(folder.resolve(), base.resolve())).as_posix()
    return path if path.startswith("..") else f"./{path}"


def _workloads(workloads: Path, folder: Path) -> str:
    return "demo" if workloads == DEMO_WORKLOADS else relative_path(workloads, folder)


def _drafter(drafter: DrafterSpec, target: ModelSpec, folder: Path) -> dict[str, Any]:
    entry: dict[str, Any] = {"method": drafter.method}
    if drafter.model is not None:
        entry |= model_entry(drafter.model, folder, target.dtype)
    if drafter.parameters:
        entry["parameters"] = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in drafter.parameters.items()
        }
    if drafter.num_speculative_tokens is not None:
        entry["num_speculative_tokens"] = drafter.num_speculative_tokens
    if drafter.p_min is not None:
        entry["p_min"] = drafter.p_min
    if drafter.lossy is not None:
        entry["lossy"] = {"rule": drafter.lossy.name, **drafter.lossy.parameters}
    return entry


def model_entry(spec: ModelSpec, folder: Path, usual_dtype: str = "auto") -> Mapping[str, Any]:
    """The keys of a model for a file in `folder`; `usual_dtype` is its dtype without that key."""
    entry: dict[str, Any] = {"model": spec.source}
    if spec.folder is not None and not spec.source.startswith(("demo:", "shape:")):
        entry["model"] = relative_path(spec.folder, folder)
    given = {
        "revision": spec.revision,
        "dtype": None if spec.dtype == usual_dtype else spec.dtype,
        "device_map": spec.device_map,
        "quantization": spec.quantization,
        "trust_remote_code": spec.trust_remote_code or None,
        "weights_gib": spec.weights_gib,
        "vocab_size": spec.vocab_size,
    }
    return entry | {name: value for name, value in given.items() if value is not None}


TOLERANCE = 0.05  # of weights: files also have MTP layers, which transformers does not load

_MODEL = re.compile(r"(?P<indent> +)model: +[\"']?(?P<source>[^\s\"'#]+)")


def hub_models(pairings: Pairings) -> tuple[ModelSpec, ...]:
    """Every hub model in the file, once per revision."""
    specs = [spec for pairing in pairings.all for spec in pairing.models if spec.folder is None]
    return tuple({(spec.source, spec.revision): spec for spec in specs}.values())


HubFactsOf = Mapping[tuple[str, str | None], HubFacts]  # by source and requested revision


def differences(pairings: Pairings, facts: HubFactsOf) -> Iterator[str]:
    """Entries that differ from the hub. Models that are quantized when loaded are not compared."""
    for pairing in pairings.all:
        for spec in pairing.models:
            known = facts.get((spec.source, spec.revision))
            if known is None or spec.weights_gib is None or spec.quantization is not None:
                continue
            stored = (known.weight_bytes or 0) / GIB
            if stored and abs(spec.weights_gib - stored) > max(TOLERANCE * stored, 0.06):
                stated = f"weights_gib {spec.weights_gib:g}"
                yield f"{spec.source}: {stated}, the hub has {stored:.1f} GiB"
        origin, draft = pairing.drafter.origin, pairing.drafter.model
        of_draft = facts.get((draft.source, draft.revision)) if draft else None
        license = of_draft.license if of_draft else None
        if origin and origin.license and license and origin.license != license:
            yield f"{pairing.name}: license is {origin.license}, the hub says {license}"


def filled(text: str, facts: HubFactsOf) -> str:
    """A pairings file, with missing revisions, licenses and memory sizes added from the hub.

    Existing entries and comments are not changed, and neither are entries on one line ({...}).
    """
    lines = text.splitlines()
    made: list[str] = []
    for number, line in enumerate(lines):
        made.append(line)
        match = _MODEL.match(line)
        if match is None:
            continue
        present = dict(_siblings(lines, number, len(match["indent"])))
        known = facts.get((match["source"], present.get("revision") or None))
        if known is None:
            continue
        entry: dict[str, object] = {"revision": known.revision}
        if known.weight_bytes and "quantization" not in present:
            entry["weights_gib"] = max(round(known.weight_bytes / GIB, 1), 0.1)
        if "source" in present:  # only entries with a source have a license
            entry["license"] = known.license
        made += [
            f"{match['indent']}{key}: {json.dumps(value)}"
            for key, value in entry.items()
            if value is not None and key not in present
        ]
    return "\n".join(made) + "\n"


def _siblings(lines: Sequence[str], number: int, indent: int) -> Iterator[tuple[str, str]]:
    """The keys of the mapping that the line belongs to, with their values on the same line."""
    start = end = number
    while start > 0 and _is_inside(lines[start - 1], indent):
        start -= 1
    while end + 1 < len(lines) and _is_inside(lines[end + 1], indent):
        end += 1
    for line in lines[start : end + 1]:
        key = re.match(rf" {{{indent}}}(\w+): *[\"']?([^\s\"'#]*)", line)
        if key:
            yield key[1], key[2]


def _is_inside(line: str, indent: int) -> bool:
    bare = line.strip()
    return not bare or bare.startswith("#") or len(line) - len(line.lstrip()) >= indent


def write_filled(file: Path, path: Path, facts: HubFactsOf) -> None:
    """Write a copy of a pairings file with facts from the hub. UsageError, StoreError."""
    _write(path, filled(file.read_text(encoding="utf-8"), facts))


def require_new(path: Path | None) -> None:
    """UsageError if `write_new` would refuse the file of --output, also for a broken link."""
    if path is not None and os.path.lexists(path):
        raise UsageError(f"--output {path}: file exists; name a new one")


def _write(path: Path, text: str) -> None:
    require_new(path)
    with write_errors_named(path):
        write_new(path, text)
