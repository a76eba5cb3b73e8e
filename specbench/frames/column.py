"""A column of a table: its name, unit, meaning and type, and the value of a row.

The fields of records declare meaning and unit (`doc.py`); every table begins and ends with the
columns of its run and cell.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from operator import attrgetter
from types import NoneType, UnionType
from typing import Any, Generic, Literal, Protocol, TypeVar, get_args, get_origin, get_type_hints

import pandas as pd

from specbench.doc import Doc, docs_of
from specbench.records import CellKey, Interval, Reason, RunRecord
from specbench.records.keys import FlatKey
from specbench.words.answers import text

Row = TypeVar("Row")

TEXT = "string"  # of many words; a name is a category
LIST = "object"  # tuples; None if absent
SEPARATOR = "; "  # between several reasons or warnings in one text

# pandas' types by those of the records. A capitalized one allows absent values: NA, never zero.
_DTYPES = {bool: "bool", int: "int64", float: "float64", str: "category"}
_NULLABLE = {bool: "boolean", int: "Int64", float: "Float64", str: "category"}


@dataclass(frozen=True, kw_only=True, slots=True)
class TableColumn(Generic[Row]):
    """A column of a table; `value` returns None for an absent value, which is never zero."""

    name: str
    unit: str = ""
    meaning: str
    dtype: str  # pandas' name of it
    value: Callable[[Row], Any]


def record_columns(
    record: type,
    get: Callable[[Row], Any],
    *,
    without: Iterable[str] = (),
    prefix: str = "",
) -> tuple[TableColumn[Row], ...]:
    """One column per field of a record, in its order; an interval has three, its estimate first.

    `get` returns the record of a row; with a `prefix`, a part of it that can be absent. Several
    texts in one field are joined. Raises TypeError for a field without a Doc.
    """
    names = [field.name for field in fields(record) if field.name not in set(without)]
    hints, docs = get_type_hints(record), docs_of(record)
    if undocumented := ", ".join(name for name in names if name not in docs):
        raise TypeError(f"{record.__name__}: fields without a Doc: {undocumented}")
    columns = (
        column
        for name in names
        for column in _columns(
            prefix + name.removeprefix(prefix), docs[name], hints[name], _attribute(get, name)
        )
    )
    return tuple(replace(c, dtype=_nullable(c.dtype)) if prefix else c for c in columns)


def dtype_of(annotation: Any, *, each: bool = False) -> str:
    """pandas' type for the annotation of a field or function; `each`: for an entry of a tuple."""
    options = set(get_args(annotation)) if get_origin(annotation) is UnionType else {annotation}
    (kind,) = options - {NoneType}
    if get_origin(kind) is tuple:
        if not each:
            return LIST
        kind = get_args(kind)[0]
    if get_origin(kind) is Literal or issubclass(kind, StrEnum):
        return "category"
    return (_NULLABLE if NoneType in options else _DTYPES)[kind]


def frame_of(columns: Iterable[TableColumn[Row]], rows: Sequence[Row]) -> pd.DataFrame:
    """A DataFrame with these columns in order, each of its type, even without rows."""
    return pd.DataFrame({c.name: array([c.value(row) for row in rows], c.dtype) for c in columns})


def array(values: Sequence[Any], dtype: str) -> Any:
    """Values of one column as pandas stores them; categories are in the order of appearance.

    A column of whole numbers becomes one of fractions if another tool gave a fraction.
    """
    if dtype == "category":
        return pd.Categorical(
            values, categories=[*dict.fromkeys(v for v in values if v is not None)]
        )
    if dtype == LIST:
        return pd.Series(values, dtype=object)
    if dtype == "Int64" and any(v is not None and v != int(v) for v in values):
        dtype = "Float64"
    return pd.array(values, dtype=dtype)  # type: ignore[call-overload]  # by name at run time


def _nullable(dtype: str) -> str:
    return next((_NULLABLE[kind] for kind, name in _DTYPES.items() if name == dtype), dtype)


def _columns(
    name: str, doc: Doc, annotation: Any, value: Callable[[Row], Any]
) -> Iterable[TableColumn[Row]]:
    if Interval in (annotation, *get_args(annotation)):
        yield from _interval(name, doc, value)
    elif annotation == tuple[str, ...]:
        yield TableColumn(name=name, meaning=doc.meaning, dtype=TEXT, value=_joined(value))
    elif annotation == tuple[Reason, ...]:
        meaning = f"kinds: {doc.meaning}"
        yield TableColumn(name=name, meaning=meaning, dtype=TEXT, value=_joined(value, _kind))
        words = f"the sentences of `{name}`"
        yield TableColumn(
            name=f"{name}_text", meaning=words, dtype=TEXT, value=_joined(value, text)
        )
    else:
        dtype = TEXT if doc.is_text else dtype_of(annotation)
        yield TableColumn(name=name, unit=doc.unit, meaning=doc.meaning, dtype=dtype, value=value)


def _interval(name: str, doc: Doc, value: Callable[[Row], Any]) -> Iterable[TableColumn[Row]]:
    ends = (
        ("estimate", "", doc.meaning),
        (
            "low",
            "_low",
            f"lower end of the 95% interval of `{name}`; absent below 5 prompts or passes, and "
            "below 2 cycles of a server's sessions",
        ),
        ("high", "_high", "its upper end"),
    )
    for end, suffix, meaning in ends:
        yield TableColumn(
            name=name + suffix,
            unit=doc.unit,
            meaning=meaning,
            dtype="Float64",
            value=_attribute(value, end),
        )


def _attribute(get: Callable[[Row], Any], name: str) -> Callable[[Row], Any]:
    def value(row: Row) -> Any:
        record = get(row)
        return None if record is None else getattr(record, name)

    return value


def _joined(get: Callable[[Row], Any], each: Callable[[Any], str] = str) -> Callable[[Row], Any]:
    def joined(row: Row) -> Any:
        texts = get(row)
        return None if texts is None else SEPARATOR.join(map(each, texts))

    return joined


def _kind(reason: Reason) -> str:
    return reason.kind


class RunRow(Protocol):
    """The run and the cell of a row of any table."""

    @property
    def run(self) -> RunRecord: ...
    @property
    def key(self) -> CellKey: ...


RUN_ID: TableColumn[RunRow] = TableColumn(
    name="run_id",
    meaning="the run, so that tables of several runs can be stacked",
    dtype="category",
    value=attrgetter("run.run_id"),
)
KEY: tuple[TableColumn[RunRow], ...] = record_columns(FlatKey, lambda row: FlatKey(**row.key.flat))


def cell_id(get: Callable[[Any], CellKey] = attrgetter("key")) -> TableColumn[Any]:
    """The column by which tables are joined."""
    return TableColumn(
        name="cell_id",
        meaning="the cell in one word: join tables on `run_id` and `cell_id`",
        dtype="category",
        value=lambda row: get(row).id,
    )
