"""Files of a training, which are replaced atomically."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from specbench.errors import StoreError
from specbench.whole_file import replaced as replaced_whole


@contextmanager
def replaced(path: Path) -> Iterator[BinaryIO]:
    """Replaces `path` at the end by what was written; StoreError if the disk refuses."""
    try:
        with replaced_whole(path) as stream:
            yield stream
    except Exception as error:
        reason = _of_the_disk(error)
        if reason is None:
            raise
        raise not_written(path, reason) from error


def not_written(path: Path, error: OSError) -> StoreError:
    """The error for a user; everything that a training resumes from is unchanged."""
    return StoreError(
        f"{path} cannot be written: {error.strerror}. Free disk space or fix the problem, "
        "then resume with the same command plus --resume: finished answers and saved steps are kept"
    )


def _of_the_disk(error: BaseException | None) -> OSError | None:
    """The disk's error behind the RuntimeError that torch.save raises."""
    while error is not None and not isinstance(error, OSError):
        error = error.__context__
    return error
