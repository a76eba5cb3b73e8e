"""Reads the keys of a model, or a word of the command line, as a ModelSpec."""

import re
from collections.abc import Callable
from os.path import normpath
from pathlib import Path
from typing import NoReturn

from specbench.errors import ModelError, UsageError
from specbench.files.headers import ADAPTER_CONFIG, MERGE, read_json
from specbench.files.model_spec import GGUF_ADVICE, ModelSpec
from specbench.inputs.strict_yaml import Value, YamlMapping, number, one_of, whole
from specbench.settings.words import DTYPES, nearest
from specbench.shipped import DEMO_MODELS, PACKAGE

MODEL_DTYPES = ("auto", *DTYPES)
QUANTIZATIONS = ("int8", "int4", "fp8")
MODEL_KEYS = (
    "model",
    "revision",
    "dtype",
    "device_map",
    "quantization",
    "trust_remote_code",
    "weights_gib",
    "vocab_size",
)

_LOADING_KEYS = ("revision", "dtype", "device_map", "quantization", "trust_remote_code")

# Ids that the hub accepts: parts of at most 96 characters, no "--", no "..", no ".git".
_PART = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"
_HUB_ID = re.compile(rf"(?!.*(?:--|\.\.|\.git$))(?:{_PART}/)?{_PART}")
_SHAPES = PACKAGE / "shapes"
_DEVICE_MAP = re.compile(r"auto|balanced|sequential|cpu|cuda(:[0-9]{1,3})?")


def gguf_complaint(source: str, folder: Path = Path()) -> str | None:
    """Advice for a GGUF file, or a folder or repository of them; None for other sources."""
    path = folder / Path(source).expanduser()
    try:
        is_model = (path / "config.json").exists()
        is_gguf = source.lower().endswith((".gguf", "-gguf")) or any(path.glob("*.gguf"))
    except (OSError, ValueError):  # too long to be a path
        return None
    if is_model or not is_gguf:
        return None
    is_missing = source.lower().endswith(".gguf") and not path.exists()
    return f"the file {source} does not exist" if is_missing else f"{source} {GGUF_ADVICE}"


def _gguf_file(source: str, folder: Path = Path()) -> Path | None:
    """The path of an existing GGUF file; None for other sources."""
    path = (folder / Path(source).expanduser()).absolute()
    return path if path.suffix.lower() == ".gguf" and path.is_file() else None


def without_owner(source: str) -> str:
    """A model's name without its owner or folder."""
    return source.rstrip("/").rsplit("/", 1)[-1]


def model_spec(source: str) -> ModelSpec:
    """The model of this name on the command line; UsageError if it cannot be one."""
    return ModelSpec(source=source, folder=_model_folder(source, None))


def read_model_spec(keys: YamlMapping, dtype: str, device_map: str | None) -> ModelSpec:
    """The model that a section describes; dtype and device_map are its defaults."""
    spec = ModelSpec(
        source=keys.must("model", Value.text),
        folder=keys.must("model", lambda value: _model_folder(value.text(), value)),
        revision=keys.may("revision", Value.text, None),
        dtype=keys.may("dtype", one_of(MODEL_DTYPES), dtype),
        device_map=keys.may("device_map", read_device_map, device_map),
        quantization=keys.may("quantization", one_of(QUANTIZATIONS), None),
        trust_remote_code=keys.may("trust_remote_code", Value.flag, False),
        weights_gib=keys.may("weights_gib", number(above=0), None),
        vocab_size=keys.may("vocab_size", whole(1, 2**31 - 1), None),
    )
    if spec.is_gguf and (given := [key for key in _LOADING_KEYS if key in keys.entries]):
        keys.entries[given[0]].fail("a GGUF file is served as it is stored; leave this key out")
    return spec


def read_device_map(value: Value) -> str:
    """A placement that `from_pretrained` accepts by name, or one device."""
    device_map = value.text()
    if not _DEVICE_MAP.fullmatch(device_map):
        value.fail(
            f"unknown {device_map!r}; allowed: auto, balanced, sequential, cpu, cuda, cuda:N"
        )
    return device_map


