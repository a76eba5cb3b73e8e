"""What identifies weights: a hash that changes with them."""

import hashlib
from pathlib import Path

_HASHED_WHOLE = 4 * 2**30  # larger checkpoints are known by their shape
_EDGE = 2**20


def weights_sha256(
    location: str, commit: str | None, kinds: tuple[str, ...] = ("*.safetensors",)
) -> str:
    """A hash that changes with the weights.

    Local folder: of all files of these kinds; above 4 GiB of each file's name, size and its
    first and last MiB, marked `edges:`. Hub: of the id and commit, marked `commit:`.
    """
    folder = Path(location)
    if not folder.is_dir():
        return "commit:" + hashlib.sha256(f"{location}@{commit}".encode()).hexdigest()
    files = sorted(file for kind in kinds for file in folder.glob(kind) if file.is_file())
    is_whole = sum(file.stat().st_size for file in files) <= _HASHED_WHOLE
    digest = hashlib.sha256()
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.name}:{size}\n".encode())
        with file.open("rb") as stream:
            if is_whole:
                while chunk := stream.read(_EDGE):
                    digest.update(chunk)
            else:
                digest.update(stream.read(_EDGE))
                stream.seek(max(size - _EDGE, 0))
                digest.update(stream.read())
    return ("" if is_whole else "edges:") + digest.hexdigest()
