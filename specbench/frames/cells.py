"""A row per cell: what was measured, whether it is valid, its speed-up and every metric."""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, NamedTuple, Protocol, get_type_hints

import pandas as pd

from specbench.frames.column import Column, Doc, dtype_of, frame_of, record_columns
from specbench.frames.identity import KEY, RUN_ID, cell_id
from specbench.metrics.registry import Metric, all_metrics
from specbench.records import CellKey, CellSummary, RunRecord

DOCS = {
    "valid": Doc("whether the cell may support a decision"),
    "invalid_reasons": Doc("why not; empty for a valid cell"),
    "num_prompts": Doc("prompts with a finished request", "prompts"),
    "num_requests": Doc("each turn and repeat counts, failed ones included", "requests"),
    "speedup": Doc("`decode_speedup` over K = 0 on the same prompts; absent at K = 0", "x"),
    "speedup_end_to_end": Doc("`end_to_end_speedup`, likewise", "x"),
    "minimum_detectable_effect": Doc(
        "minimum relative effect on `speedup` detectable with 80 % power", "fraction"
    ),
    "warnings": Doc("what deserves a second look; the cell stays valid"),
}


class Analysed(Protocol):
    """What cells and decisions are read from: a run after analysis, as `Document` is."""

    @property
    def run(self) -> RunRecord: ...
    @property
    def cells(self) -> tuple[CellSummary, ...]: ...


class CellRow(NamedTuple):
    """One cell of one run."""

    run: RunRecord
    cell: CellSummary

    @property
    def key(self) -> CellKey:
        return self.cell.key


_SYNTHETIC: Column[CellRow] = Column(
    name="synthetic",
    unit="",
    meaning="acceptance was simulated or the weights are dummies: only timings are real",
    dtype="bool",
    value=attrgetter("run.settings.decoder.is_synthetic"),
)
_SUMMARY: tuple[Column[CellRow], ...] = record_columns(
    CellSummary, DOCS, attrgetter("cell"), without=("key", "metrics", "goodput")
)


def cells_frame(runs: Sequence[Analysed]) -> pd.DataFrame:
    """The first pass of every measured cell, in the order of the plan."""
    return frame_of(cell_columns(), [CellRow(run.run, cell) for run in runs for cell in run.cells])


def cell_columns() -> tuple[Column[Any], ...]:
    """Every metric has a column, whether the run has it or not."""
    metrics = map(_metric_column, all_metrics().values())
    return (RUN_ID, _SYNTHETIC, *KEY, *_SUMMARY, *metrics, cell_id())


def _metric_column(metric: Metric) -> Column[CellRow]:
    annotation = get_type_hints(metric.function).get("return", float | None)
    return Column(
        name=metric.name,
        unit=metric.unit,
        meaning=metric.formula,
        dtype=dtype_of(annotation),
        value=lambda row: row.cell.metrics.get(metric.name),
    )
