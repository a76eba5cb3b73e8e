"""Finds and reads files of a model's folder, none of which is trusted.

A link may not lead out of the folder, and a config that is too large is not read.
"""

import json
from pathlib import Path
from typing import Any

from specbench.errors import ModelError

LARGEST_JSON = 2**26


def local_file(folder: Path, name: str) -> Path | None:
    """The file of that name; None where there is none, ModelError where it cannot be trusted."""
    path = folder / name
    try:
        if not path.exists():
            if path.is_symlink():
                raise ModelError(f"{path} is a link that leads nowhere")
            return None
        real, home = path.resolve(), folder.resolve()
    except (OSError, RuntimeError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    homes = [home]
    if home.parent.name == "snapshots":  # the hub's cache keeps files beside its snapshots
        homes.append(home.parent.parent / "blobs")
    if not any(real.is_relative_to(home) for home in homes):
        raise ModelError(f"{path} is a link out of its folder; put the file itself there")
    if not real.is_file():
        raise ModelError(f"{path} is not a file")
    return path


def read_json(path: Path) -> dict[str, Any]:
    """The mapping in a JSON file; ModelError, also where it is too large."""
    try:
        if path.stat().st_size > LARGEST_JSON:
            raise ModelError(f"{path} has more than {LARGEST_JSON} bytes; that is not a config")
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path} holds no mapping of settings")
    return content


def cached_folder(hub_id: str, revision: str | None) -> Path | None:
    """The snapshot of a hub id in the local cache; None where it was not downloaded."""
    from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415 - half a second
    from huggingface_hub.errors import HFValidationError  # noqa: PLC0415

    try:
        found = try_to_load_from_cache(hub_id, "config.json", revision=revision)
    except HFValidationError:
        return None
    return Path(found).parent if isinstance(found, str) and Path(found).exists() else None
