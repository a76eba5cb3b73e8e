"""Loads a model from a local folder or the hub's cache: safetensors only, no remote code."""

import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import AutoConfig, PretrainedConfig
from transformers.utils.logging import disable_progress_bar, set_tqdm_hook

from specbench.errors import ModelError, ModelMemoryError, first_line
from specbench.files.head_files import Difference
from specbench.files.model import DTYPE_BYTES, is_here, open_model, refusal, require_config
from specbench.files.model_spec import ModelSpec
from specbench.fit.compatibility import require_loadable
from specbench.fit.weights import dtype_note
from specbench.fit.weights import planned_dtype as dtype_of
from specbench.models.library_errors import is_of_device, load_advice
from specbench.models.library_output import quiet, report_progress
from specbench.models.parts import keep_text_part, text_class
from specbench.models.quantization import (
    inner_tensors,
    require_packable,
    stored_format,
    unpack_compressed,
)
from specbench.models.weights import fill, make_skeleton, placing

_MAX_HASHED = 4 * 2**30  # bytes; larger checkpoints are only hashed at their edges
_EDGE = 2**20


def weights_sha256(
    location: str, commit: str | None, kinds: tuple[str, ...] = ("*.safetensors",)
) -> str:
    """A hash that changes with the weights.

    Local folder: a hash of all files of these kinds; above 4 GiB, of each file's name, size, and
    first and last MiB, with the prefix `edges:`. Hub: of id and commit, with the prefix `commit:`.
    """
    folder = Path(location)
    if not folder.is_dir():
        return "commit:" + hashlib.sha256(f"{location}@{commit}".encode()).hexdigest()
    files = sorted(file for kind in kinds for file in folder.glob(kind) if file.is_file())
    is_whole = sum(file.stat().st_size for file in files) <= _MAX_HASHED
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


def _reported(make_bar: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """A progress bar of transformers that reports its counts to the program's own progress."""
    if not args or not hasattr(args[0], "__len__"):
        return make_bar(*args, **options)

    def counted(items: Collection[Any], label: str) -> Iterator[Any]:
        for number, item in enumerate(items):
            report_progress(f"{label}: {number} of {len(items)} tensors")
            yield item
        report_progress("")

    return counted(args[0], str(options.get("desc", "loading")).lower())


# Otherwise transformers has the hub convert pickled weights, and loads them from a pull request.
os.environ["DISABLE_SAFETENSORS_CONVERSION"] = "1"
# The hub's progress bars would interrupt the program's own progress.
disable_progress_bar()
set_tqdm_hook(_reported)

_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in DTYPE_BYTES}
_NOT_SHAPE = ("_name_or_path", "_commit_hash", "transformers_version")


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedModel:
    """A model on its device, in evaluation mode, with the identity of its weights."""

    model: Any
    dtype: str
    num_parameters: int  # as in the config, even if they are packed
    weights_bytes: int  # in memory, without what bitsandbytes keeps outside of tensors
    revision: str | None
    content_sha256: str  # packed weights: the scheme, a colon, and the checkpoint's hash
    eos_ids: tuple[int, ...] = ()  # every end-of-text id in its files
    quantization: str | None = None  # scheme of packing, or format of a quantized checkpoint
    unpacked_from: str | None = None  # format of the files, if the weights are unpacked to run
    dropped: tuple[str, ...] = ()  # modules for images, video or sound, which are not used
    dtype_note: str | None = None  # if it does not run in the dtype of its files

    @property
    def notes(self) -> tuple[str, ...]:
        """Facts about how the model was loaded that a user should know."""
        notes = []
        if self.unpacked_from:
            size = next(self.model.parameters()).element_size()
            notes.append(
                f"its files are {self.unpacked_from}, which transformers unpacks here: it runs in "
                f"{self.dtype}, {size} bytes per weight; an engine that keeps it packed reads less"
            )
        if self.dtype_note:
            notes.append(self.dtype_note)
        if self.dropped:
            part = type(self.model.get_decoder()).__name__
            notes.append(
                f"the text part of {type(self.model).__name__} runs ({part}); left out: "
                + ", ".join(self.dropped)
            )
        return tuple(notes)


