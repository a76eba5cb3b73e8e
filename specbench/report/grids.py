"""Tables of text, which every report format prints."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from specbench.decide.explanation import k_text
from specbench.metrics.registry import all_metrics, number_of
from specbench.records import NO_DRAFTER, CellSummary, Condition
from specbench.report.columns import (
    name_of,
    note,
    page_columns,
    row,
    shown,
    terminal_columns,
    union,
)
from specbench.report.numbers import ABSENT, number, scale_of, series
from specbench.report.sections import Section, setting_name


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """A table of words and numbers with a title."""

    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    num_names: int = 1  # leading columns of words
    num_remarks: int = 0  # trailing columns of text
    brief: Sequence[int] | None = None  # columns that fit a terminal; None: all
    marks: tuple[str, ...] = ()  # per row: chosen, invalid, worse, open or ""; empty: no marks

    @property
    def brief_columns(self) -> Sequence[int]:
        """The columns that a terminal shows, in order."""
        return range(len(self.headers)) if self.brief is None else self.brief

    def is_words(self, column: int) -> bool:
        """Whether a column contains words: names, remarks, and columns without a header."""
        return column < self.num_names or column in self._remarks or not self.headers[column]

    @property
    def _remarks(self) -> range:
        return range(len(self.headers) - self.num_remarks, len(self.headers))

    @property
    def wrapped(self) -> Sequence[int]:
        """The columns that a terminal may wrap: remarks of several words, or else names."""
        phrases = [i for i in self._remarks if any(" " in row[i] for row in self.rows)]
        return phrases or [i for i in range(self.num_names) if self.headers[i]]


def grid_of(
    title: str,
    *columns: tuple[str, Sequence[str]],
    num_names: int = 1,
    num_remarks: int = 0,
    brief: Sequence[int] | None = None,
    marks: Sequence[str] = (),
) -> Grid:
    """A table of columns, each a header with its texts."""
    headers, texts = zip(*columns, strict=True)
    return Grid(
        title=title,
        headers=headers,
        rows=tuple(zip(*texts, strict=True)),
        num_names=num_names,
        num_remarks=num_remarks,
        brief=brief,
        marks=tuple(marks),
    )


def setting_column(conditions: Sequence[Condition]) -> tuple[str, Sequence[str]]:
    """The names of settings, as the first column of a table."""
    return "", [setting_name(condition, conditions) for condition in conditions]


class Legend(NamedTuple):
    """Headers and their meanings; a terminal shows those of `brief`."""

    entries: Sequence[tuple[str, str]]
    brief: frozenset[str]

    def shown(self, *, is_brief: bool) -> Sequence[tuple[str, str]]:
        """All entries, or only those that a terminal shows."""
        return [entry for entry in self.entries if not is_brief or entry[0] in self.brief]


_POSITION_KINDS = {
    "all rounds": "acceptance_rate_per_position",
    "rounds that got this far": "conditional_acceptance_rate",
}


def result_grid(section: Section) -> Grid:
    """A row per cell; the remarks after K mark the chosen and the invalid ones."""
    columns = shown(page_columns(section), section.measured)
    k, *more = columns
    marks = tuple(note(section, cell) for cell in section.measured)
    index = {column.header: i + (1 if column is k else 2) for i, column in enumerate(columns)}
    brief = [index[c.header] for c in shown(terminal_columns(section), section.measured)]
    return Grid(
        title=section.title,
        headers=("drafter", k.header, "", *(column.header for column in more)),
        rows=tuple(
            (name_of(cell), *row([k], cell), mark, *row(more, cell))
            for cell, mark in zip(section.measured, marks, strict=True)
        ),
        brief=(0, *brief, 2),
        marks=marks,
    )


def result_legend(every: Sequence[Section]) -> Legend:
    """Headers and meanings of the columns of the result tables."""
    columns = union(shown(page_columns(section), section.measured) for section in every)
    grids = [result_grid(section) for section in every if section.measured]
    brief = frozenset(grid.headers[i] for grid in grids for i in grid.brief_columns)
    return Legend([(c.header, c.meaning) for c in columns if c.meaning], brief)


def position_grid(section: Section) -> Grid | None:
    """Joint and conditional acceptance at each position; None if no rounds are known."""
    rows = [
        (cell, kind, series(cell.metrics.get(name)))
        for cell in section.deepest
        for kind, name in _POSITION_KINDS.items()
    ]
    if not rows:
        return None
    depth = max(len(rates) for _, _, rates in rows)
    return Grid(
        title=section.title,
        headers=("drafter", "share of", "K", *map(str, range(1, depth + 1))),
        rows=tuple(
            (
                name_of(cell),
                kind,
                str(cell.key.draft.k),
                *(f"{rate:.0%}" for rate in rates),
                *(ABSENT,) * (depth - len(rates)),
            )
            for cell, kind, rates in rows
        ),
        num_names=2,
    )


def metric_grids(section: Section) -> Iterator[Grid]:
    """One table per pairing of all scalar metrics by K, and one table of metrics that are lists."""
    for label in section.series:
        cells = (*section.undrafted, *section.of(label))
        yield Grid(
            title=f"{section.title}: {label}",
            headers=("metric", "unit", *map(_column_title, cells)),
            rows=tuple(_scalar_rows(cells)),
            num_names=2,
        )
    lists = tuple(row for cell in section.deepest for row in _list_rows(cell))
    if lists:
        yield Grid(
            title=f"{section.title}: lists",
            headers=("metric", "unit", "drafter", "K", "values"),
            rows=lists,
            num_names=3,
        )


def _scalar_rows(cells: tuple[CellSummary, ...]) -> Iterator[tuple[str, ...]]:
    for metric in all_metrics().values():
        values = [number_of(cell.metrics, metric.name) for cell in cells]
        present = [abs(value) for value in values if value is not None]
        if present:
            scale = scale_of(metric.unit, max(present))
            yield (
                metric.name,
                scale.unit,
                *(ABSENT if v is None else number(v, metric.unit, scale) for v in values),
            )


def _list_rows(cell: CellSummary) -> Iterator[tuple[str, ...]]:
    for metric in all_metrics().values():
        values = series(cell.metrics.get(metric.name))
        if values and metric.name not in _POSITION_KINDS.values():
            scale = scale_of(metric.unit, max(map(abs, values)))
            yield (
                metric.name,
                scale.unit,
                name_of(cell),
                str(cell.key.draft.k),
                "  ".join(number(value, metric.unit, scale) for value in values),
            )


def _column_title(cell: CellSummary) -> str:
    """K; the method for cells of K = 0 that have one."""
    is_named = cell.key.draft.k == 0 and cell.key.draft.method != NO_DRAFTER
    return cell.key.draft.method if is_named else k_text(cell)
