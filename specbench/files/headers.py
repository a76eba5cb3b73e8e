"""Finds and reads the untrusted files of a model's folder, and headers of safetensors.

A link must not lead out of the folder, and a config that is too large is not read. A safetensors
file begins with the length of its header in eight bytes. The header follows, a JSON mapping with
the names, types and shapes of the tensors. The tensors themselves are not read.
Source: https://github.com/huggingface/safetensors, the format.
"""

import json
import math
import re
import struct
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from specbench.errors import ModelError

LARGEST_JSON = 2**26


def local_file(folder: Path, name: str) -> Path | None:
    """The file with that name; None if it does not exist, ModelError if it cannot be trusted."""
    path = folder / name
    try:
        if not path.exists():
            if path.is_symlink():
                raise ModelError(f"{path}: a broken link; download the file again")
            return None
        real, home = path.resolve(), folder.resolve()
    except (OSError, RuntimeError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    homes = [home]
    if home.parent.name == "snapshots":  # the hub's cache keeps files next to its snapshots
        homes.append(home.parent.parent / "blobs")
    if not any(real.is_relative_to(home) for home in homes):
        raise ModelError(f"{path} is a link out of its folder; put the file itself there")
    if not real.is_file():
        raise ModelError(f"{path} is not a file")
    return path


def read_json(path: Path) -> dict[str, Any]:
    """The mapping in a JSON file; ModelError if the file has none or is too large."""
    try:
        if path.stat().st_size > LARGEST_JSON:
            raise ModelError(f"{path} has more than {LARGEST_JSON} bytes; that is not a config")
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path} is not a JSON object")
    return content


INDEX = "model.safetensors.index.json"
MODEL_WEIGHTS = ("model.safetensors", INDEX)
# Files that only heads have come first: a target may be in the same folder.
HEAD_WEIGHTS = (
    *("medusa_lm_head.safetensors", "medusa_lm_head.pt"),
    *MODEL_WEIGHTS,
    "pytorch_model.bin",
)
DOWNLOAD = "download the whole model"
ADAPTER_WEIGHTS, ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"
MERGE = (
    "merge it into its model with peft (merge_and_unload, save_pretrained), and name that folder"
)
_NUMBERED = re.compile(r"model-(\d{1,5})-of-(\d{1,5})\.safetensors")
_LARGEST_HEADER = 100_000_000  # the format's own limit
_SHARD = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*\.safetensors")
_BITS = {
    **{"F64": 64, "I64": 64, "U64": 64, "C64": 64, "F32": 32, "I32": 32, "U32": 32},
    **{"F16": 16, "BF16": 16, "I16": 16, "U16": 16, "I8": 8, "U8": 8, "BOOL": 8},
    **{"F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4},
}
_WHOLE = {"I64": "q", "I32": "i", "I16": "h", "I8": "b", "U8": "B", "BOOL": "?"}


class TensorHeader(NamedTuple):
    dtype: str  # as the format names it: F32, BF16, I64 ...
    shape: tuple[int, ...]
    file: Path
    begin: int  # offset of its bytes in the file
    nbytes: int

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)

    def is_floating_point(self) -> bool:
        return self.dtype.startswith(("F", "BF"))

    def tolist(self) -> list[int]:
        """The integers of a small tensor; TypeError for other dtypes. OSError."""
        if self.dtype not in _WHOLE:
            raise TypeError(self.dtype)
        with self.file.open("rb") as opened:
            opened.seek(self.begin)
            read = opened.read(self.nbytes)
        return list(struct.unpack(f"<{self.num_elements}{_WHOLE[self.dtype]}", read))


def is_embedding(name: str) -> bool:
    """Whether a tensor's name is that of a token embedding."""
    return name.endswith(("embed_tokens.weight", "embed_in.weight", "wte.weight"))


def is_head(name: str) -> bool:
    """Whether a tensor's name is that of the output head over the vocabulary."""
    return name.endswith(("lm_head.weight", "embed_out.weight"))


def read_headers(file: Path) -> dict[str, TensorHeader]:
    """Every tensor of a file by name; ModelError if the header is invalid."""
    try:
        with file.open("rb") as opened:
            start = opened.read(8)
            if start == b"version ":
                raise ModelError(f"{file} is a Git LFS pointer, not weights: run `git lfs pull`")
            length = int.from_bytes(start, "little")
            if not 0 < length <= _LARGEST_HEADER:
                raise ModelError(f"{file} cannot be read: its header would have {length} bytes")
            header = json.loads(opened.read(length))
            size = opened.seek(0, 2)
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{file} cannot be read: {error}") from error
    if not isinstance(header, dict):
        raise ModelError(f"{file} cannot be read: its header is not a mapping")
    return {
        name: _tensor(file, name, entry, first=8 + length, size=size)
        for name, entry in header.items()
        if name != "__metadata__"
    }


def weights_headers(folder: Path, names: tuple[str, ...]) -> dict[str, TensorHeader] | None:
    """The tensors in the first of these files that exists, which may be an index; None if none
    exists. ModelError."""
    for name in names:
        file = local_file(folder, name)
        if file is not None:
            if name == INDEX:
                return _of_index(file)
            tensors = read_headers(file)
            if name == MODEL_WEIGHTS[0]:
                _require_one_set(file, tensors)
            return tensors
    return None


