"""A row per session of a server: what it was started with, what it told, what it counted."""

import json
import shlex
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import pandas as pd

from specbench.frames.column import TEXT, Column, Doc, frame_of, record_columns
from specbench.frames.identity import RUN_ID
from specbench.records import RunRecord, ServerRecord
from specbench.runs import StoredRun

DOCS = {
    "session": Doc("this attempt at it, as in `requests`"),
    "place": Doc("the same for every attempt; one of them counts"),
    "target": Doc("name of the target"),
    "engine": Doc("what served"),
    "drafter": Doc("name of the drafter; `none` at K = 0"),
    "method": Doc("how tokens were drafted; `none` at K = 0"),
    "num_speculative_tokens": Doc("K", "tokens/round"),
    "cycle": Doc("of sessions, from 0"),
    "version": Doc("of the engine; empty where it did not come up"),
    "model": Doc("as the server calls it"),
    "addresses": Doc("of a server that was running; empty where we started it"),
    "template_clock": Doc(
        "date in its chat template, `server` for its own; absent if unknown", dtype=TEXT
    ),
    "prefix_cache": Doc("whether it kept prefixes: `off`, `on`, `unknown` or `by request`"),
    "acceptance_rule": Doc("when a draft is accepted; absent where it is not known", dtype=TEXT),
    "num_gpus": Doc("that it ran on", "GPUs"),
    "kv_tokens": Doc("that its KV cache has room for", "tokens"),
    "start_s": Doc("until it was healthy", "s"),
    "started_s": Doc("when its process started, in Unix seconds, as its counters report", "s"),
    "attempt": Doc(
        "at its cycle, from 1: the sessions of one count, together: of the one that held the most"
    ),
    "seconds": Doc("of the measured requests", "s"),
    "num_preemptions": Doc("requests put off for lack of room", "requests"),
    "queue_s": Doc("that requests waited inside it, summed", "s"),
    "power_w": Doc("mean power of all its GPUs", "W"),
    "memory_bytes": Doc("peak memory in use, of all its GPUs", "bytes"),
    "throttle_reasons": Doc("why a GPU lowered its clock; empty where none did", dtype=TEXT),
    "sees_others": Doc("whether another client's requests would have been noticed"),
    "problems": Doc("why none of its figures are used; empty where they are"),
    "warnings": Doc("what deserves a second look"),
    "log": Doc("file of its output, in the run's folder"),
    "node": Doc("of a cluster, where it was held; absent without one", dtype=TEXT),
}
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
    """Every attempt at a session, in the order they were held; no row where nothing was served."""
    rows = [ServerRow(run.run, server) for run in runs for server in run.servers]
    return frame_of(server_columns(), rows)


def server_columns() -> tuple[Column[Any], ...]:
    """What is known of the session, what it counted, what asking took, its effective settings."""
    return (RUN_ID, *_OWN, *_COUNTED, *_CLIENT, *_START)


def _counter(name: str) -> Callable[[ServerRow], float | None]:
    return lambda row: row.server.counters.get(name)


def _of_client(name: str) -> Callable[[ServerRow], float | None]:
    def total(row: ServerRow) -> float | None:
        return sum(getattr(load, name) for load in row.server.client) if row.server.client else None

    return total


_OWN: tuple[Column[ServerRow], ...] = record_columns(
    ServerRecord, DOCS, attrgetter("server"), without=("command", "settings", "counters", "client")
)
_COUNTED: tuple[Column[ServerRow], ...] = tuple(
    Column(
        name=f"counted_{name}",
        unit=doc.unit,
        meaning=doc.meaning,
        dtype="Float64",
        value=_counter(name),
    )
    for name, doc in _COUNTERS.items()
)
_CLIENT: tuple[Column[ServerRow], ...] = (
    Column(
        name="client_cpu_s",
        unit="s",
        meaning="CPU time of the client over the measured requests",
        dtype="Float64",
        value=_of_client("cpu_s"),
    ),
    Column(
        name="client_num_events",
        unit="events",
        meaning="streamed to the client",
        dtype="Int64",
        value=_of_client("num_events"),
    ),
)
_START: tuple[Column[ServerRow], ...] = (
    Column(
        name="command",
        unit="",
        meaning="what started it, as a shell takes it; empty where it was running",
        dtype=TEXT,
        value=lambda row: shlex.join(row.server.command),
    ),
    Column(
        name="settings",
        unit="",
        meaning="effective ones, as the server tells them: a JSON object",
        dtype=TEXT,
        value=lambda row: json.dumps(dict(row.server.settings)),
    ),
)
