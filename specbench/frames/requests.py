"""One row per request (one turn of one prompt, decoded once in one cell), and one per round."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple, get_type_hints

import numpy as np
import pandas as pd

from specbench.frames.column import (
    KEY,
    LIST,
    RUN_ID,
    TableColumn,
    array,
    cell_id,
    dtype_of,
    frame_of,
    record_columns,
)
from specbench.metrics.cell import finished
from specbench.records import (
    AnswerCheck,
    BlockRecord,
    CellKey,
    DeviceSample,
    RequestCounts,
    RequestRecord,
    RoundLog,
    RunRecord,
)
from specbench.runs import StoredRun


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
    rows = [row for stored in runs for row in request_rows(stored) if _counts(row)]
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


def _counts(row: RequestRow) -> bool:
    return bool(row.request.rounds and finished((row.request,)))


def _index(row: RequestRow) -> range:
    return range(len(row.request.rounds or ()))


def _logged() -> Iterator[TableColumn[RequestRow]]:
    """The fields of a log, which have one entry per round, with the type of an entry."""
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
