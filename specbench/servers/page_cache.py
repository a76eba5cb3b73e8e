"""Loads a model's weights into the system's page cache, so that all server starts are alike."""

from functools import cache
from pathlib import Path

from specbench.errors import ModelError

WEIGHTS = (".safetensors", ".gguf", ".bin")
CHUNK_BYTES = 2**24


@cache
def read_once(model: Path) -> int:
    """Read the weights of a folder, or one file, once per process; the bytes read. ModelError."""
    chunk = bytearray(CHUNK_BYTES)
    num_bytes = 0
    try:
        inside = model.iterdir() if model.is_dir() else ()
        weights = [path for path in inside if path.suffix in WEIGHTS and path.is_file()]
        for path in weights if model.is_dir() else [model]:
            with path.open("rb", buffering=0) as stream:
                while num_read := stream.readinto(chunk):
                    num_bytes += num_read
    except OSError as error:
        raise ModelError(f"{model} cannot be read: {error}") from error
    return num_bytes
