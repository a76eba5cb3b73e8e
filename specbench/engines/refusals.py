"""What an engine, a machine or a model may refuse, and whose errors are taken for a refusal."""

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
from specbench.model_files.attention import ELSEWHERE
from specbench.models.raised import is_of_device, raised_by_model

# A refusal is a stored result, and the rest of the run continues.
REFUSALS = (
    *(ModelError, CompatibilityError, UsageError, WorkloadError, DeviceError),
    torch.OutOfMemoryError,
)


@contextmanager
def failures_told() -> Iterator[None]:
    """As `device_errors_told`, and ModelError where a model's own code fails at what is done."""
    with device_errors_told():
        try:
            yield
        except Exception as error:
            if raised := raised_by_model(error):
                raise ModelError(f"{raised.model}: {raised.words}; {ELSEWHERE}") from error
            raise


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


def _is_lost() -> bool:
    """Whether the device fails at a call that asks nothing of it."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False
