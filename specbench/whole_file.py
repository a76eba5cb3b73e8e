"""A file that is there as a whole or as it was before."""

import errno
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import BinaryIO

_ABANDONED_S = 600.0


def write_whole(path: Path, content: str | bytes) -> None:
    """Replace the file that a user named in one step, where a link leads to it too. OSError.

    A device or a pipe is written to as it is.
    """
    if path.exists() and not path.is_file():
        path.write_bytes(_data(content))
        return
    with replaced(Path(os.path.realpath(path))) as file:
        file.write(_data(content))


def write_new(path: Path, content: str | bytes) -> None:
    """A file that was not there before. FileExistsError where anything has its name; OSError."""
    if os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    with replaced(path) as file:
        file.write(_data(content))


@contextmanager
def replaced(path: Path) -> Iterator[BinaryIO]:
    """What is written takes the place of whatever has the name: of a link, not of what it leads to.

    Each writer has a draft of its own, so two at once do not mix. OSError, which names `path`.
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
    """Removes drafts of the file whose writers were killed; those of writers at work are newer."""
    with suppress(OSError):
        for draft in path.parent.glob(f".{escape(path.name)}.*.tmp"):
            if time.time() - draft.stat().st_mtime > _ABANDONED_S:
                draft.unlink()


def _data(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content
