"""Seconds and tokens of requests and of passes with overlapping requests, and their sums over the
same work by a cell and by its baseline, from which speedups follow.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from itertools import compress
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from specbench.metrics.cell import (
    CellData,
    Pass,
    finished,
    num_within,
    once_a_cell,
    paired_requests,
)
from specbench.metrics.stalls import stalls
from specbench.records import RequestRecord
from specbench.stats.crossed import crossed_speedup
from specbench.stats.intervals import with_half_count

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
    began_s, ended_s = rounds.at_s[full[0]], rounds.at_s[full[-1]] + rounds.seconds[full[-1]]
    emitted = sum(rounds.num_emitted[full[0] : full[-1] + 1])
    emitted += sum(tokens for at_s, tokens in known if began_s < at_s <= ended_s)
    return Span(ended_s - began_s, emitted)


def _busy_of_requests(served: Pass, num_rows: int) -> Span | None:
    """The span from the first to the last moment at which `num_rows` requests were decoded.

    For a server, which does not time its rounds. The tokens of an answer after the first are taken
    as evenly spread until its last.
    """
    done = finished(served.requests)
    if any(request.decode_s is None for request in done):
        return None
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


U = TypeVar("U", bound=Hashable)
_UnitKey = tuple[int | None, str]  # cycle of a server's sessions, None: in no whole one; and unit
_NO_SPAN = Span(math.nan, math.nan)


class PairedSeconds(NamedTuple):
    """One entry per prompt, its turns and repeats summed; for overlapping requests one per pass.

    For a server the arrays are [cycles, prompts], or [cycles, 1] for overlapping requests; NaN if
    a request failed.
    """

    base_s: NDArray[np.float64]
    spec_s: NDArray[np.float64]
    base_tokens: NDArray[np.float64]
    spec_tokens: NDArray[np.float64]

    @property
    def has_cycles(self) -> bool:
        return self.base_s.ndim > 1

    @property
    def speedup(self) -> float:
        """Baseline seconds per token / speculative seconds per token; for cycles the mean."""
        if self.has_cycles:
            return math.exp(crossed_speedup(*self).log)
        base_s, spec_s, base_tokens, spec_tokens = (column.sum() for column in self)
        return float(base_s / base_tokens / (spec_s / spec_tokens))


class _PairedUnits(NamedTuple):
    """Requests that finished on both sides, and the unit that each pair is added to."""

    unit_keys: list[_UnitKey]
    base: RequestTimings
    spec: RequestTimings


class _PairedRows(NamedTuple):
    """Amounts that requests or passes add to their units, one row per request or pass."""

    unit_keys: list[_UnitKey]
    columns: NDArray[np.float64]  # of PairedSeconds; NaN if a side has no such time


@once_a_cell
def paired_decode(cell: CellData) -> PairedSeconds | None:
    """Seconds from first token to last, with the tokens after the first.

    With many concurrent requests: seconds while all rows are busy, with the tokens emitted in them.
    With arrivals in open loop, which fix the throughput: the requests' own seconds again.
    With several samples: seconds until the last one has ended, with the tokens of all.
    """
    at = cell.key.condition
    if at.num_samples > 1:
        return _summed(cell, _passes(cell, samples_decode_span))
    if at.is_stream and at.request_rate is None:
        return _summed(cell, _passes(cell, lambda served: busy_span(served, at.concurrency)))
    return _summed(cell, _requests(cell, _decoding))


def prompt_speedups(cell: CellData) -> dict[str, float]:
    """Decode seconds per token at K = 0 / at the cell's K of each prompt, its turns and repeats
    together; empty if requests overlap, because prompts then have no separate speed, and under an
    SLO.
    """
    if cell.key.condition.overlaps or cell.slo:
        return {}
    return {prompt: base_s / spec_s for prompt, (base_s, spec_s) in prompt_seconds(cell).items()}


def prompt_seconds(cell: CellData, *, whole: bool = False) -> dict[str, tuple[float, float]]:
    """Seconds of decoding, or of `whole` requests, at K = 0 and at the cell's K by prompt; for as
    many tokens as K = 0 emitted. For requests that do not overlap.
    """
    unit_keys, columns = _requests(cell, _whole_requests if whole else _decoding)
    whole_cycles = [cycle is not None or not cell.servers for cycle, _ in unit_keys]
    columns = np.where(whole_cycles, columns, np.nan)
    sums = _sums([prompt for _, prompt in unit_keys], columns)
    return {
        prompt: (float(base_s), float(spec_s / spec_tokens * base_tokens))
        for prompt, (base_s, spec_s, base_tokens, spec_tokens) in sums.items()
    }


def session_log_speeds(cell: CellData) -> NDArray[np.float64]:
    """Log of decoded tokens per second: [sessions, prompts that every session served]."""
    speeds = []
    for requests in map(finished, cell.sessions):
        columns = np.stack(_decoding(timings_of(requests)))
        sums = _sums(
            [request.prompt_id for request in requests], np.where(columns > 0, columns, np.nan)
        )
        speeds.append({prompt: math.log(tokens / s) for prompt, (s, tokens) in sums.items()})
    served = [prompt for prompt in speeds[0] if all(prompt in session for session in speeds)]
    return np.array([[session[prompt] for prompt in served] for session in speeds])


@once_a_cell
def paired_end_to_end(cell: CellData) -> PairedSeconds | None:
    """Seconds of whole requests, prefill of target and drafter included.

    With many concurrent requests: seconds of whole passes; in open loop of whole requests again,
    from arrival on. With several samples: until one is picked.
    """
    if cell.key.condition.overlaps and cell.key.condition.request_rate is None:
        return _summed(cell, _passes(cell, whole_span))
    return _summed(cell, _requests(cell, _whole_requests))


@once_a_cell
def paired_goodput(cell: CellData) -> PairedSeconds | None:
    """Seconds of whole requests or passes, and as tokens the number of requests within the SLO,
    plus half a request on each side. None without an SLO.
    """
    if not cell.slo:
        return None
    if cell.key.condition.is_stream:
        rows = _passes(
            cell, lambda served: Span(served.record.seconds, num_within(served.requests, cell.slo))
        )
    else:
        rows = _rows(
            [_unit_key(cell, spec.prompt_id, spec) for _, spec in cell.pairs],
            ((_whole(request, cell.slo) for request in pair) for pair in cell.pairs),
        )
    counts = _summed(cell, rows)
    if counts is None:
        return None
    return counts._replace(
        base_tokens=with_half_count(counts.base_tokens),
        spec_tokens=with_half_count(counts.spec_tokens),
    )


def _whole(request: RequestRecord, slo: Mapping[str, float]) -> Span | None:
    return Span(request.total_s, num_within([request], slo)) if request.total_s else None


def paired_cpu(cell: CellData) -> PairedSeconds | None:
    """Process CPU seconds of whole requests; None if requests overlap."""
    if cell.key.condition.overlaps:
        return None
    return _summed(cell, _requests(cell, lambda known: (known.cpu_s, known.num_tokens)))


@once_a_cell
def _paired(cell: CellData) -> _PairedUnits:
    """The paired requests with their units: passes if requests overlap, else prompts. Stalled
    requests are left out."""
    if cell.key.condition.is_stream:
        units = [
            (passes.spec.unit, pair)
            for passes in cell.pass_pairs
            for pair in paired_requests(passes.base.requests, passes.spec.requests)
        ]
    else:
        left_out = stalls(cell).left_out if cell.is_screened else frozenset()
        pairs = (pair for i, pair in enumerate(cell.pairs) if i not in left_out)
        units = [(pair.spec.prompt_id, pair) for pair in pairs]
    return _PairedUnits(
        unit_keys=[_unit_key(cell, unit, pair.spec) for unit, pair in units],
        base=timings_of(pair.base for _, pair in units),
        spec=timings_of(pair.spec for _, pair in units),
    )


def _requests(
    cell: CellData, span: Callable[[RequestTimings], tuple[Column, Column]]
) -> _PairedRows:
    """The rows of the pairs; a request without such a time adds nothing."""
    unit_keys, base, spec = _paired(cell)
    columns = np.stack([span(base), span(spec)], axis=1).reshape(4, -1)
    return _PairedRows(unit_keys, np.where(columns > 0, columns, np.nan))


def _decoding(known: RequestTimings) -> tuple[Column, Column]:
    return known.decode_s, known.num_timed


def _whole_requests(known: RequestTimings) -> tuple[Column, Column]:
    return known.total_s, known.num_tokens


def _passes(cell: CellData, span: Callable[[Pass], Span | None]) -> _PairedRows:
    unit_keys = [_unit_key(cell, spec.unit, spec.requests[0]) for _, spec in cell.pass_pairs]
    return _rows(unit_keys, ((span(base), span(spec)) for base, spec in cell.pass_pairs))


def _rows(unit_keys: list[_UnitKey], spans: Iterable[Iterable[Span | None]]) -> _PairedRows:
    table = [[span or _NO_SPAN for span in both] for both in spans]
    columns = np.array(table).reshape(-1, 4).T
    return _PairedRows(unit_keys, columns[[0, 2, 1, 3]])  # seconds of both sides, then tokens


def _unit_key(cell: CellData, unit: str, request: RequestRecord) -> _UnitKey:
    cycle = cell.cycles.get(request.repeat)
    return cycle, unit if cycle is None or not cell.key.condition.is_stream else ""


def _summed(cell: CellData, rows: _PairedRows) -> PairedSeconds | None:
    """Sums per unit; None if no row has both sides."""
    sums = _sums(*rows)
    if cell.servers:
        sums = {unit_key: total for unit_key, total in sums.items() if unit_key[0] is not None}
    if not sums:
        return None
    if not cell.servers:
        return PairedSeconds(*np.array([*sums.values()]).T)
    cycles, names = ([*dict.fromkeys(part)] for part in zip(*sums, strict=True))
    table = np.full((len(PairedSeconds._fields), len(cycles), len(names)), np.nan)
    for (cycle, unit), total in sums.items():
        table[:, cycles.index(cycle), names.index(unit)] = total
    return PairedSeconds(*table)


def _sums(units: Iterable[U], columns: NDArray[np.float64]) -> dict[U, NDArray[np.float64]]:
    """The columns summed over the rows of each unit that both sides have."""
    used = ~np.isnan(columns.sum(axis=0))  # NaN if one of them is
    known: dict[U, int] = {}
    index = [known.setdefault(unit, len(known)) for unit in compress(units, used)]
    sums = [np.bincount(np.array(index, dtype=np.intp), column[used]) for column in columns]
    return dict(zip(known, np.array(sums).T, strict=True))
