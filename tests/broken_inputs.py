"""A broken file, with the place and the words that its error must have.

A test writes `files` into an empty working folder. If `workload` is None, reading
pairings.yaml must fail; else `--workload` with that name or file must.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokenInput:
    """The fault, the files that have it, and the text of the error."""

    name: str
    files: Mapping[str, bytes]
    place: str  # how the error begins
    says: str
    workload: str | None = None

    def write(self, folder: Path) -> None:
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
