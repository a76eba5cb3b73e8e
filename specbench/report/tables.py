"""Terminal tables of 80 columns: what was measured, a row a cell."""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from specbench.report.answers import compromise_lines
from specbench.report.columns import TERMINAL_COLUMNS, Column, legend, name_of, note, row, shown
from specbench.report.document import Document
from specbench.report.notes import failure_lines, invalid_lines, warning_lines
from specbench.report.sections import Section, sections

_STYLES = {"chosen": "bold green", "invalid": "dim", "": ""}


def terminal_report(document: Document) -> Group:
    """Tables, notes and compromises of a run; the answer itself is `answer_lines`."""
    columns = shown(TERMINAL_COLUMNS, document.cells)
    parts: list[RenderableType] = []
    for section in sections(document):
        if section.measured:
            parts += [_table(section, columns), ""]
    if parts:
        parts += [Text(legend(columns), style="dim"), ""]
    for lines, style in (
        (failure_lines(document), "red"),
        (invalid_lines(document), "red"),
        (warning_lines(document), "yellow"),
        (compromise_lines(document), ""),
    ):
        if lines:
            parts += [Text("\n".join(lines), style=style), ""]
    return Group(*parts)


def _table(section: Section, columns: Sequence[Column]) -> Table:
    table = Table(
        title=Text(section.title),
        title_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
        show_edge=False,
        padding=0,
        header_style="",
    )
    table.add_column("drafter", overflow="fold", min_width=8)
    for column in columns:
        table.add_column(column.header, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    previous = ""
    for cell in section.measured:
        name = name_of(cell)
        label = Text("" if name == previous else name)
        previous = name
        remark = note(section, cell)
        table.add_row(label, *row(columns, cell), remark, style=_STYLES[remark])
    return table
