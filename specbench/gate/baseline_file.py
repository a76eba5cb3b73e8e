"""`baseline.json`: a baseline to be committed next to the code that it guards."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from specbench.errors import StoreError
from specbench.gate.baseline import Snapshot
from specbench.json_text import parse_json
from specbench.whole_file import write_whole

SCHEMA_VERSION = 1  # of the file
KIND = "specbench baseline"


@dataclass(frozen=True, kw_only=True, slots=True)
class _BaselineFile:
    kind: str
    schema_version: int
    baseline: Snapshot


# pydantic hands a config to a standard dataclass only through an enclosing type.
_FILE: TypeAdapter[_BaselineFile | None] = TypeAdapter(
    _BaselineFile | None, config=ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
)
_FLAT_LIST = re.compile(r"\[[^\[\]{}]*\]")


def write_baseline(baseline: Snapshot, path: Path) -> None:
    """Replace the file in one step; StoreError where the disk refuses."""
    document = _BaselineFile(kind=KIND, schema_version=SCHEMA_VERSION, baseline=baseline)
    text = json.dumps(_FILE.dump_python(document, mode="json", exclude_none=True), indent=1)
    # A list of numbers is one line of a diff, not one line a prompt.
    text = _FLAT_LIST.sub(lambda match: re.sub(r"\s*\n\s*", " ", match[0]), text)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text + "\n")
    except OSError as error:
        raise StoreError(f"{error.filename or path}: {error.strerror}") from error


def read_baseline(path: Path) -> Snapshot:
    """The baseline of a file; StoreError if it is absent, damaged, or of a newer schema."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(
            f"{path}: {getattr(error, 'strerror', None) or 'is not a text file'}"
        ) from error
    try:
        document: Any = parse_json(text)
    except ValueError as error:
        raise StoreError(f"{path}: damaged: {error}") from error
    if not isinstance(document, dict) or document.get("kind") != KIND:
        raise StoreError(f"{path}: not a baseline; `specbench baseline RUN...` writes one")
    version = document.get("schema_version")
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise StoreError(f"{path}: schema version {version}; update specbench to read it")
    try:
        found = _FILE.validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise StoreError(f"{path}: damaged: {where}: {first['msg']}") from error
    assert found is not None, "expected an object, not null"
    return found.baseline
