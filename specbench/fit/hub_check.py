"""What a pairings file says of models against what the hub says, and a copy that says both."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from specbench.errors import UsageError
from specbench.files.hub_facts import HubFacts
from specbench.files.model_spec import ModelSpec
from specbench.fit.gpus import GIB
from specbench.inputs.pairing import Pairings
from specbench.whole_file import write_new

TOLERANCE = 0.05  # of weights: files also hold MTP layers, which transformers leaves there

_MODEL = re.compile(r"(?P<indent> +)model: +[\"']?(?P<source>[^\s\"'#]+)")


def hub_models(pairings: Pairings) -> tuple[ModelSpec, ...]:
    """Every model of the file that is on the hub, once for each revision."""
    specs = [spec for pairing in pairings.all for spec in pairing.models if spec.folder is None]
    return tuple({(spec.source, spec.revision): spec for spec in specs}.values())


def differences(pairings: Pairings, facts: Mapping[str, HubFacts]) -> Iterator[str]:
    """What entries say otherwise than the hub. Quantised ones take other memory than stored."""
    for pairing in pairings.all:
        for spec in pairing.models:
            known = facts.get(spec.source)
            if known is None or spec.needs_gib is None or spec.quantization is not None:
                continue
            stored = (known.weight_bytes or 0) / GIB
            if stored and abs(spec.needs_gib - stored) > max(TOLERANCE * stored, 0.06):
                yield f"{spec.source}: needs_gib {spec.needs_gib:g}, the hub has {stored:.1f} GiB"
        origin, draft = pairing.drafter.origin, pairing.drafter.model
        licence = facts[draft.source].licence if draft and draft.source in facts else None
        if origin and origin.licence and licence and origin.licence != licence:
            yield f"{pairing.name}: licence is {origin.licence}, the hub says {licence}"


def filled(text: str, facts: Mapping[str, HubFacts]) -> str:
    """A pairings file with the revision, licence and memory that the hub tells and it does not.

    Nothing that stands there is changed, and comments stay; entries in one line ({...}) are left
    as they are.
    """
    lines = text.splitlines()
    made: list[str] = []
    for number, line in enumerate(lines):
        made.append(line)
        match = _MODEL.match(line)
        known = facts.get(match["source"]) if match else None
        if match is None or known is None:
            continue
        present = set(_siblings(lines, number, len(match["indent"])))
        told: dict[str, object] = {"revision": known.revision}
        if known.weight_bytes and "quantization" not in present:
            told["needs_gib"] = max(round(known.weight_bytes / GIB, 1), 0.1)
        if "source" in present:  # a licence is told of entries that say where they are from
            told["licence"] = known.licence
        made += [
            f"{match['indent']}{key}: {json.dumps(value)}"
            for key, value in told.items()
            if value is not None and key not in present
        ]
    return "\n".join(made) + "\n"


def _siblings(lines: Sequence[str], number: int, indent: int) -> Iterator[str]:
    """The keys of the mapping that a line belongs to."""
    start = end = number
    while start > 0 and _is_inside(lines[start - 1], indent):
        start -= 1
    while end + 1 < len(lines) and _is_inside(lines[end + 1], indent):
        end += 1
    for line in lines[start : end + 1]:
        key = re.match(rf" {{{indent}}}([\w]+):", line)
        if key:
            yield key[1]


def _is_inside(line: str, indent: int) -> bool:
    bare = line.strip()
    return not bare or bare.startswith("#") or len(line) - len(line.lstrip()) >= indent


def write_filled(file: Path, path: Path, facts: Mapping[str, HubFacts]) -> None:
    """A copy of a pairings file with what the hub tells; UsageError where it cannot be written."""
    try:
        write_new(path, filled(file.read_text(encoding="utf-8"), facts))
    except FileExistsError:
        raise UsageError(f"--write {path}: file exists; name a new one") from None
    except OSError as error:
        raise UsageError(f"--write {path}: {error.strerror}") from error
