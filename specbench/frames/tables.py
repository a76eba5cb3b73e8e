"""All tables, with the meaning of their rows and columns."""

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from specbench.errors import UsageError
from specbench.frames.cells import Analysed, cell_columns, cells_frame, decision_columns
from specbench.frames.column import LIST, TEXT, TableColumn
from specbench.frames.requests import request_columns, round_columns
from specbench.frames.servers import server_columns
from specbench.untrusted import inert_cell

# Flags that the file has as in JSON since its first version; other flags are True and False.
_JSON_FLAGS = ("synthetic", "valid")


def cells_csv(runs: Sequence[Analysed]) -> str:
    """The cells as CSV: units as stored (seconds, bytes, fractions); absent values are empty."""
    cells = cells_frame(runs)
    for name in cells.columns:
        if name in _JSON_FLAGS or cells[name].dtype == LIST:
            cells[name] = [None if value is None else json.dumps(value) for value in cells[name]]
        elif not pd.api.types.is_numeric_dtype(cells[name]):
            cells[name] = [inert_cell(v) if isinstance(v, str) else None for v in cells[name]]
    return cells.to_csv(index=False, lineterminator="\n")


def to_parquet(table: pd.DataFrame) -> bytes:
    """The table with its types, a list as a list. UsageError without pyarrow, which writes it."""
    buffer = io.BytesIO()
    try:
        table.to_parquet(buffer, engine="pyarrow", index=False)
    except ImportError as error:
        raise UsageError("Parquet needs pyarrow: python -m pip install pyarrow") from error
    return buffer.getvalue()


@dataclass(frozen=True, kw_only=True, slots=True)
class FrameTable:
    """`columns` are the same for every run, so that tables of several can be stacked."""

    row: str  # what a row is
    columns: Callable[[], tuple[TableColumn[Any], ...]]


TABLES: Mapping[str, FrameTable] = {
    "cells": FrameTable(row="one cell of the exploration phase", columns=cell_columns),
    "requests": FrameTable(row="one request, failed ones included", columns=request_columns),
    "rounds": FrameTable(row="one round of a request that finished", columns=round_columns),
    "decisions": FrameTable(row="the answer for one drafter and setting", columns=decision_columns),
    "servers": FrameTable(
        row="one session of a server, failed attempts included", columns=server_columns
    ),
}


def describe(table: str) -> pd.DataFrame:
    """A table's columns: name, unit, meaning and pandas type. UsageError for an unknown table."""
    if table not in TABLES:
        raise UsageError(f"no table {table!r}: there are {', '.join(TABLES)}")
    parts = ("name", "unit", "meaning", "dtype")
    return pd.DataFrame(
        [[getattr(column, part) for part in parts] for column in TABLES[table].columns()],
        columns=parts,
        dtype=TEXT,
    )
