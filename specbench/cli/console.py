"""The console that commands print to."""

import os

from rich.console import Console


def open_console(
    *, stderr: bool = False, width: int | None = None, soft_wrap: bool = False
) -> Console:
    """Text is printed as it is: brackets are no markup, and NO_COLOR means no escape codes."""
    return Console(
        stderr=stderr,
        width=width,
        soft_wrap=soft_wrap,
        highlight=False,
        markup=False,
        # rich's own reading of NO_COLOR still prints bold and dim.
        color_system=None if os.environ.get("NO_COLOR") else "auto",
    )
