"""A run on a terminal of 80 columns: tables, then notes."""

from collections.abc import Collection, Iterable, Iterator

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from specbench.report.blocks import (
    Block,
    Lines,
    Paragraph,
    ReportPart,
    run_report,
)
from specbench.report.document import Document
from specbench.report.notes import WARNINGS
from specbench.report.split_table import SplitTable
from specbench.words.table import Legend, Table

_STYLES = {"chosen": "bold green", "invalid": "dim", "worse": "bold red", "open": "yellow", "": ""}


def terminal_report(
    document: Document, shown: Collection[str] = (), *, is_verbose: bool = False
) -> Group:
    """Tables and notes of a run, without the warnings already `shown`.

    The tables have the rows that the answer is about; if verbose, all rows, server sessions, and
    the meaning of the columns.
    """
    report = run_report(document)
    parts = [report.results if is_verbose else report.summary]
    parts.append(ReportPart("", [report.which_pass] if report.which_pass else []))
    parts += [report.comparisons, report.sessions] if is_verbose else [report.comparisons]
    rendered = [
        *(text for part in parts for text in _part(part, explains=is_verbose)),
        *(text for part in report.notes.blocks for text in _note(part, shown)),
    ]
    return _spaced(rendered)


def terminal_part(part: ReportPart) -> Group:
    """Tables and sentences of a part, without its answers."""
    return _spaced(_part(part))


def _spaced(rendered: Iterable[RenderableType]) -> Group:
    return Group(*(piece for text in rendered for piece in (text, "")))


def _part(part: ReportPart, *, explains: bool = True) -> Iterator[RenderableType]:
    for block in sorted(part.blocks, key=lambda block: isinstance(block, Lines)):
        if isinstance(block, Table):
            yield _table(block)
        elif isinstance(block, Legend) and explains:
            yield _legend_table(block.shown(is_brief=True))
        elif isinstance(block, Paragraph):
            yield Text(block.brief or block.text, style="dim")
        elif isinstance(block, Lines) and not block.is_answer:
            yield from _lines(block.lines, "")


def _legend_table(entries: Collection[tuple[str, str]]) -> RichTable:
    table = RichTable.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(style="dim")
    for entry in entries:
        table.add_row(*map(Text, entry))
    return table


def _note(part: Block, shown: Collection[str]) -> Iterator[Text]:
    assert isinstance(part, ReportPart)
    style = "yellow" if part.title == WARNINGS else "red"
    for block in part.blocks:
        assert isinstance(block, Lines)
        lines = [line for line in block.lines if line not in shown]
        yield from _lines([f"{part.title}:", *lines] if lines else [], style)


def _lines(lines: Collection[str], style: str) -> Iterator[Text]:
    if lines:
        yield Text("\n".join(lines), style=style)


def _table(grid: Table) -> SplitTable:
    """The columns of a table that fit a terminal; repeated names are left out."""
    columns = grid.brief_columns
    has_k = grid.headers[grid.num_names : grid.num_names + 1] == ("K",)
    table = SplitTable.of(
        grid,
        sum(i < grid.num_names + has_k for i in columns),
        columns,
        title=Text(grid.title),
        title_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
        show_edge=False,
        padding=0,
        header_style="",
    )
    marks = grid.marks or ("",) * len(grid.rows)
    previous = ""
    for row, mark in zip(grid.rows, marks, strict=True):
        first = "" if grid.headers[0] and row[0] == previous else row[0]
        previous = row[0]
        texts = [first if i == 0 else row[i] for i in columns]
        table.add_row(*map(Text, texts), style=_STYLES[mark])
    return table
