"""All tables, with the meaning of their rows and columns.

There is one row per request (one turn of one prompt, decoded once in one cell), per round, per cell
(its speedup and every metric), per decision, and per session of a server.
"""

import io
import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple, Protocol, get_type_hints

import numpy as np
import pandas as pd

from specbench.doc import Doc
from specbench.errors import UsageError
from specbench.frames.column import (
    KEY,
    LIST,
    RUN_ID,
    TEXT,
    TableColumn,
    array,
    cell_id,
    dtype_of,
    frame_of,
    record_columns,
)
from specbench.metrics.cell import finished
from specbench.metrics.registry import Metric, all_metrics
from specbench.records import (
    AnswerCheck,
    BlockRecord,
    CellKey,
    CellSummary,
    Decision,
    DeviceSample,
    RequestCounts,
    RequestRecord,
    RoundLog,
    RunRecord,
    ServerRecord,
)
from specbench.runs import StoredRun
from specbench.untrusted import inert_cell
from specbench.words.answers import decision_sentence


class RequestRow(NamedTuple):
    """One request of one run."""

    run: RunRecord
    key: CellKey
    block: BlockRecord
    request: RequestRecord


def request_rows(stored: StoredRun) -> Iterator[RequestRow]:
    """Every request of a planned cell, failed ones included, in the order they were stored."""
    keys = {key.id: key for key in stored.run.keys}
    for block in stored.blocks:
        for request in block.requests:
            if request.cell_id in keys:
                yield RequestRow(stored.run, keys[request.cell_id], block, request)


def requests_frame(runs: Sequence[StoredRun]) -> pd.DataFrame:
    """Every request of both phases, in the order they were stored."""
    return frame_of(request_columns(), [row for run in runs for row in request_rows(run)])


def _num_rounds(request: RequestRecord) -> int | None:
    if request.rounds is not None:
        return len(request.rounds)
    return request.counts.num_rounds if request.counts else None


def request_columns() -> tuple[TableColumn[Any], ...]:
    """Times, counts and outputs of a request, and the NVML samples taken while it ran."""
    return (RUN_ID, *KEY, PURPOSE, *RECORD, *_DERIVED, *_CHECK, *_DEVICE, *_COUNTS, *_OF, cell_id())


PURPOSE: TableColumn[RequestRow] = TableColumn(
    name="purpose",
    meaning="`explore`: the exploration phase, as in `cells`; `confirm`: the confirmation run",
    dtype="category",
    value=attrgetter("block.purpose"),
)
RECORD: tuple[TableColumn[RequestRow], ...] = record_columns(
    RequestRecord,
    attrgetter("request"),
    without=(
        *("cell_id", "output_ids", "num_tokens"),
        *("rounds", "counts", "device", "answer_check"),
    ),
)
_DERIVED: tuple[TableColumn[RequestRow], ...] = (
    TableColumn(
        name="num_output_tokens",
        unit="tokens",
        meaning="counted from ids, or by a server that gives none; the first comes from prefill",
        dtype="int64",
        value=attrgetter("request.num_output_tokens"),
    ),
    TableColumn(
        name="num_rounds",
        unit="rounds",
        meaning="absent if the engine does not report it",
        dtype="Int64",
        value=lambda row: _num_rounds(row.request),
    ),
    TableColumn(
        name="output_ids",
        meaning="token ids of the output, a tuple",
        dtype=LIST,
        value=attrgetter("request.output_ids"),
    ),
)
_CHECK: tuple[TableColumn[RequestRow], ...] = record_columns(
    AnswerCheck, attrgetter("request.answer_check"), prefix="check_"
)
_DEVICE: tuple[TableColumn[RequestRow], ...] = record_columns(
    DeviceSample, attrgetter("request.device"), prefix="device_"
)
_COUNTS: tuple[TableColumn[RequestRow], ...] = record_columns(
    RequestCounts, attrgetter("request.counts"), prefix="counted_"
)
_OF: tuple[TableColumn[RequestRow], ...] = (
    TableColumn(
        name="session",
        meaning="of the server, as in `servers`; absent for an engine in this process",
        dtype="category",
        value=attrgetter("block.session"),
    ),
    TableColumn(
        name="cycle",
        meaning="of sessions, from 0",
        dtype="Int64",
        value=attrgetter("block.cycle"),
    ),
)


_REQUEST_KEY = ("prompt_id", "turn", "repeat", "sample")  # identify a request in its cell


