"""A row per round: what was drafted, accepted and emitted in it, and where its time went."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from operator import attrgetter
from typing import Any, get_type_hints

import numpy as np
import pandas as pd

from specbench.frames.column import Column, Doc, array, dtype_of, record_columns
from specbench.frames.identity import KEY, RUN_ID, cell_id
from specbench.frames.requests import OWN, PURPOSE, RequestRow, request_rows
from specbench.metrics.cell import finished
from specbench.records import RoundLog
from specbench.runs import StoredRun

DOCS = {
    "num_drafted": Doc("tokens drafted; of a tree its nodes", "tokens"),
    "num_accepted": Doc("of them accepted, without the bonus or recovered token", "tokens"),
    "num_emitted": Doc("output tokens: accepted + 1, fewer where the output ended", "tokens"),
    "round_s": Doc("the whole round", "s"),
    "draft_s": Doc("of it spent on drafting; absent where it cannot be told apart", "s"),
    "verify_s": Doc("of it spent on the target's forward and the acceptance test", "s"),
}
_WHICH = ("prompt_id", "turn", "repeat", "sample")  # of a cell's requests a round belongs to


def round_columns() -> tuple[Column[Any], ...]:
    """Its request, its place among that request's rounds, and what `RoundLog` holds of it."""
    return (*_REQUEST, *_ROUND, cell_id())


def rounds_frame(runs: Sequence[StoredRun]) -> pd.DataFrame:
    """The rounds of every request that finished: those which metrics are computed from."""
    rows = [row for stored in runs for row in request_rows(stored) if _counts(row)]
    lengths = [len(index) for index in map(_index, rows)]
    request_of = np.repeat(np.arange(len(rows)), lengths)
    own = {column.name for column in _ROUND}
    frame: dict[str, Any] = {}
    for column in round_columns():
        values = map(column.value, rows)
        if column.name in own:
            padded = (v or (None,) * n for v, n in zip(values, lengths, strict=True))
            frame[column.name] = array([*chain.from_iterable(padded)], column.dtype)
        else:
            frame[column.name] = array([*values], column.dtype).take(request_of)
    return pd.DataFrame(frame)


def _counts(row: RequestRow) -> bool:
    return bool(row.request.rounds and finished((row.request,)))


def _index(row: RequestRow) -> range:
    return range(len(row.request.rounds or ()))


def _logged() -> Iterator[Column[RequestRow]]:
    """The fields of a log, each a request's rounds at once, by the type of a single one."""
    hints = get_type_hints(RoundLog)
    for column in record_columns(RoundLog, DOCS, attrgetter("request.rounds")):
        yield replace(column, dtype=dtype_of(hints[column.name], each=True))


_INDEX: Column[RequestRow] = Column(
    name="round_index",
    unit="",
    meaning="of the request's rounds, from 0; prefill is none of them",
    dtype="int64",
    value=_index,
)
_REQUEST: tuple[Column[Any], ...] = (
    RUN_ID,
    *KEY,
    PURPOSE,
    *(column for column in OWN if column.name in _WHICH),
)
_ROUND: tuple[Column[RequestRow], ...] = (_INDEX, *_logged())
