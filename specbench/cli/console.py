"""The console that commands print to."""

import os
import sys

from rich.console import Console

WIDTH = 80  # columns that tables are made for


def open_console(
    *, stderr: bool = False, width: int | None = None, soft_wrap: bool = False
) -> Console:
    """Text is printed as it is: brackets are no markup, and NO_COLOR means no escape codes.

    `width` holds where the stream is no terminal, so that files and logs are the same
    everywhere. A wider terminal is used as wide as it is; in a narrower one lines run on, since
    figures would be cut.
    """
    console = Console(
        stderr=stderr,
        soft_wrap=soft_wrap,
        highlight=False,
        markup=False,
        # rich's own reading of NO_COLOR still prints bold and dim.
        color_system=None if os.environ.get("NO_COLOR") else "auto",
    )
    if width is not None:
        console.width = max(width, console.width) if is_terminal(stderr=stderr) else width
    return console


def is_terminal(*, stderr: bool = False) -> bool:
    """Whether a person reads along. Not rich's own: FORCE_COLOR makes that true of a pipe."""
    return (sys.stderr if stderr else sys.stdout).isatty()
