"""Which run and cell a row belongs to: the columns that every table begins and ends with."""

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Protocol

from specbench.frames.column import Column, Doc, record_columns
from specbench.records import CellKey, RunRecord

KEY_DOCS = {
    "pairing": Doc("`target/drafter`; of K = 0 the bare target"),
    "target": Doc("name of the target"),
    "drafter": Doc("name of the drafter; `none` at K = 0"),
    "workload": Doc("name of the workload"),
    "engine": Doc("what decoded, such as `builtin`"),
    "method": Doc("how tokens are drafted, such as `draft_model`; `none` at K = 0"),
    "num_speculative_tokens": Doc("K: the most tokens drafted per round", "tokens/round"),
    "concurrency": Doc("most requests decoded at the same time", "requests"),
    "temperature": Doc("of sampling; 0 is greedy"),
    "dtype": Doc("of the target's computation"),
    "adaptive": Doc("K was picked round by round, up to `num_speculative_tokens`"),
    "context": Doc("length that prompts were lengthened to; absent: unchanged", "tokens"),
    "request_rate": Doc(
        "arrivals; absent: closed loop, the next request starts when one ends", "requests/s"
    ),
    "num_samples": Doc("answers to each prompt, of which the likeliest is picked", "samples"),
    "lossy": Doc("the rule that changes the target's distribution; absent: lossless"),
}


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
KEY: tuple[Column[OfRun], ...] = record_columns(CellKey, KEY_DOCS, attrgetter("key"))


def cell_id(get: Callable[[Any], CellKey] = attrgetter("key")) -> Column[Any]:
    """The column by which tables are joined."""
    return Column(
        name="cell_id",
        unit="",
        meaning="the cell in one word: join tables on `run_id` and `cell_id`",
        dtype="category",
        value=lambda row: get(row).id,
    )