def load_model(spec: ModelSpec, device: torch.device, *, dummy: bool = False) -> LoadedModel:
    """Load a model in evaluation mode; `dummy` uses random weights for the config, as for a shape.

    dtype `auto` is the checkpoint's own on a GPU or if it is stored quantized, but float16 instead
    of bfloat16 on a GPU that emulates it. It is float32 on a CPU, because half precision changes
    texts and is not faster on every CPU. ModelError.
    """
    if dummy or spec.is_shape:
        return load_dummy(spec, device)
    dtype = _DTYPES[planned_dtype(spec, device)]
    files = open_model(spec)
    require_loadable(files)
    config, stored = load_config(spec), files.stored_format
    is_silent = stored is not None and spec.dtype == "auto" and files.field("dtype") is None
    is_silent &= dtype is _DTYPES[files.stored_dtype]
    unpack_compressed(config, device)
    placement = spec.device_map
    if stored is not None and device.type != "cpu":
        placement = placement or str(device)  # most stored formats cannot be moved later
    with refusing(spec, placement or str(device), stored):
        auto = text_class(config, trust_remote_code=spec.trust_remote_code)
        if spec.quantization is not None:
            require_packable(spec.quantization, device, dtype)
        with placing(None if placement else device, spec.quantization):
            model, report = auto.from_pretrained(
                spec.location,
                config=config,
                revision=spec.revision,
                dtype="auto" if is_silent else dtype,
                device_map=placement,
                use_safetensors=True,
                trust_remote_code=spec.trust_remote_code,
                output_loading_info=True,
            )
        difference, dropped = take_text_part(model, report)  # of its own code: known only now
        if stored is not None:
            difference = difference.of_format()
        if difference.reason is not None:
            raise ModelError(refusal(difference))
        if placement is None:
            model = model.to(device)  # moves the buffers
        if stored is not None:
            _run_once(model)
    commit = getattr(config, "_commit_hash", None)
    sha256 = weights_sha256(spec.location, commit)
    loaded = _loaded(model, spec, config, sha256, dropped)
    return replace(loaded, unpacked_from=None if loaded.quantization else stored)


def take_text_part(model: Any, account: Mapping[str, Any]) -> tuple[Difference, tuple[str, ...]]:
    """Remove the towers of a multimodal model; returns how its files differ from what it reads, by
    transformers' account of loading them, and the names of the towers."""
    buffers = {name for name, _ in model.named_buffers()}
    every, prefix = model.state_dict(), f"{model.base_model_prefix}."
    bare = {
        name.removeprefix(prefix).partition(".")[0] for name in every if name.startswith(prefix)
    }
    unexpected = {  # those of a base model have no prefix
        f"{prefix}{name}" if name.partition(".")[0] in bare else name
        for name in account["unexpected_keys"]
    }
    dropped = keep_text_part(model)
    weights = dict(model.named_parameters())  # without buffers, which the config defines
    weights |= {n: b for n, b in model.named_buffers() if n.endswith(".weight")}  # but of BitNet
    difference = Difference.of_keys(
        read={*model.state_dict()},
        unexpected=unexpected - buffers,
        missing=weights.keys() & set(account["missing_keys"]),
        other=[
            *(f"{name} is {tuple(s)}, not {tuple(m)}" for name, s, m in account["mismatched_keys"]),
            *(f"{name} cannot be converted" for name in account.get("conversion_errors", ())),
        ],
    )
    return difference, dropped


def is_packed(model: Any) -> bool:
    """Whether any tensor does not contain plain floating-point numbers."""
    tensors = (*model.parameters(), *model.buffers())
    return any(t.dtype not in _DTYPES.values() or type(t.data) is not Tensor for t in tensors)


@torch.no_grad()
def _run_once(model: Any) -> None:
    """Run one token, so that missing kernels raise an error now, and formats that the first forward
    unpacks are unpacked before their bytes are counted."""
    model.eval()
    model(input_ids=torch.zeros(1, 1, dtype=torch.long, device=model.device), use_cache=False)


def load_dummy(spec: ModelSpec, device: torch.device, *, seed: int = 0) -> LoadedModel:
    """A model with seeded random weights: real speed and memory, but meaningless text. ModelError
    also if the config is of quantized weights, or of weights on several devices."""
    config = load_config(spec)
    dtype, stored = _DTYPES[planned_dtype(spec, device)], open_model(spec).stored_format
    if stored is not None or spec.device_map not in (None, device.type, str(device)):
        storage = f"weights stored as {stored}" if stored else f"device_map {spec.device_map}"
        raise ModelError(
            f"{spec.location}: dummy weights cannot stand in for {storage}; name a config of "
            "plain weights on one device (`quantization` may be set)"
        )
    with refusing(spec, str(device), stored):
        if spec.quantization is not None:
            require_packable(spec.quantization, device, dtype)
        model = make_skeleton(config, dtype, seed=seed, trust_remote_code=spec.trust_remote_code)
        dropped = keep_text_part(model)
        fill(model, device, seed=seed, scheme=spec.quantization)
    return _loaded(model, spec, config, "dummy:" + _config_sha256(config, seed), dropped)


def load_skeleton(spec: ModelSpec, dtype: str) -> Any:
    """The model without its matrices, to count them; ModelError if the config is missing."""
    config = load_config(spec)
    with refusing(spec, "meta", None):
        model = make_skeleton(config, _DTYPES[dtype], trust_remote_code=spec.trust_remote_code)
        keep_text_part(model)
        return model


