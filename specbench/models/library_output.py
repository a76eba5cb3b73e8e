"""Output of libraries: log lines that a user cannot act on are silenced, without importing them
early; progress of slow steps (downloading, reading weights, compiling) goes to a display.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

# These loggers warn about every kernel of torchao that was built for another device.
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


listeners: list[Callable[[str], None]] = []


def report_progress(text: str) -> None:
    """Show the progress of a slow step in place of the last text; empty once it is over."""
    for listener in tuple(listeners):
        listener(text)


def report_compiling() -> None:
    """Report from now on each kernel that Triton compiles, not those that it has in its cache."""
    from triton import knobs  # noqa: PLC0415 - only if its kernels run

    num_compiled = 0

    def count(*, src: Any, cache_hit: bool, **_: object) -> None:
        nonlocal num_compiled
        if not cache_hit:
            num_compiled += 1
            kernels = "kernel" if num_compiled == 1 else "kernels"
            report_progress(
                f"{num_compiled} {kernels} compiled, the last {src.name}; cached for the next run"
            )

    if knobs.compilation.listener is None:  # else it is this, or a profiler's
        knobs.compilation.listener = count
