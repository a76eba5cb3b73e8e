"""What contests chose, kept in this process and in a file of the user's cache folder."""

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from specbench.records import KernelChoice
from specbench.whole_file import write_whole

if TYPE_CHECKING:
    from pydantic import TypeAdapter

_known: dict[str, KernelChoice] = {}
_begun_with: set[str] = set()  # keys of what a run was measured with so far


def remember(choices: Iterable[KernelChoice]) -> None:
    """Let a run that is resumed continue with what it began with."""
    chosen = {choice.key: choice for choice in choices if not choice.is_forced}
    _known.update(chosen)
    _begun_with.update(chosen)


def is_begun_with(key: str) -> bool:
    """Whether figures of the run in progress rest on this choice."""
    return key in _begun_with


def find(key: str) -> KernelChoice | None:
    """What was chosen in this process or by an earlier one, which may name what is not here."""
    if key not in _known and (kept := _read(_file()).get(key)):
        _known[key] = kept
    return _known.get(key)


def keep(choice: KernelChoice) -> None:
    """For this process and for later ones."""
    _known[choice.key] = choice
    with suppress(OSError):  # without it the next run holds the contest again
        file = _file()
        file.parent.mkdir(parents=True, exist_ok=True)
        kept = _read(file) | {choice.key: choice}
        text = json.dumps({key: asdict(one) for key, one in kept.items()}, indent=1)
        write_whole(file, text)


def _file() -> Path:
    folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(folder) / "specbench" / "kernels.json"


def _read(file: Path) -> dict[str, KernelChoice]:
    """What earlier runs chose; nothing where there is no such file or it is not ours."""
    try:
        return _choices().validate_json(file.read_bytes())
    except (ImportError, OSError, ValueError):
        return {}


@cache
def _choices() -> "TypeAdapter[dict[str, KernelChoice]]":
    """As strict as a run, which stores what is found here.

    ImportError on a bare machine with torch alone, where the GPU suite runs too.
    """
    from pydantic import ConfigDict, TypeAdapter  # noqa: PLC0415

    strict = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    return TypeAdapter(dict[str, KernelChoice], config=strict)
