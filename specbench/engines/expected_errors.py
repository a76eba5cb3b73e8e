"""What an engine, a machine or a model may refuse, and whose errors are taken for a refusal."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from specbench.errors import (
    CompatibilityError,
    DeviceError,
    ModelError,
    UsageError,
    WorkloadError,
    first_line,
)
from specbench.files.config import ELSEWHERE
from specbench.models.library_errors import is_of_device, model_failure, raise_if_device_lost

# A refusal is a stored result, and the rest of the run continues.
EXPECTED_ERRORS = (
    *(ModelError, CompatibilityError, UsageError, WorkloadError, DeviceError),
    torch.OutOfMemoryError,
)


@contextmanager
def errors_translated() -> Iterator[None]:
    """Also raise ModelError if the model's own code fails inside the block."""
    with device_errors_translated():
        try:
            yield
        except Exception as error:
            if failure := model_failure(error):
                raise ModelError(f"{failure.model}: {failure.words}; {ELSEWHERE}") from error
            raise


@contextmanager
def device_errors_translated() -> Iterator[None]:
    """DeviceError where the device fails at what is done inside.

    DeviceLostError where it fails at everything since. Lack of memory stays as it is, and so do
    errors of our own.
    """
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        if not is_of_device(error):
            raise
        raise_if_device_lost(error)
        raise DeviceError(first_line(error)) from error
