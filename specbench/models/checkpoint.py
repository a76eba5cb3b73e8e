"""Reads the folder of a draft head: the config and pickles immediately, safetensors on first use.

The files are not trusted: a pickle may contain only tensors, and an index or a link must not lead
outside the folder.
"""

import pickle
import re
import struct
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers.utils import cached_file

from specbench.errors import ModelError, first_line
from specbench.files.head_files import HeadFiles, LazyTensors
from specbench.files.headers import (
    HEAD_WEIGHTS,
    INDEX,
    TensorHeader,
    lacking_weights,
    local_file,
    read_headers,
    read_index,
    read_json,
    weights_headers,
)
from specbench.files.tokenizer import TOKENIZER_FILES
from specbench.models.library_errors import load_advice

WEIGHT_KINDS = ("*.safetensors", "*.bin", "*.pt")
_COMMIT = re.compile(r"/snapshots/([0-9a-f]{40})/")
# Errors that torch.load raises for arbitrary bytes.
PICKLE_ERRORS = (
    OSError,
    RuntimeError,
    EOFError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    AssertionError,
    ArithmeticError,
    MemoryError,
    ImportError,
    struct.error,
    pickle.UnpicklingError,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint(HeadFiles[Tensor]):
    """A draft head's config and tensors; tensors are on the CPU, in the dtype of the files."""


def read_checkpoint(
    location: str, revision: str | None = None, *, shapes_only: bool = False
) -> Checkpoint:
    """Read a head from a local folder or the hub; transformers downloads and caches hub files.

    ModelError if files are missing or unsafe. Safetensors are read lazily; `shapes_only` skips
    the values of a pickle's tensors.
    """
    config_file = _find(location, revision, "config.json")
    if config_file is None:
        raise ModelError(
            f"{location}: config.json is missing; download it once with `hf download`, or give a "
            "folder (./my-head)"
        )
    commit = _COMMIT.search(config_file.as_posix())
    revision = commit[1] if commit else revision  # so that all files come from one commit
    file = _find(location, revision, *HEAD_WEIGHTS)
    if file is None:
        raise ModelError(f"{location}: {lacking_weights(config_file.parent, HEAD_WEIGHTS)}")
    tensors: Mapping[str, Tensor]
    if file.suffix in (".safetensors", ".json"):
        names = read_index(file) if file.name == INDEX else {}
        if all(local_file(file.parent, shard) for shard in names.values()):
            headers = weights_headers(file.parent, (file.name,)) or {}
            names = {name: header.file.name for name, header in headers.items()}
        tensors = _Safetensors(names, partial(_find, location, revision))
    else:
        tensors = _read_pickle(file, "meta" if shapes_only else "cpu")
    if not tensors:
        raise ModelError(f"{location}: {file.name} has no tensors; download it again")
    config = read_json(config_file)
    return Checkpoint(source=location, config=config, tensors=tensors, revision=revision)


def has_tokenizer(location: str, revision: str | None = None) -> bool:
    """Whether the files of a head include a tokenizer."""
    return _find(location, revision, *TOKENIZER_FILES) is not None


def _find(location: str, revision: str | None, *names: str) -> Path | None:
    """The first of the files that is on this machine, or else that can be downloaded; None if there
    is none, ModelError if the repository is gated."""
    folder = Path(location)
    files = (
        (local_file(folder, name) for name in names)
        if folder.is_dir()
        else (
            _hub_file(location, revision, name, is_offline)
            for is_offline in (True, False)
            for name in names
        )
    )
    return next((file for file in files if file is not None), None)


def _hub_file(location: str, revision: str | None, name: str, is_offline: bool) -> Path | None:
    try:
        path = cached_file(location, name, revision=revision, local_files_only=is_offline)
    except (OSError, ValueError) as error:  # missing, or not cached and offline
        if "gated repo" in str(error):
            raise ModelError(f"{location}: {load_advice(error)}") from error
        return None
    return None if path is None else Path(path)


class _Safetensors(LazyTensors[Tensor]):
    """Tensors of one or more files; `names` maps each tensor to its file name."""

    def __init__(self, names: Mapping[str, str], find: Callable[[str], Path | None]) -> None:
        super().__init__(names)
        self._find = find
        self._headers: dict[str, Mapping[str, TensorHeader]] = {}
        self._opened: dict[Path, Any] = {}

    def __getitem__(self, name: str) -> Tensor:
        file = self.header(name).file
        try:
            if file not in self._opened:
                self._opened[file] = safe_open(str(file), framework="pt", device="cpu")
            tensor: Tensor = self._opened[file].get_tensor(name)
        except (SafetensorError, OSError, RuntimeError, ValueError, TypeError) as error:
            raise ModelError(f"{file}: {name} cannot be read: {error}") from error
        return tensor

    def header(self, name: str) -> TensorHeader:
        """The header of a tensor; the headers of its file are read on first use."""
        file = self._names[name]
        if file not in self._headers:
            path = self._find(file)
            if path is None:
                raise ModelError(f"{file}, which contains {name}, is missing")
            self._headers[file] = read_headers(path)
        if name not in self._headers[file]:
            raise ModelError(f"{file} does not have {name}")
        return self._headers[file][name]


def _read_pickle(file: Path, device: str) -> dict[str, Tensor]:
    """The tensors of a pickle by name, without running its code; ModelError for other content."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # unusual pickles either load or raise an error
            content = torch.load(file, map_location=device, weights_only=True)
    except pickle.UnpicklingError as error:
        raise ModelError(
            f"{file} is damaged or contains more than tensors, and a pickle can run any code; if "
            "you trust it, convert it to safetensors"
        ) from error
    except PICKLE_ERRORS as error:
        raise ModelError(f"{file} cannot be read: {first_line(error)}") from error
    if not isinstance(content, dict) or not all(map(_is_named_tensor, content.items())):
        raise ModelError(f"{file} is not a mapping from names to tensors")
    return content


def _is_named_tensor(item: tuple[object, object]) -> bool:
    name, tensor = item
    return isinstance(name, str) and isinstance(tensor, Tensor) and tensor.layout is torch.strided
