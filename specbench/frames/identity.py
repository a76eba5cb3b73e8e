"""Which run and cell a row belongs to: the columns that every table begins and ends with."""

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Protocol

from specbench.frames.column import Column, Doc, record_columns
from specbench.records import CellKey, RunRecord
from specbench.records.axes import AXES
from specbench.records.keys import FlatKey

_DOCS = {name: Doc(axis.meaning, axis.unit) for name, axis in AXES.items()}


class OfRun(Protocol):
    """A row of any table: whose it is."""

    @property
    def run(self) -> RunRecord: ...
    @property
    def key(self) -> CellKey: ...


RUN_ID: Column[OfRun] = Column(
    name="run_id",
    unit="",
    meaning="the run, so that tables of several runs can be stacked",
    dtype="category",
    value=attrgetter("run.run_id"),
)
KEY: tuple[Column[OfRun], ...] = record_columns(FlatKey, _DOCS, lambda row: FlatKey(**row.key.flat))


def cell_id(get: Callable[[Any], CellKey] = attrgetter("key")) -> Column[Any]:
    """The column by which tables are joined."""
    return Column(
        name="cell_id",
        unit="",
        meaning="the cell in one word: join tables on `run_id` and `cell_id`",
        dtype="category",
        value=lambda row: get(row).id,
    )
