"""Progress of slow steps (downloading, reading weights, compiling), for a display to show."""

from collections.abc import Callable
from typing import Any

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
