"""The table that terminal, pages and commands print: declared columns of records."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import Any, NamedTuple

from specbench.doc import Doc, Key

ABSENT = "-"  # what could not be measured; never 0, never nan


def column(
    label: str,
    value: Callable[[Any], Any],
    form: str = "",
    *,
    unit: str = "",
    meaning: str = "",
) -> Key:
    """A column that only tables have; `value` returns None for an absent value."""
    return Key(object, Doc(meaning, unit, label=label, form=form), value)


def labeled(keys: Mapping[str, Key]) -> list[Key]:
    """The keys that have a column in tables, in their order."""
    return [key for key in keys.values() if key.full_doc.label]


def with_values(columns: Iterable[Key], records: Iterable[Any]) -> list[Key]:
    """The columns for which at least one of the records has a value."""
    records = [*records]
    return [key for key in columns if any(key.of(record) is not None for record in records)]


@dataclass(frozen=True, kw_only=True)
class Table:
    """Columns of records, a row each, as words and numbers with a title."""

    title: str = ""
    columns: Sequence[Key]
    records: Sequence[Any]
    num_names: int = 1  # leading columns of words
    num_remarks: int = 0  # trailing columns of text
    brief: Sequence[int] | None = None  # columns that fit a terminal; None: all
    wraps: Sequence[int] | None = None  # columns that a terminal may wrap; None: the longest words
    has_title: bool = True  # on a page, below the heading of its part
    is_folded: bool = False  # on a page, since few readers need it
    mark: Callable[[Any], str] | None = None  # of a row: chosen, invalid, worse, open or ""

    @cached_property
    def headers(self) -> tuple[str, ...]:
        return tuple(key.full_doc.label for key in self.columns)

    @cached_property
    def rows(self) -> tuple[tuple[str, ...], ...]:
        """The texts of each row, ABSENT for an absent value."""
        return tuple(
            tuple(_text(key.full_doc, key.of(record)) for key in self.columns)
            for record in self.records
        )

    @cached_property
    def marks(self) -> tuple[str, ...]:
        """A mark per row; empty for a table without marks."""
        return tuple(map(self.mark, self.records)) if self.mark else ()

    @property
    def brief_columns(self) -> Sequence[int]:
        """The columns that a terminal shows, in order."""
        return range(len(self.columns)) if self.brief is None else self.brief

    def is_words(self, column: int) -> bool:
        """Whether a column contains words: names, remarks, str, and columns without a header."""
        is_text = self.columns[column].type is str or not self.headers[column]
        return is_text or column < self.num_names or column in self._remarks

    @property
    def _remarks(self) -> range:
        return range(len(self.columns) - self.num_remarks, len(self.columns))

    @property
    def wrapped(self) -> Sequence[int]:
        """The columns that a terminal may wrap: remarks of several words, or else names."""
        if self.wraps is not None:
            return self.wraps
        phrases = [i for i in self._remarks if any(" " in row[i] for row in self.rows)]
        return phrases or [i for i in range(self.num_names) if self.headers[i]]


class Legend(NamedTuple):
    """Headers and their meanings; a terminal shows those of `brief`."""

    entries: Sequence[tuple[str, str]]
    brief: frozenset[str]

    def shown(self, *, is_brief: bool) -> Sequence[tuple[str, str]]:
        """All entries, or only those that a terminal shows."""
        return [entry for entry in self.entries if not is_brief or entry[0] in self.brief]


def legend_of(tables: Sequence[Table]) -> Legend:
    """The headers of tables that have a meaning."""
    docs = [key.full_doc for table in tables for key in table.columns]
    brief = frozenset(table.headers[i] for table in tables for i in table.brief_columns)
    return Legend([*{doc.label: doc.meaning for doc in docs if doc.meaning}.items()], brief)


def text_table(
    title: str,
    headers: Sequence[str],
    rows: Sequence[Sequence[str | None]],
    **layout: Any,
) -> Table:
    """A table of texts, whose columns depend on its rows."""
    columns = [column(header, itemgetter(i)) for i, header in enumerate(headers)]
    return Table(title=title, columns=columns, records=rows, **layout)


def _text(doc: Doc, value: Any) -> str:
    """A value by its form, or else by its type and unit."""
    if value is None:
        return ABSENT
    if isinstance(value, str) and not doc.form:
        return value
    from specbench.words.answers import WORDS  # noqa: PLC0415 - imports scipy; words need none
    from specbench.words.numbers import figure  # noqa: PLC0415 - the same

    return WORDS.format(doc.form, value) if doc.form else figure(value, doc.unit)
