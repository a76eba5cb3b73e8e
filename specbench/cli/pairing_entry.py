"""The lines of pairings.yaml that a freshly trained head needs, ready to be pasted."""

from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from specbench.files.model_spec import ModelSpec
    from specbench.inputs.pairing import Target

FILE = "pairings.yaml"


def pairing_entry(
    method: str, head: Path, word: str, target: "ModelSpec", pairings_file: Path | None
) -> str:
    """What to paste where, so that `model:` is right beside the file that is in use.

    `word` is the target as the command line named it. The entry is of a drafter where the file
    has the target, of a target where it has not, and a whole file where there is none.
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
    return indent(yaml.safe_dump(entry, sort_keys=False, width=1000).rstrip(), " " * depth)