def round_columns() -> tuple[TableColumn[Any], ...]:
    """The request of a round, its index, and the fields of `RoundLog`."""
    return (*_REQUEST, *_ROUND, cell_id())


def rounds_frame(runs: Sequence[StoredRun]) -> pd.DataFrame:
    """The rounds of every finished request, from which metrics are computed."""
    rows = [row for stored in runs for row in request_rows(stored) if _has_rounds(row)]
    lengths = [len(index) for index in map(_index, rows)]
    request_of = np.repeat(np.arange(len(rows)), lengths)
    per_round = {column.name for column in _ROUND}
    frame: dict[str, Any] = {}
    for column in round_columns():
        values = map(column.value, rows)
        if column.name in per_round:
            padded = (v or (None,) * n for v, n in zip(values, lengths, strict=True))
            frame[column.name] = array([*chain.from_iterable(padded)], column.dtype)
        else:
            frame[column.name] = array([*values], column.dtype).take(request_of)
    return pd.DataFrame(frame)


def _has_rounds(row: RequestRow) -> bool:
    return bool(row.request.rounds and finished((row.request,)))


def _index(row: RequestRow) -> range:
    return range(len(row.request.rounds or ()))


def _logged() -> Iterator[TableColumn[RequestRow]]:
    """The columns of a log, whose fields have one entry per round, with the type of an entry."""
    hints = get_type_hints(RoundLog)
    for column in record_columns(RoundLog, attrgetter("request.rounds")):
        yield replace(column, dtype=dtype_of(hints[column.name], each=True))


_INDEX: TableColumn[RequestRow] = TableColumn(
    name="round_index",
    meaning="index of the round in its request, from 0; prefill is not counted",
    dtype="int64",
    value=_index,
)
_REQUEST: tuple[TableColumn[Any], ...] = (
    RUN_ID,
    *KEY,
    PURPOSE,
    *(column for column in RECORD if column.name in _REQUEST_KEY),
)
_ROUND: tuple[TableColumn[RequestRow], ...] = (_INDEX, *_logged())


class AnalyzedRun(Protocol):
    """A run after analysis, such as `Document`."""

    @property
    def run(self) -> RunRecord: ...
    @property
    def cells(self) -> tuple[CellSummary, ...]: ...
    @property
    def decisions(self) -> tuple[Decision, ...]: ...


class CellRow(NamedTuple):
    """One cell of one run."""

    run: RunRecord
    cell: CellSummary

    @property
    def key(self) -> CellKey:
        return self.cell.key


_SYNTHETIC: TableColumn[CellRow] = TableColumn(
    name="synthetic",
    meaning="acceptance was simulated or the weights are dummies: only timings are real",
    dtype="bool",
    value=attrgetter("run.settings.decoder.is_synthetic"),
)
_SUMMARY: tuple[TableColumn[CellRow], ...] = record_columns(
    CellSummary, attrgetter("cell"), without=("key", "metrics", "goodput")
)


def cells_frame(runs: Sequence[AnalyzedRun]) -> pd.DataFrame:
    """Every measured cell of the exploration phase, in the order of the plan."""
    return frame_of(cell_columns(), [CellRow(run.run, cell) for run in runs for cell in run.cells])


def cell_columns() -> tuple[TableColumn[Any], ...]:
    """The columns of cells, which have one per metric and are the same for every run."""
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


class DecisionRow(NamedTuple):
    """One decision of one run."""

    run: RunRecord
    decision: Decision

    @property
    def key(self) -> CellKey:
        """The configuration to use: `none` and K = 0 for no speculation and if undecided."""
        return self.decision.key


_ANSWER: tuple[TableColumn[DecisionRow], ...] = record_columns(
    Decision, attrgetter("decision"), without=("leader", "draft", "is_synthetic")
)
_TEXT: TableColumn[DecisionRow] = TableColumn(
    name="text",
    meaning="the answer in words, with the workload before it",
    dtype=TEXT,
    value=lambda row: decision_sentence(row.decision),
)


def decisions_frame(runs: Sequence[AnalyzedRun]) -> pd.DataFrame:
    """The decisions, in the order of the plan."""
    rows = [DecisionRow(run.run, decision) for run in runs for decision in run.decisions]
    return frame_of(decision_columns(), rows)


def decision_columns() -> tuple[TableColumn[Any], ...]:
    """The columns of decisions; `cell_id` is the cell that a decision is about."""
    return (RUN_ID, *KEY, *_ANSWER, _TEXT, cell_id(attrgetter("decision.leader")))