def _require_one_set(file: Path, tensors: Mapping[str, TensorHeader]) -> None:
    """Raise ModelError if shards of an index next to model.safetensors have other tensors:
    libraries read the file, and serving engines the shards. Shards without files and tensors whose
    first bytes are equal do not count."""
    folder, index = file.parent, local_file(file.parent, INDEX)
    shards = set(read_index(index).values()) if index else set()
    if index is None or shards == {file.name} or not all((folder / n).exists() for n in shards):
        return
    in_shards = _of_index(index)
    for name in sorted({*tensors, *in_shards}):
        whole, other = tensors.get(name), in_shards.get(name)
        if whole is None or other is None or not same_bytes(whole, other, num_pieces=1):
            raise ModelError(
                f"{folder}: {file.name} and the shards of {INDEX} are two sets of weights ({name} "
                f"differs): transformers reads {file.name}, serving engines the shards; move the "
                "outdated set to another folder"
            )


def adapter_file(folder: Path) -> str | None:
    """The name of a LoRA adapter's weights in the folder; None if it has none."""
    names = (ADAPTER_WEIGHTS, "adapter_model.bin")
    return next((name for name in names if local_file(folder, name)), None)


def lacking_weights(folder: Path, names: tuple[str, ...]) -> str:
    """Why none of these files exists in a folder, by the files that it has, and what to do."""
    weight_files = sorted(path.name for path in folder.glob("*.safetensors"))
    if ADAPTER_WEIGHTS in weight_files:
        return f"only a LoRA adapter is here, {ADAPTER_WEIGHTS}; {MERGE}"
    numbers = [_NUMBERED.fullmatch(name) for name in weight_files]
    shards = {int(number[1]): int(number[2]) for number in numbers if number}
    if shards:
        total, first = max(shards.values()), next(m[0] for m in numbers if m)
        if missing := sorted({*range(1, total + 1)} - shards.keys()):
            return f"{first} is here, and shard {missing[0]} of {total} is missing; {DOWNLOAD}"
        return (
            f"all {total} shards are here ({first} ...), and {INDEX} is missing; download that file"
        )
    if weight_files:
        return (
            f"{weight_files[0]} is here, and model.safetensors is missing; if that file has "
            f"all weights, rename it to model.safetensors, else {DOWNLOAD}"
        )
    if names == MODEL_WEIGHTS:
        return f"model.safetensors is missing; {DOWNLOAD}"
    return f"no weights found; one of {', '.join(names)} is read"


def read_index(index: Path) -> dict[str, str]:
    """The file name of each tensor in an index; the files need not exist. ModelError."""
    files = read_json(index).get("weight_map")
    if not isinstance(files, dict) or not files:
        raise ModelError(f"{index} has no weight_map")
    for file in set(map(str, files.values())):
        if not _SHARD.fullmatch(file):
            raise ModelError(f"{index} names the file {file[:80]!r}; only NAME.safetensors is read")
    return {name: str(file) for name, file in files.items()}


def same_bytes(header: TensorHeader, other: TensorHeader, num_pieces: int | None = None) -> bool:
    """Whether two tensors, or their first `num_pieces` of 4 MiB, are bitwise equal; OSError."""
    if (header.dtype, header.shape, header.nbytes) != (other.dtype, other.shape, other.nbytes):
        return False
    pairs = zip(_pieces(header), _pieces(other), strict=True)
    return all(a == b for a, b in islice(pairs, num_pieces))


def _of_index(index: Path) -> dict[str, TensorHeader]:
    """All tensors in the files of an index: libraries also read those that it does not name."""
    files = read_index(index)
    headers: dict[str, TensorHeader] = {}
    for name in sorted(set(files.values())):
        file = local_file(index.parent, name)
        if file is None:
            raise ModelError(f"{index}: the file {name} is missing; download the whole model")
        of_shard = read_headers(file)
        for twice in sorted(of_shard.keys() & headers.keys()):
            if not same_bytes(of_shard[twice], headers[twice], num_pieces=1):
                raise ModelError(
                    f"{index.parent}: {twice} differs in {headers[twice].file.name} and {name}: "
                    "transformers reads it from the last file, and serving engines from the one "
                    f"that {INDEX} names; save the model with one of them"
                )
        headers |= of_shard
    if lacking := sorted(files.keys() - headers.keys()):
        raise ModelError(f"{index} names {lacking[0]}, and no file has it")
    return headers


def _tensor(file: Path, name: str, entry: Any, *, first: int, size: int) -> TensorHeader:
    try:
        dtype, shape = str(entry["dtype"]), tuple(entry["shape"])
        begin, end = entry["data_offsets"]
        if not all(type(number) is int for number in (*shape, begin, end)):
            raise TypeError("shape and data_offsets must be integers")
        bits = math.prod(shape) * _BITS[dtype]
        is_right = min(shape, default=0) >= 0 <= begin and 8 * (end - begin) == bits
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{file} cannot be read: {name}: {error!r}") from error
    if is_right and first + end > size:
        raise ModelError(f"{file} ends before its tensors do ({name}); download it again")
    if not is_right:
        raise ModelError(f"{file} cannot be read: {name}: {dtype} {shape} at {begin} to {end}")
    return TensorHeader(dtype, shape, file, first + begin, end - begin)


def _pieces(tensor: TensorHeader, most: int = 2**22) -> Iterator[bytes]:
    with tensor.file.open("rb") as opened:
        opened.seek(tensor.begin)
        for start in range(0, tensor.nbytes, most):
            yield opened.read(min(most, tensor.nbytes - start))
