"""Output of libraries: hides log lines that a user cannot act on, without an early import, and
passes the progress of slow steps (downloading, reading weights, compiling) to a display.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

# These loggers warn about every kernel of torchao that was built for another device.
_OF_OTHER_DEVICES = ("torchao", "torch.utils._pytree")
_KERNEL_ADVICE = "transformers.integrations.hub_kernels"  # which packages to install for a hybrid


def silence() -> None:
    """Silence these log lines for the whole process; call it before the libraries are imported."""
    for name in _OF_OTHER_DEVICES:
        logging.getLogger(name).setLevel(logging.ERROR)
    logging.getLogger(_KERNEL_ADVICE).addFilter(_can_be_followed)


@contextmanager
def quiet() -> Iterator[None]:
    """Inside the block, transformers logs only errors."""
    from transformers.utils import logging as library  # noqa: PLC0415 - half a second

    verbosity = library.get_verbosity()
    library.set_verbosity_error()
    try:
        yield
    finally:
        library.set_verbosity(verbosity)


def _can_be_followed(_: logging.LogRecord) -> bool:
    """Whether the advice is useful: the packages only have kernels for GPUs."""
    import torch  # noqa: PLC0415 - this advice is only logged after an import of torch

    return torch.cuda.is_available()


listeners: list[Callable[[str], None]] = []


@contextmanager
def unreported() -> Iterator[None]:
    """Inside the block, no progress is displayed."""
    shown = [*listeners]
    listeners.clear()
    try:
        yield
    finally:
        listeners[:] = shown


def report_progress(text: str) -> None:
    """Replace the displayed progress of a slow step; an empty text ends it."""
    for listener in tuple(listeners):
        listener(text)


def report_compiling() -> None:
    """From now on, report each kernel that Triton compiles, except those in its cache."""
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

    if knobs.compilation.listener is None:  # otherwise it is already set, here or by a profiler
        knobs.compilation.listener = count
