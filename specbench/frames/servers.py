"""One row per session of a server: its command, effective settings and counters."""

import json
import shlex
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import pandas as pd

from specbench.doc import Doc
from specbench.frames.column import RUN_ID, TEXT, TableColumn, frame_of, record_columns
from specbench.records import RunRecord, ServerRecord
from specbench.runs import StoredRun

_COUNTERS = {
    "num_rounds": Doc("rounds that drafted, by the server's counters", "rounds"),
    "num_draft_tokens": Doc("drafted in them", "tokens"),
    "num_accepted": Doc("of them accepted, also past the ends of answers", "tokens"),
    "num_tokens": Doc("emitted, for whatever client", "tokens"),
    "num_prompt_tokens": Doc("read, for whatever client", "tokens"),
    "num_requests": Doc("finished, for whatever client", "requests"),
}


class ServerRow(NamedTuple):
    """One session of one run."""

    run: RunRecord
    server: ServerRecord


def servers_frame(runs: Sequence[StoredRun]) -> pd.DataFrame:
    """Every attempt at a session, in order; none without a serving engine."""
    rows = [ServerRow(run.run, server) for run in runs for server in run.servers]
    return frame_of(server_columns(), rows)


def server_columns() -> tuple[TableColumn[Any], ...]:
    """Start, counters, client load and effective settings of a session."""
    return (RUN_ID, *_OWN, *_COUNTED, *_CLIENT, *_START)


def _counter(name: str) -> Callable[[ServerRow], float | None]:
    return lambda row: row.server.counters.get(name)


def _of_client(name: str) -> Callable[[ServerRow], float | None]:
    def total(row: ServerRow) -> float | None:
        return sum(getattr(load, name) for load in row.server.client) if row.server.client else None

    return total


_OWN: tuple[TableColumn[ServerRow], ...] = record_columns(
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
        unit="",
        meaning="its command, as a shell takes it; empty if it was running",
        dtype=TEXT,
        value=lambda row: shlex.join(row.server.command),
    ),
    TableColumn(
        name="settings",
        unit="",
        meaning="effective ones, as the server reports them: a JSON object",
        dtype=TEXT,
        value=lambda row: json.dumps(dict(row.server.settings)),
    ),
)
