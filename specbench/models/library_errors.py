"""Errors of libraries: their origin, their translation to specbench's, and advice for users."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from subprocess import SubprocessError
from traceback import walk_tb
from types import FrameType
from typing import NamedTuple

import torch

from specbench.errors import (
    CompatibilityError,
    DeviceError,
    DeviceLostError,
    ModelError,
    ModelMemoryError,
    SpecbenchError,
    UsageError,
    WorkloadError,
    first_line,
)
from specbench.files.config import ELSEWHERE
from specbench.files.model import TRUST_CODE, UNKNOWN_TYPE
from specbench.files.tokenizer import NO_TOKENIZER

# Errors of CUDA and its libraries do not have their own class in every version of torch.
_CUDA_ERRORS = (
    *("CUDA error", "CUDA driver error", "CUDA NVRTC error"),
    *("cuDNN error", "cuDNN Frontend error", "Triton Error [CUDA]"),
)
# Only torch's allocator of GPU memory has its own class of error.
_NO_HOST_MEMORY = "DefaultCPUAllocator: can't allocate memory"
_NO_MEMORY = (_NO_HOST_MEMORY, "out of memory", "ALLOC_FAILED")
_WITHOUT_TRITON = "choose --attention-backend torch, or --model-impl stock"
_PACKAGES = ("transformers", "transformers_modules")  # the latter: code from a repository


def is_of_device(error: BaseException) -> bool:
    """Whether CUDA or one of its libraries failed, rather than Python code."""
    return isinstance(error, torch.AcceleratorError) or any(
        words in str(error) for words in _CUDA_ERRORS
    )


def is_of_our_kernel(error: Exception) -> bool:
    """Whether Triton refused a kernel that no model's own code launched. Its compilers, driver and
    cache may raise any exception."""
    if isinstance(error, SpecbenchError) or _frames(error, *_PACKAGES):
        return False
    return type(error).__module__.startswith("triton.") or bool(_frames(error, "triton"))


def _frames(error: BaseException, *packages: str) -> list[FrameType]:
    """The frames of these packages in the traceback of an error, the innermost last."""
    frames = (frame for frame, _ in walk_tb(error.__traceback__))
    return [
        frame
        for frame in frames
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] in packages
    ]


def raise_if_device_lost(error: BaseException) -> None:
    """DeviceLostError if even a synchronization of the device fails.

    After an illegal address or an assert in a kernel, every CUDA call returns the same error until
    the process ends.
    """
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        message = f"the GPU has failed at everything since: {first_line(error)}"
        raise DeviceLostError(message) from error


def failure_reason(error: Exception) -> str:
    """Why a candidate implementation failed, for a table of candidates.

    Compilers and libraries may raise any exception. DeviceLostError if the device is lost.
    """
    raise_if_device_lost(error)
    if isinstance(error, SpecbenchError):
        return first_line(error)
    return f"it raises {type(error).__name__}: {first_line(error)}"


def is_temporary(error: Exception) -> bool:
    """Whether the same work may succeed later: memory, a file or a program was missing."""
    kinds = (torch.OutOfMemoryError, MemoryError, OSError, SubprocessError, ImportError)
    return isinstance(error, kinds) or any(words in str(error) for words in _NO_MEMORY)


class ModelFailure(NamedTuple):
    """An error of a model's own code."""

    model: str  # the name of its class
    words: str


def model_failure(error: BaseException) -> ModelFailure | None:
    """The failure if a model's own code raised it; None for specbench, device, out of memory."""
    if isinstance(error, SpecbenchError | torch.OutOfMemoryError) or is_of_device(error):
        return None
    model_frames = _frames(error, *_PACKAGES)
    if not model_frames:
        return None
    owners = (frame.f_locals.get("self") for frame in model_frames)
    names = (type(owner).__name__ for owner in owners if isinstance(owner, torch.nn.Module))
    name = next(names, "the model")
    return ModelFailure(name, f"its code raises {type(error).__name__}: {first_line(error)}")


# By words in transformers' messages, which are about arguments that the user does not pass.
_ADVICE = {
    "trust_remote_code": f"it comes with Python code (auto_map), which is not run; {TRUST_CODE}",
    "does not recognize this architecture": UNKNOWN_TYPE,
    "Should have a `model_type` key": UNKNOWN_TYPE,
    "ignore_mismatched_sizes": "its weights have other shapes than its config.json says; take the "
    "config.json that the weights came with",
    "not a valid model identifier": "the hub has no such model, or it is private; correct its "
    "name, or run `hf auth login` with a token that may read it",
    "cannot be loaded with `safetensors`": "it has no safetensors files, and pickled weights are "
    "not read; convert them to safetensors first",
    "backend tokenizer from one of": NO_TOKENIZER,
}
# transformers names the page of the license; a user who has accepted it still needs to log in.
_GATED = re.compile(r"gated repo[^:]*?(https?://[^\s'\"]*[^\s'\".])")
_UNREACHED = ("connect", "offline", "local directory", "local_files_only")
_PROGRAMMING = (LookupError, AttributeError, TypeError, AssertionError)


def load_advice(error: Exception) -> str:
    """The advice for an error that a library raised while it read a model's files."""
    message, text = str(error), first_line(error)
    if page := _GATED.search(message):
        return f"gated: accept its license at {page[1]}, then run `hf auth login`"
    for words, advice in _ADVICE.items():
        if words in message:
            return advice
    # The library does not check the values in its files, or says which of them contradict.
    if isinstance(error, _PROGRAMMING) or "alidation error" in text:
        return f"{text}; a value in its files is not what it should be: download it again"
    if any(words in text.lower() for words in _UNREACHED):
        return f"{text}; download it once with `hf download`, or give a folder (./my-model)"
    return text


# Errors that are stored as failures, after which the run continues.
EXPECTED_ERRORS = (
    *(ModelError, CompatibilityError, UsageError, WorkloadError, DeviceError),
    torch.OutOfMemoryError,
)


@contextmanager
def errors_translated() -> Iterator[None]:
    """Like `device_errors_translated`; also ModelError if a model's own code fails inside."""
    with device_errors_translated():
        try:
            yield
        except Exception as error:
            if failure := model_failure(error):
                raise ModelError(f"{failure.model}: {failure.words}; {ELSEWHERE}") from error
            raise


@contextmanager
def device_errors_translated() -> Iterator[None]:
    """Raise DeviceError if the device fails inside the block, or Triton refuses a kernel.

    DeviceLostError if every other call to the device then fails. ModelMemoryError without memory on
    the host; on a GPU torch's own error is not changed, nor are specbench's.
    """
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        if isinstance(error, RuntimeError) and _NO_HOST_MEMORY in str(error):
            raise ModelMemoryError(first_line(error)) from error
        if isinstance(error, RuntimeError) and is_of_device(error):
            reason = first_line(error)
        elif is_of_our_kernel(error):
            reason = f"Triton raises {type(error).__name__}: {first_line(error)}; {_WITHOUT_TRITON}"
        else:
            raise
        raise_if_device_lost(error)
        raise DeviceError(reason) from error
