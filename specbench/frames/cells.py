"""One row per cell, with its speedup and every metric, and one row per decision."""

from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, NamedTuple, Protocol, get_type_hints

import pandas as pd

from specbench.decide.recommend import judge
from specbench.frames.column import (
    KEY,
    RUN_ID,
    TableColumn,
    cell_id,
    dtype_of,
    frame_of,
    record_columns,
)
from specbench.metrics.registry import Metric, all_metrics
from specbench.records import CellKey, CellSummary, Decision, RunRecord


class Analysed(Protocol):
    """The source of cells: a run after analysis, such as `Document`."""

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


_SYNTHETIC: TableColumn[CellRow] = TableColumn(
    name="synthetic",
    unit="",
    meaning="acceptance was simulated or the weights are dummies: only timings are real",
    dtype="bool",
    value=attrgetter("run.settings.decoder.is_synthetic"),
)
_SUMMARY: tuple[TableColumn[CellRow], ...] = record_columns(
    CellSummary, attrgetter("cell"), without=("key", "metrics", "goodput")
)


def cells_frame(runs: Sequence[Analysed]) -> pd.DataFrame:
    """Every measured cell of the exploration phase, in the order of the plan."""
    return frame_of(cell_columns(), [CellRow(run.run, cell) for run in runs for cell in run.cells])


def cell_columns() -> tuple[TableColumn[Any], ...]:
    """The columns of all metrics, which every run has."""
    metrics = map(_metric_column, all_metrics().values())
    return (RUN_ID, _SYNTHETIC, *KEY, *_SUMMARY, *metrics, cell_id())


def _metric_column(metric: Metric) -> TableColumn[CellRow]:
    annotation = get_type_hints(metric.function).get("return", float | None)
    return TableColumn(
        name=metric.name,
        unit=metric.unit,
        meaning=metric.formula,
        dtype=dtype_of(annotation),
        value=lambda row: row.cell.metrics.get(metric.name),
    )


class DecisionSource(Protocol):
    """A run with its decisions, such as `Document`."""

    @property
    def run(self) -> RunRecord: ...
    @property
    def decisions(self) -> tuple[Decision, ...]: ...


class DecisionRow(NamedTuple):
    """One decision of one run."""

    run: RunRecord
    decision: Decision

    @property
    def key(self) -> CellKey:
        """The configuration to use: `none` and K = 0 for no speculation and if undecided."""
        return self.decision.key


_VERDICT: TableColumn[DecisionRow] = TableColumn(
    name="verdict",
    unit="",
    meaning="`helps`, `hurts or gains nothing` or `not shown to help`",
    dtype="category",
    value=lambda row: judge(row.decision.speedup).value,
)
_ANSWER: tuple[TableColumn[DecisionRow], ...] = record_columns(
    Decision, attrgetter("decision"), without=("leader", "draft", "warnings")
)


def decisions_frame(runs: Sequence[DecisionSource]) -> pd.DataFrame:
    """The decisions, in the order of the plan."""
    rows = [
        DecisionRow(run.run, replace(decision, reasons=decision.reasons_and_warnings))
        for run in runs
        for decision in run.decisions
    ]
    return frame_of(decision_columns(), rows)


def decision_columns() -> tuple[TableColumn[Any], ...]:
    """The columns of decisions; `cell_id` is the cell that a decision is about."""
    return (RUN_ID, *KEY, _VERDICT, *_ANSWER, cell_id(attrgetter("decision.leader")))
