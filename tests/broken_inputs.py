"""A broken file, with the type, the place and the values that its error must have.

A test writes `files` into an empty working folder. If `workload` is None, reading
pairings.yaml must fail; else `--workload` with that name or file must.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from specbench.errors import SpecbenchError


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokenInput:
    """The fault, the files that have it, and the error."""

    name: str
    files: Mapping[str, bytes]
    error: type[SpecbenchError]
    place: str  # how its text begins
    names: str  # a pattern of the values that it names after the place
    workload: str | None = None

    def write(self, folder: Path) -> None:
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
