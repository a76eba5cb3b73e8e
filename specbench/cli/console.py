"""The console to which commands print plain tables."""

import os
import sys
from typing import TextIO

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.segment import Segment
from rich.text import Text

from specbench.report.split_table import SplitTable
from specbench.untrusted import plain
from specbench.words.table import Table

WIDTH = 80  # columns of text that is not printed to a terminal
NARROWEST = 40  # columns of a terminal that tables are split for


class _PlainTexts(RenderHook):
    """A hook of rich that makes printed text plain, but keeps colors and cursor moves."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_PlainRenderable(renderable) for renderable in renderables]


class _PlainRenderable:
    def __init__(self, renderable: ConsoleRenderable) -> None:
        self._renderable = renderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self._renderable, options):
            is_text = not segment.control
            yield Segment(plain(segment.text), segment.style) if is_text else segment


def open_console(
    *, stderr: bool = False, width: int | None = None, soft_wrap: bool = False
) -> Console:
    """A console that prints text unchanged: brackets are not markup, NO_COLOR omits escape codes.

    `width` applies unless the stream is a terminal, so that files and logs are the same
    everywhere. Below `NARROWEST` lines overflow, because figures would be cut.
    """
    console = Console(
        file=_underlying_stream(sys.stderr if stderr else sys.stdout),
        soft_wrap=soft_wrap,
        highlight=False,
        markup=False,
        # rich's own reading of NO_COLOR still prints bold and dim.
        color_system=None if os.environ.get("NO_COLOR") else "auto",
    )
    console.push_render_hook(_PlainTexts())
    if width is not None:
        console.width = max(NARROWEST, console.width) if is_terminal(stderr=stderr) else width
    return console


def plain_table(shown: Table, *, num_keys: int = 1) -> SplitTable:
    """A table without lines."""
    columns = range(len(shown.columns))
    table = SplitTable.of(shown, num_keys, columns, box=None, pad_edge=False)
    for row in shown.rows:
        table.add_row(*row)
    return table


def say(line: str) -> None:
    """Prints a sentence, on a terminal broken between words, elsewhere as one line."""
    open_console(soft_wrap=not is_terminal()).print(Text(line))


def _underlying_stream(stream: TextIO) -> TextIO:
    """The stream below the wrappers that escape text or keep it above a live display."""
    while (below := getattr(stream, "rich_proxied_file", None)) is not None:
        stream = below
    return stream


def is_terminal(*, stderr: bool = False) -> bool:
    """Whether stdout is a terminal; rich's check is true for a pipe with FORCE_COLOR."""
    return (sys.stderr if stderr else sys.stdout).isatty()
