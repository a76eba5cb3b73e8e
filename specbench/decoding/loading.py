"""Loads a model from a local folder or the hub's cache: safetensors only, no remote code."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from specbench.errors import ModelError, ModelMemoryError

# Its bars would break into the program's own progress.
disable_progress_bar()

_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}
_HASHED_WHOLE = 4 * 2**30  # larger checkpoints are known by their shape, see _weights_sha256
_EDGE = 2**20
_REFUSALS = (OSError, ValueError, ImportError, KeyError, RuntimeError, SafetensorError)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSource:
    """Where a model comes from and how it is to be loaded; `location` is a folder or hub id."""

    location: str
    revision: str | None = None
    dtype: str = "auto"
    device_map: str | None = None
    quantization: str | None = None
    trust_remote_code: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedModel:
    """A model on its device, in evaluation mode, with what identifies its weights."""

    model: Any
    dtype: str
    num_parameters: int
    weights_bytes: int
    revision: str | None
    content_sha256: str


def load_model(source: ModelSource, device: torch.device) -> LoadedModel:
    """The model in evaluation mode.

    dtype `auto` is float32 on a CPU, where half precision breaks the identity of texts and is
    not faster everywhere, and the checkpoint's own on a GPU. Raises ModelError with what to do.
    """
    if source.quantization is not None:
        raise ModelError(
            f"{source.location}: quantization {source.quantization} is not in this version; "
            "leave the key out, or name a checkpoint that is stored quantised"
        )
    auto: Any = torch.float32 if device.type == "cpu" else "auto"
    placement = source.device_map or str(device)
    config = _load_config(source)
    try:
        model = AutoModelForCausalLM.from_pretrained(
            source.location,
            config=config,
            revision=source.revision,
            dtype=_DTYPES.get(source.dtype, auto),
            device_map=source.device_map,
            use_safetensors=True,
            trust_remote_code=source.trust_remote_code,
        )
        if source.device_map is None:
            model = model.to(device)
    except torch.OutOfMemoryError as error:
        raise ModelMemoryError(
            f"{source.location} does not fit on {placement}: {_first_line(error)}; choose a "
            "smaller model or dtype, or spread it with device_map: auto"
        ) from error
    except _REFUSALS as error:
        raise ModelError(f"{source.location}: cannot be loaded: {_advice(error)}") from error
    model.requires_grad_(False)
    model.eval()
    return LoadedModel(
        model=model,
        dtype=str(model.dtype).removeprefix("torch."),
        num_parameters=sum(p.numel() for p in model.parameters()),
        weights_bytes=_bytes_of(model),
        revision=getattr(config, "_commit_hash", None),
        content_sha256=_weights_sha256(source, getattr(config, "_commit_hash", None)),
    )


def planned_dtype(source: ModelSource, device: torch.device) -> str:
    """The dtype that `load_model` will use, read from the config alone; ModelError as there."""
    if source.dtype != "auto":
        return source.dtype
    if device.type == "cpu":
        return "float32"
    dtype = getattr(_load_config(source), "dtype", None)
    return str(dtype or torch.float32).removeprefix("torch.")


def _load_config(source: ModelSource) -> Any:
    try:
        return AutoConfig.from_pretrained(
            source.location, revision=source.revision, trust_remote_code=source.trust_remote_code
        )
    except (OSError, ValueError, ImportError, KeyError) as error:
        raise ModelError(f"{source.location}: cannot be loaded: {_advice(error)}") from error


def eos_ids(model: Any) -> tuple[int, ...]:
    """Every end-of-text id that the model's generation settings name."""
    ids = model.generation_config.eos_token_id
    if ids is None:
        ids = model.config.get_text_config().eos_token_id
    if ids is None:
        return ()
    return tuple(ids) if isinstance(ids, list) else (ids,)


def _bytes_of(model: Any) -> int:
    """Bytes of parameters and buffers; tied tensors count once."""
    tensors = {t.data_ptr(): t.nbytes for t in (*model.parameters(), *model.buffers())}
    return sum(tensors.values())


def _advice(error: Exception) -> str:
    text = _first_line(error)
    if "trust_remote_code" in str(error):
        return f"{text}; set trust_remote_code: true only if you trust its authors' code"
    if "safetensors" in str(error):
        return f"{text}; pickled weights are not read, convert them to safetensors first"
    if "local" in text or "connect" in text or "offline" in text.lower():
        return f"{text}; download it once with `hf download`, or give a folder (./my-model)"
    return text


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _weights_sha256(source: ModelSource, commit: str | None) -> str:
    """A hash that changes with the weights.

    Local folder: of all safetensors files; above 4 GiB of each file's name, size and its first
    and last MiB, marked `edges:`. Hub: of the id and commit, marked `commit:`.
    """
    folder = Path(source.location)
    if not folder.is_dir():
        return "commit:" + hashlib.sha256(f"{source.location}@{commit}".encode()).hexdigest()
    files = sorted(folder.glob("*.safetensors"))
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
