"""Writes a run: append-only, a record on disk before the next is measured, one writer."""

import fcntl
import os
import re
from collections.abc import Callable, Sequence, Set
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from shutil import rmtree
from typing import Self

from specbench.errors import StoreError
from specbench.records import BlockRecord, Environment, RunRecord
from specbench.runs.codec import (
    SCHEMA_VERSION,
    RunEnd,
    StoredRecord,
    StoredRun,
    encode_line,
    encode_run,
)
from specbench.runs.reader import (
    RECORDS_FILE,
    RUN_FILE,
    Contents,
    find_run,
    gathered,
    is_run_id,
    read_records,
    read_run,
    resume_command,
)
from specbench.settings import ServerSettings
from specbench.whole_file import REMEDIES, replaced, write_errors_named

_LOCK_FILE = "lock"
_TIMED = re.compile(r"\d{8}-\d{6}-[0-9a-f]{4}")  # ids of new_run_id


def new_run_id(now: datetime) -> str:
    """A run id that sorts by time: `20261121-010203-a1b2`, UTC; at the end 1/65536 of a second."""
    return f"{now.astimezone(UTC):%Y%m%d-%H%M%S}-{now.microsecond * 0x10000 // 10**6:04x}"


def dated_later(root: Path, run_id: str) -> str | None:
    """The last run under `root` whose id has a later time, because the clock was set back."""
    timed = (p.parent.name for p in root.glob(f"*/{RUN_FILE}") if _TIMED.fullmatch(p.parent.name))
    return max((name for name in timed if name[:-5] > run_id[:-5]), default=None)


OnAppend = Callable[[StoredRecord], None]


def create_run(
    root: Path,
    run: RunRecord,
    known: Sequence[StoredRecord] = (),
    on_append: OnAppend | None = None,
) -> "RunStore":
    """Create the folder of a new run under `root`; its run.json is on disk on return.

    A shard of another run gets the records that are stored there as `known`, and calls
    `on_append` with each new one. StoreError if the id is taken or not a valid name, or if the
    disk refuses.
    """
    if not is_run_id(run.run_id):
        raise StoreError(f"{run.run_id!r} is not a run id: use letters, digits, '.', '_' and '-'")
    if run.schema_version != SCHEMA_VERSION:
        raise ValueError(f"a new run has schema version {SCHEMA_VERSION}")
    text = encode_run(run)
    folder = root / run.run_id
    with write_errors_named(folder), ExitStack() as undo:
        root.mkdir(parents=True, exist_ok=True)
        try:
            folder.mkdir()
        except FileExistsError:
            raise StoreError(f"{folder}: this run exists; resume it or choose another id") from None
        undo.callback(rmtree, folder, ignore_errors=True)  # a full disk keeps no partial run
        lock = undo.enter_context(_lock(folder))
        _write_run(folder, text)
        writer = RunStore(folder, run, Contents(tuple(known), 0), lock, on_append)
        undo.pop_all()
        return writer


def resume_run(root: Path, run_id: str, servers: ServerSettings | None = None) -> "RunStore":
    """Resume the run of an id (or `latest`); an incomplete last line is removed.

    A run without a measurement gets the settings of `servers`, if these are others.
    StoreError if the run is unknown, being written, damaged, of another schema, or if a link in its
    folder would let records be written elsewhere.
    """
    folder = find_run(run_id, root, also_empty=True)
    with write_errors_named(folder), ExitStack() as undo:
        _require_no_links(folder)
        lock = undo.enter_context(_lock(folder))
        run = read_run(folder)  # first: records of another schema would be taken for damaged ones
        contents = read_records(folder)
        settings = replace(run.settings, servers=servers or run.settings.servers)
        if settings != run.settings and gathered(folder, run, contents.records).is_empty:
            run = replace(run, settings=settings)
            _write_run(folder, encode_run(run))
        writer = RunStore(folder, run, contents, lock)
        undo.pop_all()
        return writer


def _write_run(folder: Path, text: bytes) -> None:
    """Write run.json; it is on disk on return."""
    with replaced(folder / RUN_FILE) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


