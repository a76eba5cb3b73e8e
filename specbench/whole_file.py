"""A file that is there as a whole or as it was before."""

from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Replace a file in one step; a device or a pipe is written to as it is. OSError."""
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
        return
    draft = path.with_name(f".{path.name}.tmp")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
