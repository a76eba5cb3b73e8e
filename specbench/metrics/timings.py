"""Seconds and tokens of requests and of passes with overlapping requests, in columns."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specbench.metrics.cell import CellData, Pass, finished, once_a_cell
from specbench.records import RequestRecord, RoundTimeline

Column = NDArray[np.float64]


class RequestTimings(NamedTuple):
    """Seconds and tokens, one entry per request; NaN if its engine does not report them."""

    decode_s: Column
    total_s: Column
    cpu_s: Column
    num_tokens: Column
    num_timed: Column  # those that decode_s took

    @property
    def seconds_per_token(self) -> list[float]:
        """(last token - first token) / (n - 1) of each request with at least two tokens."""
        known = ~np.isnan(self.decode_s) & (self.num_timed > 0)
        seconds: list[float] = (self.decode_s[known] / self.num_timed[known]).tolist()
        return seconds


@once_a_cell
def timings(cell: CellData) -> RequestTimings:
    """The columns of the requests that did not fail."""
    return timings_of(cell.finished)


def timings_of(requests: Iterable[RequestRecord]) -> RequestTimings:
    """The timings, in the order of `requests`."""
    rows = [
        (r.decode_s, r.total_s, r.cpu_s, r.num_output_tokens, r.num_timed_tokens) for r in requests
    ]
    width = len(RequestTimings._fields)
    return RequestTimings(*np.array(rows, dtype=np.float64).reshape(-1, width).T.copy())


class Span(NamedTuple):
    """Seconds of a pass and the output tokens emitted in them."""

    seconds: float
    tokens: float


def samples_decode_span(served: Pass) -> Span | None:
    """The span from the first tokens, which come together, to the last token of the last sample."""
    seconds = max(request.decode_s or 0.0 for request in served.requests)
    tokens = sum(request.num_output_tokens - 1 for request in served.requests)
    return Span(seconds, tokens) if seconds else None


def busy_span(served: Pass, num_rows: int) -> Span | None:
    """The span from the first round in which all `num_rows` rows were live to the last one.

    Prefills between them take their seconds, and their first tokens count, with those of a
    predicted output checked right after. None if the rows never were all live, or if the time of a
    request's first token is unknown.
    """
    rounds = served.record.rounds
    if rounds is None:
        return _busy_of_requests(served, num_rows)
    full = [i for i, live in enumerate(rounds.num_live) if live == num_rows]
    requests = finished(served.requests)
    given = [(r.first_token_s, 1 + r.num_checked_at_once) for r in requests]
    known = [(at_s, tokens) for at_s, tokens in given if at_s is not None]
    if not full or len(known) < len(given):
        return None
    began_s, ended_s = rounds.at_s[full[0]], _end_s(rounds, full[-1])
    emitted = sum(rounds.num_emitted[full[0] : full[-1] + 1])
    emitted += sum(tokens for at_s, tokens in known if began_s < at_s <= ended_s)
    return Span(ended_s - began_s, emitted)


def _busy_of_requests(served: Pass, num_rows: int) -> Span | None:
    """The span from the first to the last moment at which `num_rows` requests were decoded.

    For a server, which does not time its rounds. The tokens of an answer after the first are taken
    as evenly spread until its last.
    """
    done = finished(served.requests)
    spans = [(r.arrived_s or 0.0, (r.arrived_s or 0.0) + (r.total_s or 0.0)) for r in done]
    changes = sorted([(began_s, 1) for began_s, _ in spans] + [(end_s, -1) for _, end_s in spans])
    under_way, began_s, ended_s = 0, None, None
    for at_s, change in changes:
        if under_way == num_rows:
            ended_s = at_s
        under_way += change
        if under_way == num_rows and began_s is None:
            began_s = at_s
    if began_s is None or ended_s is None or ended_s <= began_s:
        return None
    return Span(ended_s - began_s, sum(_tokens_within(r, began_s, ended_s) for r in done))


def _tokens_within(request: RequestRecord, began_s: float, ended_s: float) -> float:
    first_s = request.first_token_s
    if first_s is None or request.decode_s is None:
        return 0.0
    within = request.num_first if began_s < first_s <= ended_s else 0
    last_s = first_s + request.decode_s
    both_s = min(last_s, ended_s) - max(first_s, began_s)
    if both_s <= 0 or not request.decode_s:
        return within
    return within + request.num_timed_tokens * both_s / request.decode_s


def whole_span(served: Pass) -> Span:
    """The span of a pass from its first arrival to its last token or to the choice of a sample,
    calibration included.
    """
    tokens = sum(request.num_output_tokens for request in finished(served.requests))
    return Span(served.seconds, tokens)


def _end_s(rounds: RoundTimeline, i: int) -> float:
    return rounds.at_s[i] + rounds.seconds[i]
