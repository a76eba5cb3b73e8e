"""What an engine, a machine or a model may refuse, and what CUDA's errors are taken for."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from specbench.errors import (
    CompatibilityError,
    DeviceError,
    DeviceLostError,
    ModelError,
    UsageError,
    WorkloadError,
    first_line,
)

# A refusal is a stored result, and the rest goes on.
REFUSALS = (
    *(ModelError, CompatibilityError, UsageError, WorkloadError, DeviceError),
    torch.OutOfMemoryError,
)
# Errors of CUDA and its libraries have no class of their own in every version of torch.
_SAID_BY_CUDA = ("CUDA error", "CUDA driver error", "cuDNN error", "cuDNN Frontend error")


@contextmanager
def device_errors_told() -> Iterator[None]:
    """DeviceError where the device fails at what is done inside.

    DeviceLostError where it fails at everything since, as after an illegal address or an assert
    in a kernel: CUDA answers every call with the same error until the process ends. Lack of
    memory stays as it is, and so do errors of our own.
    """
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        if not is_of_device(error):
            raise
        if _is_lost():
            raise DeviceLostError(
                f"the GPU fails at everything since: {first_line(error)}"
            ) from error
        raise DeviceError(first_line(error)) from error


def is_of_device(error: RuntimeError) -> bool:
    """Whether CUDA or one of its libraries failed, and not our code."""
    return isinstance(error, torch.AcceleratorError) or any(
        words in str(error) for words in _SAID_BY_CUDA
    )


def _is_lost() -> bool:
    """Whether the device fails at a call that asks nothing of it."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False