def read_folder(value: Value) -> Path:
    """A folder that exists; a relative one is relative to the file's folder."""
    written = value.text()
    path = Path.home() / written[2:] if written.startswith("~/") else Path(written)
    folder = Path(normpath(value.file.parent.resolve() / path))  # without `..`, for messages
    try:
        is_there = folder.is_dir()
    except OSError as wrong:  # a name too long, a parent that may not be read
        value.fail(f"the folder {written[:80]!r} cannot be read: {wrong.strerror}")
    if not is_there:
        value.fail(f"no folder {written}; a relative one starts at the folder of {value.file.name}")
    return folder


def _model_folder(source: str, value: Value | None) -> Path | None:
    """The folder or GGUF file of a model; None for a hub id.

    `value` is the source in a file, to whose folder paths are relative; None: it was typed.
    """
    fail, base = (_fail, Path()) if value is None else (value.fail, value.file.parent)
    if file := _gguf_file(source, base):
        return file
    if complaint := gguf_complaint(source, base):
        fail(complaint)
    kind, _, name = source.partition(":")
    if kind == "demo" and name:
        return _shipped_model(name, DEMO_MODELS, "demo model", fail)
    if kind == "shape" and name and value is not None:
        return _shipped_model(name, _SHAPES, "shape", fail)
    is_hub_id = _HUB_ID.fullmatch(source) is not None
    if source.startswith(("./", "../", "/", "~/")) or (not is_hub_id and _is_folder(base / source)):
        folder = Path(source).expanduser().absolute() if value is None else read_folder(value)
        if not _is_folder(folder):
            fail(f"the folder {source} does not exist")
        if not _holds_a_model(folder):
            fail(
                _adapter_complaint(source, folder)
                or f"the folder {source} has no config.json, so it is not a model"
            )
        return folder
    if not is_hub_id:
        kinds = "a Hugging Face id (owner/name), a folder that exists"
        kinds = (
            f"a target in pairings.yaml, {kinds} or a demo model (demo:NAME)"
            if value is None
            else f"{kinds}, a demo model (demo:NAME) or a shape (shape:NAME)"
        )
        fail(f"{source!r} is not {kinds}")
    if _holds_a_model(base / source):
        return (base / source).absolute()
    if complaint := _adapter_complaint(source, base / source) or _folder_complaint(source, base):
        fail(complaint)
    return None


def _adapter_complaint(source: str, folder: Path) -> str | None:
    """Why a folder without a model that has a LoRA adapter is refused; None for another folder."""
    if not (folder / ADAPTER_CONFIG).is_file():
        return None
    try:
        base = read_json(folder / ADAPTER_CONFIG).get("base_model_name_or_path")
    except ModelError:
        base = None
    of = f" of {base[:200]}" if isinstance(base, str) and base else ""
    return f"the folder {source} is a LoRA adapter{of}, not a model; {MERGE}"


def _fail(reason: str) -> NoReturn:
    raise UsageError(reason)


def _folder_complaint(hub_id: str, folder: Path) -> str | None:
    """Why a hub id is rejected because a folder has its name; None if it is accepted.

    Loading prefers a folder in the working folder to a hub id of the same name, so such an id is
    always refused.
    """
    if _is_folder(Path(hub_id)):
        return (
            f"{hub_id!r} is a hub id, but a folder of that name here would be read instead; name a "
            "folder with a config.json, or rename this one to use the hub's model"
        )
    if _is_folder(folder / hub_id) and not _is_in_hub_cache(hub_id):
        return (
            f"{hub_id!r} is a hub id, and also a folder next to the file; write ./{hub_id} for "
            "the folder"
        )
    return None


def _is_in_hub_cache(hub_id: str) -> bool:
    from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415 - half a second

    return isinstance(try_to_load_from_cache(hub_id, "config.json"), str)


def _shipped_model(name: str, folder: Path, noun: str, fail: Callable[[str], NoReturn]) -> Path:
    known = sorted(path.parent.name for path in folder.glob("*/config.json"))
    if known and name not in known:  # if there are none at all (before training), loading fails
        fail(f"no {noun} {name!r}{nearest(name, known)}; there are: {', '.join(known)}")
    return folder / name


def _holds_a_model(folder: Path) -> bool:
    try:
        return (folder / "config.json").is_file()
    except OSError:  # too long to be a path
        return False


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # too long to be a path
        return False
