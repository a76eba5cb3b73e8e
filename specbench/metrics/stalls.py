"""Requests that the machine held up, which say nothing about K.

A request stalls if it takes more seconds per round than no decoding explains: at least twice the
median of its side, and beyond `MAX_DEVIATIONS` of its spread. Leaving out a stalled K = 0 lowers
the speedup and is free. Leaving out a stalled K raises it, which needs evidence from outside of the
ratio: the process did not run for most of the excess, by its CPU seconds. A request to a server
also stalls, with that evidence, if the client stood still for a part of it.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from specbench.metrics.cell import CellData, once_a_cell
from specbench.records import RequestRecord
from specbench.stats.intervals import MAX_DEVIATIONS
from specbench.stats.spread import MIN_UNITS

SLOWDOWN = 2.0  # times the median; a shared machine's usual states differ by less
MOST_RAISING = 1 / 20  # of the requests at K; one is always possible
WAITED = 0.5  # of the excess seconds, without CPU: the request was not running
MAX_PAUSED = 0.05  # of the seconds of a request, or of concurrent ones together


@dataclass(frozen=True, kw_only=True, slots=True)
class Stalls:
    """Indices of the pairs of a cell in which a side stalled."""

    base: tuple[int, ...]  # at K = 0
    proven: tuple[int, ...]  # at K, and the process waited
    unproven: tuple[int, ...]  # at K: kept in the speedup

    @property
    def left_out(self) -> frozenset[int]:
        return frozenset((*self.base, *self.proven))

    @property
    def all(self) -> frozenset[int]:
        return self.left_out | {*self.unproven}


@once_a_cell
def stalls(cell: CellData) -> Stalls:
    """The stalls of the pairs; none if requests overlap, since they share rounds then."""
    none = Stalls(base=(), proven=(), unproven=())
    if cell.key.condition.overlaps or len(cell.pairs) < MIN_UNITS:
        return none
    base, spec = (list(side) for side in zip(*cell.pairs, strict=True))
    slow = _stalled(spec) | _paused(spec)
    # Without the pair of a prompt that is slow on both sides the speedup may rise.
    slow_base = (_stalled(base) & ~slow) | _paused(base)
    if not (slow_base.any() or slow.any()):
        return none
    at_k = np.flatnonzero(slow & ~slow_base).tolist()
    paused = [i for i in at_k if is_paused(spec[i])]
    running = [i for i in at_k if i not in paused]
    is_cpu = cell.device.startswith("cpu")  # else a process may wait for its kernels
    waited = [i for i in running if is_cpu and _waited(spec[i], spec)]
    proven = paused + (waited if len(running) <= max(1, MOST_RAISING * len(spec)) else [])
    return Stalls(
        base=tuple(np.flatnonzero(slow_base).tolist()),
        proven=tuple(sorted(proven)),
        unproven=tuple(i for i in at_k if i not in proven),
    )


def without(cell: CellData, pairs: Collection[int]) -> CellData:
    """The cell without the requests of these pairs, of which none is left out as stalled."""
    stalled = {id(cell.pairs[i].spec) for i in pairs}
    rest = tuple(request for request in cell.requests if id(request) not in stalled)
    return replace(cell, requests=rest, is_screened=False)


def is_paused(request: RequestRecord) -> bool:
    """Whether the client stood still for a part of a request that its times may show."""
    return (request.paused_s or 0.0) > MAX_PAUSED * (request.total_s or 0.0)


def seconds_per_round(request: RequestRecord) -> float:
    """Decode seconds per round, per token after the first if rounds are unknown; NaN if untimed."""
    if not request.decode_s or request.num_timed_tokens < 1:
        return math.nan
    counts, num = request.counts, float(request.num_timed_tokens)
    if request.rounds is not None and (timed_s := request.rounds.timed_s):
        num = len(timed_s)
    elif counts is not None and counts.num_rounds:
        num = counts.num_rounds
    return request.decode_s / num


def _stalled(requests: Sequence[RequestRecord]) -> NDArray[np.bool_]:
    logs = np.log([seconds_per_round(request) for request in requests])
    known = logs[~np.isnan(logs)]
    if len(known) < MIN_UNITS:
        return np.zeros(len(logs), dtype=bool)
    above = logs - np.median(known)
    deviation = 1.4826 * np.median(np.abs(known - np.median(known)))
    limit = max(MAX_DEVIATIONS * deviation, math.log(SLOWDOWN))
    return np.asarray(np.nan_to_num(above) > limit)


def _paused(requests: Sequence[RequestRecord]) -> NDArray[np.bool_]:
    return np.array([is_paused(request) for request in requests])


def _waited(request: RequestRecord, all_requests: Sequence[RequestRecord]) -> bool:
    """Whether most of the excess over the usual seconds of a round passed without CPU time."""
    usual_s = float(np.nanmedian([seconds_per_round(r) for r in all_requests]))
    own_s = seconds_per_round(request)
    if request.cpu_s is None or request.decode_s is None or request.total_s is None:
        return False
    excess_s = request.decode_s * (1 - usual_s / own_s)
    return request.total_s - request.cpu_s >= WAITED * excess_s
