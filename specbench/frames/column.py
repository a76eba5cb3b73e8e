"""DataFrames of declared keys: their columns, and pandas' types by those of the keys."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from operator import attrgetter
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin

import pandas as pd

from specbench.doc import Doc, Key, Several, part_of
from specbench.records import Interval, Reason
from specbench.words.answers import REASON, text

TEXT = "string"  # of many words; a name is a category
LIST = "object"  # tuples; None if absent
SEPARATOR = "; "  # between several reasons or warnings in one text

# pandas' types by those of the records. A capitalized one allows absent values: NA, never zero.
_DTYPES = {bool: "bool", int: "int64", float: "float64", str: "category"}
_NULLABLE = {bool: "boolean", int: "Int64", float: "Float64", str: "category"}


def dtype_of(key: Key) -> str:
    """pandas' type for a column."""
    options = {*get_args(key.type)} if get_origin(key.type) is UnionType else {key.type}
    (kind,) = options - {NoneType}
    if key.full_doc.is_text:
        return TEXT
    if get_origin(kind) is tuple:
        return LIST
    if get_origin(kind) is Literal or issubclass(kind, StrEnum):
        return "category"
    return (_NULLABLE if NoneType in options else _DTYPES)[kind]


def frame_of(keys: Mapping[str, Key], rows: Sequence[Any]) -> pd.DataFrame:
    """A DataFrame with the columns of these keys, each of its type, even without rows.

    A value of None is absent, which is never zero.
    """
    return pd.DataFrame(
        {
            name: array([*map(key.value or attrgetter(name), rows)], dtype_of(key))
            for name, key in columns_of(keys).items()
        }
    )


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


def columns_of(keys: Mapping[str, Key]) -> dict[str, Key]:
    """The keys with three for an interval, its estimate first; several texts are joined to one.

    Of reasons, one has the kinds and one the sentences.
    """
    columns: dict[str, Key] = {}
    for name, key in keys.items():
        doc, value = key.full_doc, key.value or attrgetter(name)
        kinds = (key.type, *get_args(key.type))
        if Interval in kinds:
            for end, suffix, meaning in (
                ("estimate", "", doc.meaning),
                ("low", "_low", _LOW.format(name)),
                ("high", "_high", "its upper end"),
            ):
                end_doc = replace(doc, meaning=meaning)
                columns[name + suffix] = Key(float | None, end_doc, part_of(value, end))
        elif tuple[str, ...] in kinds:
            columns[name] = Key(str, replace(doc, is_text=True), _joined(value, str))
        elif key.type in (Several(REASON), tuple[Reason, ...]):
            meaning = f"kinds: {doc.meaning}"
            columns[name] = Key(str, Doc(meaning, is_text=True), _joined(value, attrgetter("kind")))
            words = f"the sentences of `{name}`"
            columns[f"{name}_text"] = Key(str, Doc(words, is_text=True), _joined(value, text))
        else:
            columns[name] = key
    return columns


_LOW = (
    "lower end of the 95% interval of `{}`; absent below 5 prompts or passes, and below 2 cycles "
    "of a server's sessions"
)


def _joined(get: Callable[[Any], Any], each: Callable[[Any], str]) -> Callable[[Any], Any]:
    def joined(row: Any) -> str | None:
        texts = get(row)
        return None if texts is None else SEPARATOR.join(map(each, texts))

    return joined
