"""Terminal tables of 80 columns: what was measured, a row a cell."""

from collections.abc import Collection, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from specbench.report.answers import compromise_lines
from specbench.report.columns import (
    Column,
    legend,
    name_of,
    note,
    row,
    shown,
    terminal_columns,
    union,
)
from specbench.report.comparisons import comparison_grids
from specbench.report.document import Document
from specbench.report.forecasts import forecast_legend, forecast_lines
from specbench.report.grids import Grid
from specbench.report.notes import notes
from specbench.report.provenance import which_pass
from specbench.report.sections import Section, sections
from specbench.report.sessions import sessions_grid, sessions_legend

_STYLES = {"chosen": "bold green", "invalid": "dim", "": ""}


def terminal_report(document: Document, told: Collection[str] = ()) -> Group:
    """Tables, notes and compromises of a run, without the answer and the warnings already
    `told`."""
    drawn = [section for section in sections(document) if section.measured]
    columns = [shown(terminal_columns(section), section.measured) for section in drawn]
    parts: list[RenderableType] = []
    for section, some in zip(drawn, columns, strict=True):
        parts += [_table(section, some), ""]
    if parts:
        parts += [Text(legend(union(columns)), style="dim"), ""]
    if said := which_pass(document):
        parts += [Text(said, style="dim"), ""]
    for grid in comparison_grids(document):
        parts += [grid_table(grid), ""]
    sessions = sessions_grid(document)
    if sessions:
        parts += [
            grid_table(sessions),
            Text(sessions_legend(document, is_brief=True), style="dim"),
            "",
        ]
    if document.forecasts:
        parts += [Text(forecast_legend(document, brief=True), style="dim"), ""]
    for heading, lines in notes(document, told).items():
        style = "yellow" if heading == "Warnings" else "red"
        parts += [Text("\n".join((f"{heading}:", *lines)), style=style), ""]
    for lines in (compromise_lines(document), forecast_lines(document)):
        if lines:
            parts += [Text("\n".join(lines)), ""]
    return Group(*parts)


def titled_table(title: str) -> Table:
    return Table(
        title=Text(title),
        title_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
        show_edge=False,
        padding=0,
        header_style="",
    )


def grid_table(grid: Grid) -> Table:
    """The columns of a grid that fit a terminal."""
    table = titled_table(grid.title)
    for i, header in enumerate(grid.headers[: grid.num_brief]):
        is_words = grid.is_words(i)
        table.add_column(
            header, justify="left" if is_words else "right", overflow="fold", no_wrap=not is_words
        )
    for texts in grid.rows:
        table.add_row(*map(Text, texts[: grid.num_brief]))
    return table


def _table(section: Section, columns: Sequence[Column]) -> Table:
    table = titled_table(section.title)
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