class RunStore:
    """The run in progress: it appends records on disk and keeps them in memory.

    A context manager that holds the lock of the run until closed. The file is not read again.
    """

    def __init__(
        self,
        folder: Path,
        run: RunRecord,
        contents: Contents,
        lock: FileIO,
        on_append: OnAppend | None = None,
    ) -> None:
        self.folder = folder
        self.run = run
        environments = (r for r in contents.records if isinstance(r, Environment))
        self.node = (run.environment, *environments)[-1].node  # of a cluster, that measures now
        self._lock, self._on_append = lock, on_append
        self._records = list(contents.records)
        self._blocks = {r.block_id for r in contents.records if isinstance(r, BlockRecord)}
        self._stored: StoredRun | None = None
        self._file = FileIO(folder / RECORDS_FILE, "a")
        self._file.truncate(contents.num_bytes)
        _sync_folder(folder)

    @property
    def stored(self) -> StoredRun:
        """All records on disk, as `load_run` reads them."""
        if self._stored is None:
            self._stored = gathered(self.folder, self.run, self._records)
        return self._stored

    @property
    def records(self) -> Sequence[StoredRecord]:
        """All records in the order they were stored."""
        return self._records

    @property
    def finished_blocks(self) -> Set[str]:
        """Ids of the blocks on disk."""
        return self._blocks

    @property
    def resume_hint(self) -> str:
        """The next step after a failed write."""
        if self.run.settings.command == "import":
            return "repeat the command"
        # Not the command as typed: a resumed run has its settings, and refuses some options.
        return f"resume with: {resume_command(self.folder, self.run)}"

    def append(self, record: StoredRecord) -> None:
        """Store `record`; it is on disk on return.

        ValueError if its block is stored already, or if it would not read back equal (NaN).
        StoreError if the disk refuses: then the record is not kept, and all before it are.
        """
        if isinstance(record, BlockRecord) and record.block_id in self._blocks:
            raise ValueError(f"block {record.block_id!r} is stored already")
        line = encode_line(record)
        try:
            self._write(line)
        except OSError as error:
            remedy = REMEDIES.get(error.errno or 0, "repair the disk")
            raise StoreError(
                f"{self.folder}: cannot write: {error.strerror}. "
                f"The finished blocks ({len(self._blocks)}) are kept; {remedy}, then "
                f"{self.resume_hint}"
            ) from error
        self._records.append(record)
        self._stored = None
        if isinstance(record, BlockRecord):
            self._blocks.add(record.block_id)
        if isinstance(record, Environment):
            self.node = record.node
        if self._on_append is not None:
            self._on_append(record)

    def finish(self) -> None:
        """Mark the run as complete, once everything in its plan is stored."""
        if not (self.stored.is_complete or self.stored.is_failed):
            self.append(RunEnd(finished_at=datetime.now(UTC).isoformat(timespec="seconds")))

    def close(self) -> None:
        """Release the lock; appended records are on disk already."""
        self._file.close()
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, line: bytes) -> None:
        size_before = os.fstat(self._file.fileno()).st_size
        remaining = memoryview(line)
        try:
            while remaining:  # one write, unless the disk fills up in the middle
                remaining = remaining[self._file.write(remaining) :]
            os.fsync(self._file.fileno())
        except BaseException as error:
            # Ctrl-C must not leave part of a line; a complete line was measured and stays.
            if remaining or isinstance(error, OSError):
                with suppress(OSError):  # otherwise it is removed on resume
                    self._file.truncate(size_before)
            raise


def _require_no_links(folder: Path) -> None:
    if link := next((path for path in sorted(folder.rglob("*")) if path.is_symlink()), None):
        raise StoreError(
            f"{link} is a link, and a run is written only in its own folder; replace it "
            "with the file that it points to, then resume"
        )


def _lock(folder: Path) -> FileIO:
    with ExitStack() as undo:
        lock = undo.enter_context(FileIO(folder / _LOCK_FILE, "a+"))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            owner = lock.read().decode() or "(unknown)"
            raise StoreError(
                f"{folder}: process {owner} is writing this run; wait for it or stop it"
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()).encode())
        undo.pop_all()  # the lock outlives this call
        return lock


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
