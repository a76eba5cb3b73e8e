"""Errors that are stored as a result, and the translation of library errors into them."""

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

# Each is stored as a failure, and the rest of the run continues.
EXPECTED_ERRORS = (
    *(ModelError, CompatibilityError, UsageError, WorkloadError, DeviceError),
    torch.OutOfMemoryError,
)


@contextmanager
def errors_translated() -> Iterator[None]:
    """The same as `device_errors_translated`, and ModelError if a model's own code fails."""
    with device_errors_translated():
        try:
            yield
        except Exception as error:
            if failure := model_failure(error):
                raise ModelError(f"{failure.model}: {failure.words}; {ELSEWHERE}") from error
            raise


@contextmanager
def device_errors_translated() -> Iterator[None]:
    """Raise DeviceError if the device fails inside the block.

    DeviceLostError if the device then fails at everything else. Lack of memory and specbench's
    errors pass unchanged.
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
