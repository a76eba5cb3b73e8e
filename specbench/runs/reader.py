"""Reads stored runs. A last line that a kill cut short is ignored; other damage is an error."""

import gc
import re
import shlex
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, get_args, get_origin, get_type_hints

from specbench.errors import StoreError
from specbench.records import BlockRecord, FailureRecord, RunRecord
from specbench.runs.codec import (
    NotJsonError,
    RunEnd,
    SchemaError,
    StoredRecord,
    StoredRun,
    decode_line,
    decode_run,
    has_measured,
    line_type,
)
from specbench.whole_file import read_errors_named

LATEST = "latest"  # in place of a run id: the newest run with a measurement
RUN_FILE = "run.json"
RECORDS_FILE = "records.jsonl"

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunListing:
    """One line of `list runs`; `problem` is the reason why a run cannot be read."""

    run_id: str
    created_at: str = ""
    pairings: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ()
    num_blocks: int = 0
    is_finished: bool = False  # it was not interrupted
    has_measured: bool = False
    problem: str = ""

    @property
    def is_complete(self) -> bool:
        return self.is_finished and self.has_measured

    @property
    def state(self) -> str:
        """The state in one word, or the problem with its files."""
        if self.problem or not self.is_finished:
            return self.problem or "interrupted"
        return "complete" if self.is_complete else "failed"


class Contents(NamedTuple):
    """The contents of a records.jsonl."""

    records: tuple[StoredRecord, ...]
    num_bytes: int  # up to the end of the last complete line


@contextmanager
def no_collection() -> Iterator[None]:
    """Pause Python's cyclic garbage collector inside the block, or during each call if used as a
    decorator.

    Hardly any record becomes garbage, and each collection would scan all of them again: about a
    quarter of the time for 100,000 requests.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            # Move everything to the oldest generation, or the next collection of the youngest scans
            # it. Skipped if the program has frozen objects, because they would be unfrozen.
            if gc.get_count()[0] > gc.get_threshold()[0] and gc.get_freeze_count() == 0:
                gc.freeze()
                gc.unfreeze()
            gc.enable()


@no_collection()
def load_run(path_or_id: str | Path, root: Path, *, also_empty: bool = False) -> StoredRun:
    """The stored run at a path, of an id under `root`, or `latest`; also while it is written.

    `also_empty`: allow a run that failed or has no records, and a `latest` without a measurement.
    StoreError if it is unknown, damaged, or of another schema.
    """
    folder = find_folder(path_or_id, root, also_empty=also_empty)
    run = read_run(folder)  # first: records of another schema would be taken for damaged ones
    contents = read_records(folder)
    stored = gathered(folder, run, contents.records)
    if not also_empty and (stored.is_failed or not (folder / RECORDS_FILE).exists()):
        why = f"has no {RECORDS_FILE}, so nothing measured. To measure it: "
        why += f"{resume_command(folder, run)}. Or "
        if stored.is_failed:
            why = f"failed and measured nothing: {stored.why_failed}; "
        raise StoreError(f"run {run.run_id} {why}name another run (`specbench list runs`)")
    return stored


def find_folder(path_or_id: str | Path, root: Path, *, also_empty: bool = False) -> Path:
    """The folder of a run at a path, or else as `find_run`."""
    with read_errors_named(Path(path_or_id), StoreError):
        is_path = (Path(path_or_id) / RUN_FILE).is_file()
    return Path(path_or_id) if is_path else find_run(str(path_or_id), root, also_empty=also_empty)


def resume_command(folder: Path, run: RunRecord) -> str:
    """The command that measures the rest of a run, whose settings it takes from the run."""
    words: list[str] = [run.settings.command]
    if run.settings.forecasting.most_drafters is not None:
        words = ["pair", run.keys[0].condition.target]
    return shlex.join(
        ["specbench", *words, "--runs-dir", str(folder.parent), "--resume", folder.name]
    )


def gathered(folder: Path, run: RunRecord, records: Sequence[StoredRecord]) -> StoredRun:
    """The records of a run, by kind."""
    kinds: dict[type, list[StoredRecord]] = {}
    for record in records:
        kinds.setdefault(type(record), []).append(record)
    kinds[FailureRecord] = list(_unsettled(records))
    by_field: dict[str, Any] = {name: tuple(kinds.get(k, ())) for name, k in _kinds().items()}
    done = bool(records) and isinstance(records[-1], RunEnd)
    is_empty = not any(map(has_measured, records))
    return StoredRun(
        folder=folder,
        run=run,
        is_complete=done and not is_empty,
        is_failed=done and is_empty,
        is_empty=is_empty,
        **by_field,
    )


@cache
def _kinds() -> dict[str, type]:
    """Fields of a stored run, with the kind of record that each contains."""
    hints = get_type_hints(StoredRun)
    return {n: get_args(h)[0] for n, h in hints.items() if get_origin(h) is tuple}


def list_runs(root: Path) -> tuple[RunListing, ...]:
    """The runs under `root`, oldest first; one that cannot be read is listed with its problem."""
    listings = [_list_run(file.parent) for file in root.glob(f"*/{RUN_FILE}")]
    return tuple(sorted(listings, key=lambda listing: (listing.created_at, listing.run_id)))


def read_runs(root: Path) -> list[RunRecord]:
    """Every run.json under `root` that can be read, the newest first."""
    runs = []
    for file in root.glob(f"*/{RUN_FILE}"):
        with suppress(StoreError):
            runs.append(read_run(file.parent))
    return sorted(runs, key=lambda run: (run.environment.created_at, run.run_id), reverse=True)


def runs_of(pairings: Set[str], root: Path) -> Iterator[str]:
    """Ids of the runs under `root` that measured one of the pairings, newest first."""
    for run in reversed(list_runs(root)):
        if run.has_measured and pairings & set(run.pairings):
            yield run.run_id


def find_run(run_id: str, root: Path, *, also_empty: bool = False) -> Path:
    """The folder under `root` of a run id, of a prefix that only one id has, or of `latest`.

    `also_empty`: `latest` may have no measurement. StoreError lists the runs, or those that a
    prefix matches.
    """
    if run_id != LATEST and is_run_id(run_id) and (root / run_id / RUN_FILE).is_file():
        return root / run_id
    listings = list_runs(root)
    known = [listing.run_id for listing in listings]
    if run_id == LATEST and known:
        allowed = [r.run_id for r in listings if also_empty or r.has_measured or r.problem]
        if allowed:
            return root / allowed[-1]
        listed = ", ".join(f"{run.run_id} ({run.state})" for run in listings)
        raise StoreError(f"no run in {root} has measured anything: {listed}")
    matching = [name for name in known if run_id and name.startswith(run_id)]
    if len(matching) == 1:
        return root / matching[0]
    if matching:
        raise StoreError(f"{run_id!r} may be any of these runs in {root}: {', '.join(matching)}")
    none = "none yet. Measure one: specbench run; or name another folder: --runs-dir DIR"
    raise StoreError(f"no run {run_id!r} in {root}; runs there: {', '.join(known) or none}")


def is_run_id(text: str) -> bool:
    """Whether `text` can be the name of a run's folder, and of nothing outside its root."""
    return _RUN_ID.fullmatch(text) is not None and text != LATEST


