"""A fuzzed reader: a good file, how copies of it are damaged, and the code that reads them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.hostile.mutations import Mutation


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """`read` does with the file what a command does, so that values which no later part can use
    come to light too."""

    file: Path
    content: bytes
    mutated: Mutation
    read: Callable[[], object]
    place: str | None = None  # what each refusal names; None: the file's name
    refuses: bool = True  # False: what cannot be read is as good as absent


Make = Callable[[Path], Case]  # in an empty folder
