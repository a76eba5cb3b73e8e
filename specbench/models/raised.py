"""Whose error is it? The device's, a model's own code's, or ours."""

from types import FrameType
from typing import Any, NamedTuple

import torch

from specbench.errors import DeviceLostError, SpecbenchError, first_line

# Errors of CUDA and its libraries have no class of their own in every version of torch.
_SAID_BY_CUDA = ("CUDA error", "CUDA driver error", "cuDNN error", "cuDNN Frontend error")
_PACKAGES = ("transformers", "transformers_modules")  # the latter: a repository's own code


def is_of_device(error: BaseException) -> bool:
    """Whether CUDA or one of its libraries failed, and not our code."""
    return isinstance(error, torch.AcceleratorError) or any(
        words in str(error) for words in _SAID_BY_CUDA
    )


def raise_if_device_lost(error: BaseException) -> None:
    """DeviceLostError if the device fails at a call that asks nothing of it.

    After an illegal address or an assert in a kernel, CUDA answers every call with the same error
    until the process ends.
    """
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        said = f"the GPU fails at everything since: {first_line(error)}"
        raise DeviceLostError(said) from error


def failure_reason(error: Exception) -> str:
    """Why an implementation that was tried is out, for a table of candidates.

    Compilers and libraries raise exceptions of any class. DeviceLostError if the device is lost.
    """
    raise_if_device_lost(error)
    if isinstance(error, SpecbenchError):
        return first_line(error)
    return f"it raises {type(error).__name__}: {first_line(error)}"


class Raised(NamedTuple):
    """An error of a model's own code."""

    model: str  # the name of its class
    words: str


def raised_by_model(error: BaseException) -> Raised | None:
    """What a model's own code raised; None for our errors, the device's and lack of memory."""
    if isinstance(error, SpecbenchError | torch.OutOfMemoryError) or is_of_device(error):
        return None
    frames: list[FrameType] = []
    trace = error.__traceback__
    while trace is not None:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    own = [frame for frame in frames if _package(frame) in _PACKAGES]
    if not own:
        return None
    owners = (type(f.f_locals["self"]).__name__ for f in own if _is_module(f.f_locals.get("self")))
    name = next(owners, "the model")
    return Raised(name, f"its code raises {type(error).__name__}: {first_line(error)}")


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _is_module(value: Any) -> bool:
    return isinstance(value, torch.nn.Module)
