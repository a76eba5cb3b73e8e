"""Writes files atomically, completely or not at all, and names files in errors of a disk."""

import errno
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import BinaryIO

from specbench.errors import SpecbenchError, StoreError

REMEDIES = {
    errno.ENOSPC: "free space on the disk",
    errno.EDQUOT: "free space in your quota",
    errno.EFBIG: "raise the limit on file sizes",
}
_ABANDONED_S = 600.0


def write_whole(path: Path, content: str | bytes) -> None:
    """Replace the file at `path` in one step; a link is followed. OSError.

    A device or a pipe is written to directly.
    """
    if path.exists() and not path.is_file():
        path.write_bytes(_data(content))
        return
    with replaced(Path(os.path.realpath(path))) as file:
        file.write(_data(content))


def write_new(path: Path, content: str | bytes) -> None:
    """Write a file that does not exist yet. FileExistsError if anything has its name; OSError."""
    if os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    with replaced(path) as file:
        file.write(_data(content))


@contextmanager
def write_errors_named(path: Path) -> Iterator[None]:
    """Turn an OSError inside into a StoreError that names the file, with a remedy if known."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{path}: cannot be written: {reason_of(error)}") from error


@contextmanager
def read_errors_named(path: Path, kind: type[SpecbenchError]) -> Iterator[None]:
    """Turn an OSError inside into an error of this kind that names the file."""
    try:
        yield
    except OSError as error:
        raise kind(f"{path}: cannot be read: {error.strerror}") from error


def reason_of(error: OSError) -> str:
    """The reason in words, with what to do about a full disk."""
    remedy = REMEDIES.get(error.errno or 0)
    return f"{error.strerror}; {remedy}" if remedy else f"{error.strerror}"


@contextmanager
def replaced(path: Path) -> Iterator[BinaryIO]:
    """A file to write that takes the place of `path` on exit; a link itself is replaced.

    Each writer has a separate temporary file, so concurrent writers do not mix. OSError, which
    names `path`.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with draft.open("xb") as file:
            yield file
        draft.replace(path)
        _clear_away(path)
    except BaseException as error:
        if isinstance(error, OSError):
            error.filename = str(path)
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


def _clear_away(path: Path) -> None:
    """Remove temporary files whose writers were killed; those of running writers are newer."""
    with suppress(OSError):
        for draft in path.parent.glob(f".{escape(path.name)}.*.tmp"):
            if time.time() - draft.stat().st_mtime > _ABANDONED_S:
                draft.unlink()


def _data(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content
