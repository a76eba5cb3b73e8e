"""Reads stored runs. A last line that a kill cut short is passed over; other damage is not."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from specbench.errors import StoreError
from specbench.records import BlockRecord, FailureRecord, RunRecord
from specbench.runs.codec import (
    Done,
    NewerSchemaError,
    NotJsonError,
    StoredRecord,
    StoredRun,
    decode_line,
    decode_run,
    line_type,
)
from specbench.runs.old_plans import Depths, depths_found

LATEST = "latest"  # in place of a run id: the newest run
RUN_FILE = "run.json"
RECORDS_FILE = "records.jsonl"

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunListing:
    """One line of `list runs`; a run that cannot be read says why in `problem`."""

    run_id: str
    created_at: str = ""
    pairings: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ()
    num_blocks: int = 0
    is_complete: bool = False
    problem: str = ""


class Contents(NamedTuple):
    """What a records.jsonl holds."""

    records: tuple[StoredRecord, ...]
    num_bytes: int  # up to the end of the last complete line


def load_run(path_or_id: str | Path, root: Path) -> StoredRun:
    """The stored run at a path, of an id under `root`, or `latest`; also while it is written.

    StoreError if it is unknown, damaged, or of a newer schema.
    """
    with disk_errors_named(Path(path_or_id)):
        is_path = (Path(path_or_id) / RUN_FILE).is_file()
    folder = Path(path_or_id) if is_path else find_run(str(path_or_id), root)
    contents = read_records(folder)
    run = read_run(folder, depths_found(contents.records))
    return gathered(folder, run, contents.records)


def gathered(folder: Path, run: RunRecord, records: Sequence[StoredRecord]) -> StoredRun:
    """What a run's records say, each kind by itself."""
    kinds: dict[type, list[StoredRecord]] = {}
    for record in records:
        kinds.setdefault(type(record), []).append(record)
    kinds[FailureRecord] = list(_unsettled(records))
    found = {name: tuple(kinds.get(kind, ())) for name, kind in _kinds().items()}
    done = bool(records) and isinstance(records[-1], Done)
    whole: dict[str, Any] = {"run": run, "is_complete": done, **found}
    return StoredRun(folder=folder, **whole)


@cache
def _kinds() -> dict[str, type]:
    """Field of a stored run -> the kind of record it holds."""
    hints = get_type_hints(StoredRun)
    return {n: get_args(h)[0] for n, h in hints.items() if get_origin(h) is tuple}


def list_runs(root: Path) -> tuple[RunListing, ...]:
    """The runs under `root`, oldest first; one that cannot be read is listed with its problem."""
    listings = [_list_run(file.parent) for file in root.glob(f"*/{RUN_FILE}")]
    return tuple(sorted(listings, key=lambda listing: (listing.created_at, listing.run_id)))


def find_run(run_id: str, root: Path) -> Path:
    """The folder of a run id, of the beginning of one alone, or of `latest`, under `root`.

    StoreError names the runs there are, and those that the beginning may mean.
    """
    if run_id != LATEST and is_run_id(run_id) and (root / run_id / RUN_FILE).is_file():
        return root / run_id
    known = [listing.run_id for listing in list_runs(root)]
    if run_id == LATEST and known:
        return root / known[-1]
    meant = [one for one in known if run_id and one.startswith(run_id)]
    if len(meant) == 1:
        return root / meant[0]
    if meant:
        raise StoreError(f"{run_id!r} may be any of these runs in {root}: {', '.join(meant)}")
    raise StoreError(f"no run {run_id!r} in {root}; runs there: {', '.join(known) or 'none yet'}")


def is_run_id(text: str) -> bool:
    """True where `text` can name a run's folder, and nothing outside its root."""
    return _RUN_ID.fullmatch(text) is not None and text != LATEST


def read_run(folder: Path, depths: Depths = MappingProxyType({})) -> RunRecord:
    """run.json of a run's folder; StoreError if it is damaged or of a newer schema.

    `depths` make an old plan final.
    """
    path = folder / RUN_FILE
    with disk_errors_named(path):
        text = path.read_bytes()
    try:
        return decode_run(text, depths)
    except NewerSchemaError as error:
        raise StoreError(f"{path}: {error}; update specbench to read it") from error
    except ValueError as error:
        raise StoreError(f"{path}: damaged: {error}") from error


def read_records(folder: Path) -> Contents:
    """records.jsonl of a run's folder without a torn last line; StoreError on other damage."""
    path = folder / RECORDS_FILE
    if not path.exists():  # killed between run.json and the first record
        return Contents((), 0)
    with disk_errors_named(path):
        *lines, unfinished = path.read_bytes().split(b"\n")
    records: list[StoredRecord] = []
    first_lines: dict[str, int] = {}  # block id -> line
    num_bytes = 0
    for number, line in enumerate(lines, start=1):
        try:
            record = decode_line(line)
        except ValueError as error:
            is_last = number == len(lines) and not unfinished
            if is_last and isinstance(error, NotJsonError):
                break
            raise StoreError(f"{path}:{number}: damaged: {error}") from error
        if isinstance(record, BlockRecord):
            first = first_lines.setdefault(record.block_id, number)
            if first != number:
                raise StoreError(
                    f"{path}:{number}: damaged: block {record.block_id!r} is stored twice, "
                    f"first on line {first}"
                )
        records.append(record)
        num_bytes += len(line) + 1
    return Contents(tuple(records), num_bytes)


@contextmanager
def disk_errors_named(place: Path) -> Iterator[None]:
    """Turn what the disk refuses inside into a StoreError that names the file."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{error.filename or place}: {error.strerror}") from error


def _unsettled(records: Sequence[StoredRecord]) -> tuple[FailureRecord, ...]:
    """Failures but for those of cells that a later block has measured all the same."""
    failures: list[FailureRecord] = []
    for record in records:
        if isinstance(record, FailureRecord):
            failures.append(record)
        elif isinstance(record, BlockRecord) and failures:
            measured = {r.cell_id for r in record.requests if r.error is None}
            failures = [f for f in failures if measured.isdisjoint(f.cell_ids)]
    return tuple(failures)


def _list_run(folder: Path) -> RunListing:
    records = folder / RECORDS_FILE
    types: list[str | None] = []
    try:
        run = read_run(folder)
        if records.exists():
            with disk_errors_named(records), records.open("rb") as file:
                types = [line_type(line) for line in file]
    except StoreError as error:
        return RunListing(run_id=folder.name, problem=str(error))
    return RunListing(
        run_id=folder.name,
        created_at=run.environment.created_at,
        pairings=tuple(dict.fromkeys(cell.key.pairing for cell in run.cells)),
        workloads=tuple(dict.fromkeys(cell.key.condition.workload for cell in run.cells)),
        num_blocks=types.count("block"),
        is_complete=bool(types) and types[-1] == "done",
    )
