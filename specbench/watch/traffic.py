"""Acceptance in the traffic of a server, by its counters: its mean, its changes and its faults.

Rounds of one request are correlated, so intervals and alarms are over batches of requests. Servers
that count no request in progress count a request as it ends, so none of theirs is in two batches.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from statistics import fmean
from typing import Annotated

import numpy as np

from specbench.doc import Doc
from specbench.records import Kind, Reason
from specbench.servers.metrics_page import Counters
from specbench.stats.drift import Drift, DriftDetector
from specbench.stats.intervals import interval, log_ratio, with_count_noise, with_half_count
from specbench.stats.rounds import mean_length
from specbench.stats.summaries import Interval

# Of a batch; requests only where they are counted, and at least as many as are in progress: a long
# request is part of several batches, which makes neighbors alike.
FEWEST_ROUNDS, FEWEST_REQUESTS = 32, 2
ENOUGH_DRAFTS = 200  # tokens: if none or all of them were accepted, a fault is likely
COLLAPSE = 0.02  # share of accepted draft tokens below which acceptance has collapsed
FAULTS = (Kind.COLLAPSED, Kind.NONE_ACCEPTED, Kind.ALL_ACCEPTED)


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """The counts between two readings of a server."""

    began_at: Annotated[str, Doc("when it began, in UTC")]
    seconds: Annotated[float, Doc("its length", "s")]
    counters: Counters

    @property
    def length(self) -> float | None:
        return length_of(self.counters)


def length_of(counted: Counters) -> float | None:
    """Tokens per round: 1 + accepted / rounds. A server that does not count accepted tokens, but
    all rounds, emits its tokens in them, except for the first of each request. None also if these
    are fewer than the rounds: the counters of requests that were aborted do not match."""
    if not counted.num_rounds:
        return None
    if counted.num_accepted is not None:
        return mean_length(counted.num_accepted, counted.num_rounds)
    if counted.counts_all_rounds and counted.num_tokens is not None:
        length = (counted.num_tokens - (counted.num_requests or 0.0)) / counted.num_rounds
        return length if length >= 1 else None
    return None


def rates(counted: Counters) -> tuple[float, ...]:
    """The share of rounds in which the draft token at position 1, 2 .. K is accepted."""
    rounds = counted.num_rounds
    return tuple(n / rounds for n in counted.num_accepted_at) if rounds else ()


class WatchedTraffic:
    """Collects windows, and judges each batch of requests as it is complete."""

    def __init__(self) -> None:
        self.windows: list[Window] = []
        self.total = Counters(engine=None)  # the counts of all windows
        self.batches: list[Counters] = []
        self._begun_at: list[str] = []  # the batches, in UTC
        self._open: Counters | None = None  # of the next batch, from its first tokens on
        self._opened_at = ""
        self._detector = DriftDetector()
        self._fall: Drift | None = None  # the last change, if acceptance fell and has not collapsed
        self._is_suspect = False

    @property
    def mean_in_progress(self) -> float | None:
        """Requests in progress at the end of the windows with tokens; None: not counted."""
        busy = [w.counters for w in self.windows if w.counters.num_tokens or w.counters.num_rounds]
        known = [c.num_in_progress for c in busy if c.num_in_progress is not None]
        return fmean(known) if known else None

    def add(self, window: Window | str) -> list[Reason]:
        """What this window shows that earlier ones did not. No batch continues after a text: the
        server restarted, or was not reached."""
        if isinstance(window, str):
            self._open = None
            return []
        self.total = self.total.then(window.counters)
        self.windows.append(window)
        if window.counters.num_rounds is None:  # TensorRT-LLM counts none
            return [*self._suspect()]
        if not (self._open and (self._open.num_rounds or self._open.num_tokens)):  # a pause
            self._open, self._opened_at = None, window.began_at
        batch = self._open.then(window.counters) if self._open else window.counters
        requests, self._open = batch.num_requests, batch
        if (batch.num_rounds or 0) < FEWEST_ROUNDS or (
            requests is not None and requests < max(FEWEST_REQUESTS, batch.num_in_progress or 0)
        ):
            return [*self._suspect()]
        self._open = None
        if (length := length_of(batch)) is None:
            return []
        self.batches.append(batch)
        self._begun_at.append(self._opened_at)
        return [*self._drift(length), *self._suspect()]

    def _drift(self, length: float) -> Iterator[Reason]:
        """A new level; and a collapse, at once or when a fall ends in it, since requests that were
        in progress end later."""
        drift = self._detector.add(length)
        if drift is not None:
            self._fall = drift if drift.after < drift.before else None
        if (fall := self._fall) is not None:
            newest = self.batches[(fall.index + len(self.batches)) // 2 :]
            since = reduce(Counters.then, newest)
            after, counts = length_of(since) or 1.0, (since.num_accepted, since.num_draft_tokens)
            accepted, drafted = counts
            is_counted = accepted is not None and bool(drafted)
            # SGLang counts no drafts: of the tokens that they gained, then, half as few are left.
            left = (after - 1) / (fall.before - 1) / 2
            share = accepted / drafted if accepted is not None and drafted else left
            if share < COLLAPSE:
                self._fall = None
                yield Kind.COLLAPSED(
                    at=self._begun_at[fall.index],
                    before=fall.before,
                    after=after,
                    counts=counts if is_counted else None,
                )
                return
        if drift is not None:
            yield Kind.ACCEPTANCE_MOVED(
                at=self._begun_at[drift.index], before=drift.before, after=drift.after
            )

    def _suspect(self) -> Iterator[Reason]:
        """A fault that shows without any change, once."""
        drafted, accepted = self.total.num_draft_tokens, self.total.num_accepted
        if self._is_suspect or drafted is None or accepted is None or drafted < ENOUGH_DRAFTS:
            return
        self._is_suspect = accepted in (0, drafted)
        if accepted == 0:
            yield Kind.NONE_ACCEPTED(drafted=drafted)
        elif accepted == drafted:
            yield Kind.ALL_ACCEPTED(drafted=drafted)

    @property
    def length(self) -> Interval | None:
        """The mean acceptance length, with an interval from five batches on."""
        if (mean := length_of(self.total)) is None:
            return None
        rounds = [batch.num_rounds or 0.0 for batch in self.batches]
        emitted = [(length_of(b) or 1.0) * n for b, n in zip(self.batches, rounds, strict=True)]
        return _around(mean, interval(log_ratio([emitted], [rounds])) if rounds else None)

    @property
    def rates(self) -> tuple[Interval, ...]:
        """The acceptance rate by position, each with an interval from five batches on."""
        means, rounds = rates(self.total), [batch.num_rounds or 0.0 for batch in self.batches]
        found = (
            _rate(accepted, rounds) if rounds else None
            for accepted in self._accepted_at(len(means))
        )
        pairs = zip(means, found, strict=True)
        return tuple(_around(mean, bounds, most=1.0) for mean, bounds in pairs)

    def _accepted_at(self, deepest: int) -> Iterator[np.ndarray]:
        for i in range(deepest):
            at = [b.num_accepted_at[i] if i < len(b.num_accepted_at) else 0 for b in self.batches]
            yield np.array(at, dtype=np.float64)


def _rate(accepted: np.ndarray, rounds: Sequence[float]) -> Interval:
    """Accepted / rounds over batches, of which none may have accepted any."""
    counts = with_half_count(accepted)
    return interval(with_count_noise(log_ratio([counts], [rounds]), counts))


def _around(estimate: float, found: Interval | None, most: float = math.inf) -> Interval:
    """The mean of all windows, with the bounds over batches, which may lack the last windows."""
    if found is None or found.low is None or found.high is None:
        return Interval(estimate=estimate, low=None, high=None)
    high = min(max(found.high, estimate), most)
    return Interval(estimate=estimate, low=min(found.low, estimate), high=high)