_COUNTERS = {
    "num_rounds": Doc("rounds that drafted, by the server's counters", "rounds"),
    "num_draft_tokens": Doc("drafted in them", "tokens"),
    "num_accepted": Doc("of them accepted, also past the ends of outputs", "tokens"),
    "num_tokens": Doc("output tokens, of all clients", "tokens"),
    "num_prompt_tokens": Doc("prompt tokens, of all clients", "tokens"),
    "num_requests": Doc("finished requests, of all clients", "requests"),
}


class ServerRow(NamedTuple):
    """One session of one run."""

    run: RunRecord
    server: ServerRecord


def servers_frame(runs: Sequence[StoredRun]) -> pd.DataFrame:
    """Every attempt at a session, in order; empty without a serving engine."""
    rows = [ServerRow(run.run, server) for run in runs for server in run.servers]
    return frame_of(server_columns(), rows)


def server_columns() -> tuple[TableColumn[Any], ...]:
    """Start, counters, client load and effective settings of a session."""
    return (RUN_ID, *_RECORD_COLUMNS, *_COUNTED, *_CLIENT, *_START)


def _counter(name: str) -> Callable[[ServerRow], float | None]:
    return lambda row: row.server.counters.get(name)


def _of_client(name: str) -> Callable[[ServerRow], float | None]:
    def total(row: ServerRow) -> float | None:
        return sum(getattr(load, name) for load in row.server.client) if row.server.client else None

    return total


_RECORD_COLUMNS: tuple[TableColumn[ServerRow], ...] = record_columns(
    ServerRecord, attrgetter("server"), without=("command", "settings", "counters", "client")
)
_COUNTED: tuple[TableColumn[ServerRow], ...] = tuple(
    TableColumn(
        name=f"counted_{name}",
        unit=doc.unit,
        meaning=doc.meaning,
        dtype="Float64",
        value=_counter(name),
    )
    for name, doc in _COUNTERS.items()
)
_CLIENT: tuple[TableColumn[ServerRow], ...] = (
    TableColumn(
        name="client_cpu_s",
        unit="s",
        meaning="CPU time of the client over the measured requests",
        dtype="Float64",
        value=_of_client("cpu_s"),
    ),
    TableColumn(
        name="client_num_events",
        unit="events",
        meaning="streamed to the client",
        dtype="Int64",
        value=_of_client("num_events"),
    ),
)
_START: tuple[TableColumn[ServerRow], ...] = (
    TableColumn(
        name="command",
        meaning="its command, quoted for a shell; empty if it was running",
        dtype=TEXT,
        value=lambda row: shlex.join(row.server.command),
    ),
    TableColumn(
        name="settings",
        meaning="effective ones, as the server reports them: a JSON object",
        dtype=TEXT,
        value=lambda row: json.dumps(dict(row.server.settings)),
    ),
)


# Flags that are true and false in the file, as in JSON; later ones are True and False.
_JSON_FLAGS = ("synthetic", "valid")


def cells_csv(runs: Sequence[AnalyzedRun]) -> str:
    """The cells as CSV: units as stored (seconds, bytes, fractions); absent values are empty."""
    cells = cells_frame(runs)
    for name in cells.columns:
        if name in _JSON_FLAGS or cells[name].dtype == LIST:
            cells[name] = [None if value is None else json.dumps(value) for value in cells[name]]
        elif not pd.api.types.is_numeric_dtype(cells[name]):
            cells[name] = [inert_cell(v) if isinstance(v, str) else None for v in cells[name]]
    return cells.to_csv(index=False, lineterminator="\n")


def to_parquet(table: pd.DataFrame) -> bytes:
    """The table as Parquet, with its types and lists. UsageError without pyarrow."""
    buffer = io.BytesIO()
    try:
        table.to_parquet(buffer, engine="pyarrow", index=False)
    except ImportError as error:
        raise UsageError("Parquet needs pyarrow: python -m pip install pyarrow") from error
    return buffer.getvalue()


@dataclass(frozen=True, kw_only=True, slots=True)
class FrameTable:
    """A table. Its columns are the same for every run, so that tables of several can be stacked."""

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
        raise UsageError(f"no table {table!r}: choose from {', '.join(TABLES)}")
    parts = ("name", "unit", "meaning", "dtype")
    return pd.DataFrame(
        [[getattr(column, part) for part in parts] for column in TABLES[table].columns()],
        columns=parts,
        dtype=TEXT,
    )
