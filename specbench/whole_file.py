"""A file that is there as a whole or as it was before."""

from pathlib import Path


def write_whole(path: Path, content: str | bytes) -> None:
    """Replace a file in one step; a device or a pipe is written to as it is. OSError."""
    data = content.encode() if isinstance(content, str) else content
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    draft = path.with_name(f".{path.name}.tmp")
    try:
        draft.write_bytes(data)
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
