"""Finds, checks and reads prompts.

A workload is two files: NAME.jsonl, one prompt a line, and NAME.yaml, its card:

    name: chat
    description: text
    licence: Apache-2.0
    sha256: of NAME.jsonl, so that a changed prompt is a changed workload
    max_new_tokens: 256
    prompts: 48

Any other JSONL file, plain or gzipped, is read as it is: workload_formats.py says which keys.
"""

import gzip
import hashlib
import io
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from specbench.errors import UsageError, WorkloadError
from specbench.inputs.strict_yaml import Value, nearest, read_yaml, whole
from specbench.inputs.workload_formats import Line, read_prompt
from specbench.records import Prompt
from specbench.shipped import shipped

MAX_LINE_BYTES = 2**24  # a prompt of a million tokens is a quarter of it
MAX_NEW_TOKENS = 131_072
DEFAULT_MAX_NEW_TOKENS = 128  # of a file without a card

_CARD_KEYS = ("name", "description", "licence", "sha256", "max_new_tokens", "prompts")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """Prompts of one kind; only a workload with a card has a licence and a length."""

    name: str  # a file without a card goes by its file name
    path: Path
    sha256: str  # of the file's bytes
    prompts: tuple[Prompt, ...]
    description: str = ""
    licence: str | None = None
    max_new_tokens: int | None = None

    def take(self, num_prompts: int, seed: int) -> tuple[Prompt, ...]:
        """A draw spread evenly over the categories; a smaller one begins a larger one.

        The order depends on the seed and the ids alone. Fewer are returned where there are
        fewer; UsageError below one.
        """
        if num_prompts < 1:
            raise UsageError(f"{num_prompts} prompts of {self.name}: at least 1 is needed")
        shuffled = sorted(self.prompts, key=lambda prompt: _hash(f"{seed}/{prompt.id}"))
        drawn: Counter[str] = Counter()
        place = {}  # within its category; sorting by it takes one of each category in turn
        for prompt in shuffled:
            place[prompt.id] = drawn[prompt.category]
            drawn[prompt.category] += 1
        return tuple(sorted(shuffled, key=lambda prompt: place[prompt.id])[:num_prompts])


def find_workloads(folder: Path | None = None) -> tuple[str, ...]:
    """The names of a folder's workloads; without one, of those that come with any model.

    These are workloads/ of the working folder and those shipped with the package.
    """
    places = [folder] if folder else _general_places()
    return tuple(sorted({path.stem for place in places for path in place.glob("*.jsonl")}))


def load_workloads(names: Sequence[str], *, folder: Path | None = None) -> tuple[Workload, ...]:
    """Those of a run, each once; WorkloadError, and UsageError for two of one name."""
    by_name: dict[str, Workload] = {}
    for name in names:
        workload = load_workload(name, folder=folder)
        twin = by_name.setdefault(workload.name, workload)
        if twin is not workload:
            raise UsageError(
                f"--workload: {twin.path} and {workload.path} are both called {workload.name}, "
                "and a run identifies workloads by name; rename one"
            )
    return tuple(by_name.values())


def load_workload(name: str, *, folder: Path | None = None) -> Workload:
    """The workload of that name, or the JSONL file: what has a dot or a slash is a file.

    A name is looked for in `folder` (a pairing's own workloads), then in workloads/ of the
    working folder, then among those shipped. Whatever is wrong raises WorkloadError with
    file, line and reason.
    """
    if "." in name or "/" in name:
        return _load_file(Path(name))
    for place in [folder, *_general_places()] if folder else _general_places():
        if name in find_workloads(place):
            return _load_with_card(place / f"{name}.yaml")
    known = sorted({*find_workloads(), *(find_workloads(folder) if folder else ())})
    raise WorkloadError(
        f"no workload {name!r}{nearest(name, known)}; there are: {', '.join(known)}; "
        "or give a JSONL file, such as ./prompts.jsonl"
    )


def _general_places() -> list[Path]:
    return [Path("workloads"), shipped("workloads")]


def _load_file(path: Path) -> Workload:
    prompts = _read_prompts(path, strict=False)
    return Workload(name=path.name, path=path, sha256=_sha256(path), prompts=prompts)


def _load_with_card(card: Path) -> Workload:
    path = card.with_suffix(".jsonl")
    keys = read_yaml(card, WorkloadError).section(allowed=_CARD_KEYS)
    name = keys.must("name", Value.text)
    if name != path.stem:
        keys.entries["name"].fail(f"{name!r} is not the file's name, {path.stem!r}")
    prompts = _read_prompts(path, strict=True)  # first: a malformed line says more than a sum
    sha256 = keys.must("sha256", _digest)
    if sha256 != _sha256(path):
        keys.entries["sha256"].fail(
            f"{path.name} has changed; its sha256 is now {_sha256(path)}: restore the file, or "
            "write this hash here if the change is intended"
        )
    if keys.must("prompts", whole(1, 10**9)) != len(prompts):
        keys.entries["prompts"].fail(f"{path.name} has {len(prompts)} prompts")
    return Workload(
        name=name,
        path=path,
        sha256=sha256,
        prompts=prompts,
        description=keys.must("description", Value.text),
        licence=keys.must("licence", Value.text),
        max_new_tokens=keys.must("max_new_tokens", whole(1, MAX_NEW_TOKENS)),
    )


def _digest(value: Value) -> str:
    digest = value.text()
    if not _SHA256.fullmatch(digest):
        value.fail("64 digits of 0-9 and a-f are needed")
    return digest


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as wrong:
        raise WorkloadError(f"{path}: cannot be read: {wrong.strerror}") from wrong


def _read_prompts(path: Path, *, strict: bool) -> tuple[Prompt, ...]:
    prompts: list[Prompt] = []
    first_line: dict[str, int] = {}
    for line, content in _lines(path):
        prompt = read_prompt(content, line, strict=strict)
        if prompt.id in first_line:
            line.fail(f"the id {prompt.id!r} is already on line {first_line[prompt.id]}")
        first_line[prompt.id] = line.number
        prompts.append(prompt)
    if not prompts:
        Line(file=path, number=1).fail("the file holds no prompts")
    return tuple(prompts)


def _lines(path: Path) -> Iterator[tuple[Line, bytes]]:
    """The lines that are not blank, decompressed where the file is gzipped."""
    try:
        with path.open("rb") as raw:
            is_gzip = raw.peek(2)[:2] == b"\x1f\x8b"
            yield from _numbered(path, gzip.GzipFile(fileobj=raw) if is_gzip else raw)
    except OSError as wrong:
        raise WorkloadError(f"{path}: cannot be read: {wrong.strerror}") from wrong


def _numbered(path: Path, stream: io.BufferedIOBase) -> Iterator[tuple[Line, bytes]]:
    for number in count(1):
        line = Line(file=path, number=number)
        try:
            content = stream.readline(MAX_LINE_BYTES + 1)
        except (EOFError, gzip.BadGzipFile, zlib.error) as wrong:
            line.fail(f"the gzip file is cut off or damaged here: {wrong}")
        if not content:
            return
        if len(content) > MAX_LINE_BYTES:
            line.fail(f"longer than {MAX_LINE_BYTES} bytes")
        if content.strip():
            yield line, content