def read_run(folder: Path) -> RunRecord:
    """run.json of a run's folder; StoreError if damaged or of another schema."""
    path = folder / RUN_FILE
    text = _content(path)
    try:
        return decode_run(text)
    except SchemaError as error:
        raise StoreError(f"{path}: {error}") from error
    except ValueError as error:
        raise StoreError(f"{path}: damaged: {error}") from error


def read_records(folder: Path) -> Contents:
    """records.jsonl of a run's folder without an incomplete last line; StoreError on damage."""
    path = folder / RECORDS_FILE
    if not path.exists():  # killed between run.json and the first record
        return Contents((), 0)
    *lines, unfinished = _content(path).split(b"\n")
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
def _opened(path: Path) -> Iterator[BinaryIO]:
    """A file of a run; StoreError for a pipe or a device, which might never end."""
    with read_errors_named(path, StoreError):
        if path.exists() and not path.is_file():
            raise StoreError(f"{path}: not a file; put the run's own file in its place")
        with path.open("rb") as file:
            yield file


def _content(path: Path) -> bytes:
    with _opened(path) as file:
        return file.read()


def _unsettled(records: Sequence[StoredRecord]) -> tuple[FailureRecord, ...]:
    """Failures, except those of cells that a later block has measured."""
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
    measured = False
    try:
        run = read_run(folder)
        if records.exists():
            with _opened(records) as file:
                for line in file:
                    types.append(line_type(line))
                    measured = measured or _has_measured(types[-1], line)
    except StoreError as error:
        return RunListing(run_id=folder.name, problem=str(error))
    return RunListing(
        run_id=folder.name,
        created_at=run.environment.created_at,
        pairings=tuple(dict.fromkeys(cell.key.pairing for cell in run.cells)),
        workloads=tuple(dict.fromkeys(cell.key.condition.workload for cell in run.cells)),
        num_blocks=types.count("block"),
        is_finished=bool(types) and types[-1] == "done",
        has_measured=measured,
    )


def _has_measured(kind: str | None, line: bytes) -> bool:
    if kind not in ("block", "imported", "forecast"):
        return False
    try:
        return has_measured(decode_line(line))
    except ValueError:  # damaged: loading the run raises the error
        return True