def planned_dtype(spec: ModelSpec, device: torch.device) -> str:
    """The dtype that `load_model` will use; ModelError if its files cannot be downloaded."""
    if not is_here(spec):
        load_config(spec)  # downloads it
    kind: Literal["cpu", "cuda"] = "cpu" if device.type == "cpu" else "cuda"
    return dtype_of(open_model(spec), kind, None, compute_capability(device))


def compute_capability(device: torch.device) -> tuple[int, int] | None:
    """The compute capability of a GPU; None on a CPU, or if torch sees no GPU."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return None
    return torch.cuda.get_device_capability(device)


@contextmanager
def refusing(spec: ModelSpec, placement: str, stored: str | None) -> Iterator[None]:
    """Translates errors of torch and transformers to a ModelError with advice."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise ModelMemoryError(
            f"{spec.location} does not fit on {placement}: {first_line(error)}; choose a "
            "smaller model or dtype, or spread it with device_map: auto"
        ) from error
    except ModelError as error:
        raise ModelError(f"{spec.location}: {error}") from error
    except Exception as error:  # a model's own code may raise anything
        if is_of_device(error):
            raise
        kind = f" (stored as {stored})" if stored else ""
        raise ModelError(
            f"{spec.location}{kind}: cannot be loaded: {load_advice(error)}"
        ) from error


def load_config(spec: ModelSpec) -> Any:
    """The config without implementations, which may name a repository whose kernels transformers
    would download and run. ModelError, with the message of `pair` if the config is invalid."""
    if is_here(spec):
        require_config(open_model(spec))
    try:
        with quiet():
            config = AutoConfig.from_pretrained(
                spec.location,
                revision=spec.revision,
                trust_remote_code=spec.trust_remote_code,
            )
        for part in (config, config.get_text_config()):
            part.return_dict = True  # outputs are read by name here, whatever the file says
    except Exception as error:  # a config's own class may raise anything
        raise ModelError(f"{spec.location}: cannot be loaded: {load_advice(error)}") from error
    unpack_compressed(config)
    for name in ("_attn_implementation", "_experts_implementation"):
        setattr(config, name, None)
    return config


def _loaded(
    model: Any,
    spec: ModelSpec,
    config: PretrainedConfig,
    content_sha256: str,
    dropped: tuple[str, ...],
) -> LoadedModel:
    model.requires_grad_(False)
    model.eval()
    stored = stored_format(model.config) if is_packed(model) else None
    scheme = f"{spec.quantization}:" if spec.quantization else ""
    return LoadedModel(
        model=model,
        dtype=str(model.dtype).removeprefix("torch."),
        num_parameters=_num_parameters(model, spec, stored),
        weights_bytes=_bytes_of(model),
        revision=getattr(config, "_commit_hash", None),
        content_sha256=scheme + content_sha256,
        eos_ids=open_model(spec).eos_ids,
        quantization=spec.quantization or stored,
        dropped=dropped,
        dtype_note=dtype_note(open_model(spec), None, compute_capability(model.device)),
    )


def _num_parameters(model: Any, spec: ModelSpec, stored: str | None) -> int:
    """The number of parameters in the config: quantized formats pack several into one number."""
    if stored is not None:
        model = load_skeleton(spec, "float32")  # of any dtype, since only numbers are counted
    return sum(parameter.numel() for parameter in model.parameters())


@torch.no_grad()
def first_not_finite(named: Iterable[tuple[str, Tensor]]) -> str | None:
    """The name of the first tensor with NaN or infinities; packed tensors are skipped."""
    for name, tensor in named:
        is_plain = tensor.dtype in _DTYPES.values() and type(tensor.data) is Tensor
        has_values = tensor.numel() and not tensor.is_meta
        if is_plain and has_values and not torch.stack(tensor.aminmax()).isfinite().all():
            return name
    return None


def not_finite_words(model: str, name: str | None) -> str:
    """The message about a tensor with NaN or infinities; `model` is, e.g., `the target NAME`."""
    location = f", first in {name}" if name else ""
    return f"{model} holds NaN or infinities{location}: its files are damaged; download it again"


def _bytes_of(model: Any) -> int:
    """Bytes of parameters and buffers in memory; tied tensors count once."""
    tensors = (t for outer in (*model.parameters(), *model.buffers()) for t in inner_tensors(outer))
    return sum({tensor.data_ptr(): tensor.nbytes for tensor in tensors}.values())


def _config_sha256(config: PretrainedConfig, seed: int) -> str:
    """A hash of the config, without its path, and the seed: they define the random weights."""
    facts = {k: value for k, value in config.to_dict().items() if k not in _NOT_SHAPE}
    text = json.dumps({**facts, "seed": seed}, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
