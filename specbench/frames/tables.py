"""All tables, with the meaning of their rows and columns.

There is one row per request (one turn of one prompt, decoded once in one cell), per round, per cell
(its speedup and every metric), per decision, and per session of a server.
"""

import io
import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from types import NoneType
from typing import Any, NamedTuple, Protocol, get_args

import numpy as np
import pandas as pd

from specbench.doc import Doc, Key, keys_of
from specbench.errors import UsageError
from specbench.frames.column import LIST, TEXT, array, columns_of, dtype_of, frame_of
from specbench.metrics.cell import finished
from specbench.metrics.registry import all_metrics
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
from specbench.records.keys import flat_keys
from specbench.runs import StoredRun
from specbench.untrusted import inert_cell
from specbench.words.answers import answer_keys

_RUN = {
    "run_id": Key(
        str, "the run, so that tables of several runs can be stacked", attrgetter("run.run_id")
    )
}
_KEY = flat_keys(attrgetter("key"))


def _cell_id(path: str = "key") -> dict[str, Key]:
    """The column by which tables are joined."""
    meaning = "the cell in one word: join tables on `run_id` and `cell_id`"
    return {"cell_id": Key(str, meaning, attrgetter(f"{path}.id"))}


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
    return frame_of(_REQUESTS, [row for run in runs for row in request_rows(run)])


def _num_rounds(row: RequestRow) -> int | None:
    request = row.request
    if request.rounds is not None:
        return len(request.rounds)
    return request.counts.num_rounds if request.counts else None


_PURPOSE = {
    "purpose": Key(
        str,
        "`explore`: the exploration phase, as in `cells`; `confirm`: the confirmation run",
        attrgetter("block.purpose"),
    )
}
_REQUEST = keys_of(
    RequestRecord,
    attrgetter("request"),
    without=(
        *("cell_id", "output_ids", "num_tokens"),
        *("rounds", "counts", "device", "answer_check"),
    ),
)
# Times, counts and outputs of a request, and the NVML samples taken while it ran.
_REQUESTS = {
    **_RUN,
    **_KEY,
    **_PURPOSE,
    **_REQUEST,
    "num_output_tokens": Key(
        int,
        Doc(
            "counted from ids, or by a server that gives none; the first comes from prefill",
            "tokens",
        ),
        attrgetter("request.num_output_tokens"),
    ),
    "num_rounds": Key(
        int | None, Doc("absent if the engine does not report it", "rounds"), _num_rounds
    ),
    "output_ids": Key(
        tuple[int, ...], "token ids of the output, a tuple", attrgetter("request.output_ids")
    ),
    **keys_of(AnswerCheck, attrgetter("request.answer_check"), prefix="check_"),
    **keys_of(DeviceSample, attrgetter("request.device"), prefix="device_"),
    **keys_of(RequestCounts, attrgetter("request.counts"), prefix="counted_"),
    "session": Key(
        str | None,
        "of the server, as in `servers`; absent for an engine in this process",
        attrgetter("block.session"),
    ),
    "cycle": Key(int | None, "of sessions, from 0", attrgetter("block.cycle")),
    **_cell_id(),
}


def rounds_frame(runs: Sequence[StoredRun]) -> pd.DataFrame:
    """The rounds of every finished request, from which metrics are computed."""
    rows = [row for stored in runs for row in request_rows(stored) if _has_rounds(row)]
    lengths = [len(index) for index in map(_index, rows)]
    request_of = np.repeat(np.arange(len(rows)), lengths)
    frame: dict[str, Any] = {}
    for name, key in _ROUNDS.items():
        values = map(key.value or attrgetter(name), rows)
        if name in _ROUND:
            padded = (v or (None,) * n for v, n in zip(values, lengths, strict=True))
            frame[name] = array([*chain.from_iterable(padded)], dtype_of(key))
        else:
            frame[name] = array([*values], dtype_of(key)).take(request_of)
    return pd.DataFrame(frame)


def _has_rounds(row: RequestRow) -> bool:
    return bool(row.request.rounds and finished((row.request,)))


def _index(row: RequestRow) -> range:
    return range(len(row.request.rounds or ()))


def _entry(kind: Any) -> Any:
    """The type of an entry of a field of a log, which has one per round."""
    (lists,) = {*(get_args(kind) if NoneType in get_args(kind) else (kind,))} - {NoneType}
    each = get_args(lists)[0]
    return each | None if NoneType in get_args(kind) else each


_ROUND = {
    "round_index": Key(
        int, "index of the round in its request, from 0; prefill is not counted", _index
    ),
    **{
        name: key._replace(type=_entry(key.type))
        for name, key in keys_of(RoundLog, attrgetter("request.rounds")).items()
    },
}
# The request of a round, its index, and the fields of `RoundLog`.
_ROUNDS = {
    **_RUN,
    **_KEY,
    **_PURPOSE,
    **{name: _REQUEST[name] for name in ("prompt_id", "turn", "repeat", "sample")},
    **_ROUND,
    **_cell_id(),
}


class AnalyzedRun(Protocol):
    """A run after analysis, such as `Document`."""

    @property
    def run(self) -> RunRecord: ...
    @property
    def cells(self) -> tuple[CellSummary, ...]: ...
    @property
    def decisions(self) -> tuple[Decision, ...]: ...


