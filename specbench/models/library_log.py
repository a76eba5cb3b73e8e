"""Silences log lines of libraries that a user cannot act on, without importing them early."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

# They warn of every kernel of torchao that is made for another device.
_OF_OTHER_DEVICES = ("torchao", "torch.utils._pytree")
_KERNEL_ADVICE = "transformers.integrations.hub_kernels"  # which packages to install for a hybrid


def silence() -> None:
    """For a whole process, before it imports them."""
    for name in _OF_OTHER_DEVICES:
        logging.getLogger(name).setLevel(logging.ERROR)
    logging.getLogger(_KERNEL_ADVICE).addFilter(_can_be_followed)


@contextmanager
def quiet() -> Iterator[None]:
    """Inside, transformers logs only errors."""
    from transformers.utils import logging as library  # noqa: PLC0415 - half a second

    verbosity = library.get_verbosity()
    library.set_verbosity_error()
    try:
        yield
    finally:
        library.set_verbosity(verbosity)


def _can_be_followed(_: logging.LogRecord) -> bool:
    """The advised packages only have kernels for GPUs."""
    import torch  # noqa: PLC0415 - it advises what has torch

    return torch.cuda.is_available()
