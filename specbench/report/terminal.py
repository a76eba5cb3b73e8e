"""A run on a terminal of 80 columns: tables first, the notes and lines to read last."""

from collections.abc import Collection, Iterator

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from specbench.report.blocks import (
    Block,
    Legend,
    Lines,
    Paragraph,
    ReportPart,
    TableBlock,
    run_report,
)
from specbench.report.document import Document
from specbench.report.grids import Grid

_STYLES = {"chosen": "bold green", "invalid": "dim", "": ""}


def terminal_report(document: Document, shown: Collection[str] = ()) -> Group:
    """Tables, notes and shared K of a run, without the answer and the warnings already `shown`."""
    report = run_report(document)
    parts = [report.results, ReportPart("", [report.which_pass] if report.which_pass else [])]
    rendered = [
        *(text for part in (*parts, report.comparisons, report.sessions) for text in _part(part)),
        *(text for part in report.notes.blocks for text in _note(part, shown)),
        *_lines(report.shared.lines, ""),
    ]
    return Group(*(piece for text in rendered for piece in (text, "")))


def _part(part: ReportPart) -> Iterator[RenderableType]:
    for block in part.blocks:
        if isinstance(block, TableBlock):
            yield grid_table(block.grid)
        elif isinstance(block, Legend):
            yield Text(block.text(is_brief=True), style="dim")
        elif isinstance(block, Paragraph):
            yield Text(block.brief or block.text, style="dim")


def _note(part: Block, shown: Collection[str]) -> Iterator[Text]:
    assert isinstance(part, ReportPart)
    style = "yellow" if part.title == "Warnings" else "red"
    for block in part.blocks:
        assert isinstance(block, Lines)
        lines = [line for line in block.lines if line not in shown]
        yield from _lines([f"{part.title}:", *lines] if lines else [], style)


def _lines(lines: Collection[str], style: str) -> Iterator[Text]:
    if lines:
        yield Text("\n".join(lines), style=style)


def titled_table(title: str) -> RichTable:
    return RichTable(
        title=Text(title),
        title_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
        show_edge=False,
        padding=0,
        header_style="",
    )


def grid_table(grid: Grid) -> RichTable:
    """The columns of a grid that fit a terminal; a name that repeats is left out."""
    table = titled_table(grid.title)
    columns = grid.brief_columns
    for i in columns:
        is_words = grid.is_words(i)
        table.add_column(
            grid.headers[i],
            justify="left" if is_words else "right",
            overflow="fold",
            no_wrap=not is_words or not grid.headers[i],
            min_width=8 if grid.headers[i] == "drafter" else None,
        )
    marks = grid.marks or ("",) * len(grid.rows)
    previous = ""
    for row, mark in zip(grid.rows, marks, strict=True):
        first = "" if grid.headers[0] and row[0] == previous else row[0]
        previous = row[0]
        texts = [first if i == 0 else row[i] for i in columns]
        table.add_row(*map(Text, texts), style=_STYLES[mark])
    return table