class _RunEntry(NamedTuple):
    """A cell, decision or server session of one run."""

    run: RunRecord
    of: Any


def cells_frame(runs: Sequence[AnalyzedRun]) -> pd.DataFrame:
    """Every measured cell of the exploration phase, in the order of the plan."""
    return frame_of(_cells(), [_RunEntry(run.run, cell) for run in runs for cell in run.cells])


def _cells() -> dict[str, Key]:
    """The columns of cells, which have one per metric and are the same for every run."""
    metrics = all_metrics()
    return {
        **_RUN,
        "synthetic": Key(
            bool,
            "acceptance was simulated or the weights are dummies: only timings are real",
            attrgetter("run.settings.decoder.is_synthetic"),
        ),
        **flat_keys(attrgetter("of.key")),
        **keys_of(
            CellSummary,
            attrgetter("of"),
            without=("key", "metrics", "goodput", "margin", "screening"),
        ),
        **{name: metric.key(attrgetter("of")) for name, metric in metrics.items()},
        **_cell_id("of.key"),
    }


# The key is the configuration to use, of K = 0 also if undecided; `cell_id` is the cell that a
# decision is about.
_DECISIONS = {
    **_RUN,
    **flat_keys(attrgetter("of.key")),
    **answer_keys(attrgetter("of")),
    **_cell_id("of.leader"),
}


def decisions_frame(runs: Sequence[AnalyzedRun]) -> pd.DataFrame:
    """The decisions, in the order of the plan."""
    rows = [_RunEntry(run.run, decision) for run in runs for decision in run.decisions]
    return frame_of(_DECISIONS, rows)


_COUNTERS = {
    "num_rounds": Doc("rounds that drafted, by the server's counters", "rounds"),
    "num_draft_tokens": Doc("drafted in them", "tokens"),
    "num_accepted": Doc("of them accepted, also past the ends of outputs", "tokens"),
    "num_tokens": Doc("output tokens, of all clients", "tokens"),
    "num_prompt_tokens": Doc("prompt tokens, of all clients", "tokens"),
    "num_requests": Doc("finished requests, of all clients", "requests"),
}


def servers_frame(runs: Sequence[StoredRun]) -> pd.DataFrame:
    """Every attempt at a session, in order; empty without a serving engine."""
    rows = [_RunEntry(run.run, server) for run in runs for server in run.servers]
    return frame_of(_SERVERS, rows)


def _counter(name: str) -> Callable[[_RunEntry], float | None]:
    return lambda row: row.of.counters.get(name)


def _of_client(name: str) -> Callable[[_RunEntry], float | None]:
    def total(row: _RunEntry) -> float | None:
        return sum(getattr(load, name) for load in row.of.client) if row.of.client else None

    return total


# Start, counters, client load and effective settings of a session.
_SERVERS = {
    **_RUN,
    **keys_of(
        ServerRecord,
        attrgetter("of"),
        without=("command", "settings", "read_at", "counters", "client"),
    ),
    **{
        f"counted_{name}": Key(float | None, doc, _counter(name)) for name, doc in _COUNTERS.items()
    },
    "client_cpu_s": Key(
        float | None,
        Doc("CPU time of the client over the measured requests", "s"),
        _of_client("cpu_s"),
    ),
    "client_num_events": Key(
        int | None, Doc("streamed to the client", "events"), _of_client("num_events")
    ),
    "command": Key(
        str,
        Doc("its command, quoted for a shell; empty if it was running", is_text=True),
        lambda row: shlex.join(row.of.command),
    ),
    "read_at": Key(
        str,
        Doc("where its facts were read: a JSON object; an absent one is unknown", is_text=True),
        lambda row: json.dumps(dict(row.of.read_at)),
    ),
    "settings": Key(
        str,
        Doc("effective ones, as the server reports them: a JSON object", is_text=True),
        lambda row: json.dumps(dict(row.of.settings)),
    ),
}


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


class FrameTable(NamedTuple):
    """A table. Its keys are the same for every run, so that tables of several can be stacked."""

    row: str  # what a row is
    keys: Callable[[], Mapping[str, Key]]
    frame: Callable[[Any], pd.DataFrame]
    is_analyzed: bool = False  # made of analyzed runs, not of stored ones


TABLES: Mapping[str, FrameTable] = {
    "cells": FrameTable("one cell of the exploration phase", _cells, cells_frame, is_analyzed=True),
    "requests": FrameTable("one request, failed ones included", lambda: _REQUESTS, requests_frame),
    "rounds": FrameTable("one round of a request that finished", lambda: _ROUNDS, rounds_frame),
    "decisions": FrameTable(
        "the answer for one drafter and setting",
        lambda: _DECISIONS,
        decisions_frame,
        is_analyzed=True,
    ),
    "servers": FrameTable(
        "one session of a server, failed attempts included", lambda: _SERVERS, servers_frame
    ),
}


def describe(table: str) -> pd.DataFrame:
    """A table's columns: name, unit, meaning and pandas type. UsageError for an unknown table."""
    if table not in TABLES:
        raise UsageError(f"no table {table!r}: choose from {', '.join(TABLES)}")
    return pd.DataFrame(
        [
            (name, key.full_doc.unit, key.full_doc.meaning, dtype_of(key))
            for name, key in columns_of(TABLES[table].keys()).items()
        ],
        columns=("name", "unit", "meaning", "dtype"),
        dtype=TEXT,
    )
