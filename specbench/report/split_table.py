"""Tables on a terminal, also on a narrow one."""

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from textwrap import wrap
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table as RichTable

from specbench.words.table import Table

_FOLDED = 12  # columns of a terminal to which text may be folded


class SplitTable(RichTable):
    """A table shown in parts if it is too wide, each with the first `num_keys` columns.

    So no figure is cut.
    """

    num_keys = 1

    @classmethod
    def of(cls, shown: Table, num_keys: int, columns: Sequence[int], **style: Any) -> "SplitTable":
        """The columns of a table with these indices, without its rows."""
        table = cls(**style)
        table.num_keys = num_keys
        for i in columns:
            table.add_column(
                _header(shown, i),
                justify="left" if shown.is_words(i) else "right",
                overflow="fold",
                no_wrap=i not in shown.wrapped,
                min_width=8 if shown.headers[i] == "drafter" else None,
            )
        return table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if all(column.no_wrap for column in self.columns):
            self.columns[0].no_wrap = False  # or rich cuts every column
        parts, width = self._parts(console, options)
        if width > options.max_width:  # words before figures
            for column in self.columns[: self.num_keys]:
                column.no_wrap = column.justify == "right"
            parts, _ = self._parts(console, options)
        for number, part in enumerate(parts):
            if number:
                yield ""
            table = copy(self)
            table.title = None if number else self.title
            table.columns = [replace(self.columns[i], _index=n) for n, i in enumerate(part)]
            yield from RichTable.__rich_console__(table, console, options)

    def _parts(self, console: Console, options: ConsoleOptions) -> tuple[list[list[int]], int]:
        """The columns of each part, and the least width of the widest part."""
        _, right, _, left = self.padding
        gap = right + left + (self.box is not None)
        needed = []
        for column in self.columns:
            cells = (column.header, *column.cells)
            widest = max(Measurement.get(console, options, cell).maximum for cell in cells)
            least = widest if column.no_wrap else min(widest, _FOLDED)
            needed.append(max(least, column.min_width or 0))
        keys = [*range(self.num_keys)]
        parts = [keys]

        def width(part: Sequence[int]) -> int:
            return sum(gap + needed[column] for column in part) - gap

        for i in range(self.num_keys, len(needed)):
            if parts[-1] != keys and width((*parts[-1], i)) > options.max_width:
                parts.append(keys)
            parts[-1] = [*parts[-1], i]
        return parts, max(map(width, parts))


def _header(table: Table, column: int) -> str:
    """The header, broken into lines if it is wider than its column."""
    header, widths = table.headers[column], [len(row[column]) for row in table.rows]
    is_wide = not table.is_words(column) and len(header) > max(widths, default=0)
    if not is_wide:
        return header
    return "\n".join(wrap(header, max(*widths, *map(len, header.split()))))
