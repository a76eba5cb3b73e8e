"""Decides which request runs in which row, when, and at which K: on the host, without tensors.

Requests wait in order of arrival and take a row when one is free. Only the next turn of a
conversation that has begun can overtake them. Active rows come first: if no request waits for a
gap, the last active row fills it.
"""

import heapq
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from specbench.records import Request


class Admission(NamedTuple):
    """A request that starts in a row."""

    row: int
    request: int


class Scheduler:
    """Rows 0 .. num_rows - 1 and the requests that wait for them, first come first served."""

    def __init__(self, arrivals: Sequence[Request], num_rows: int) -> None:
        if num_rows < 1:
            raise ValueError(f"{num_rows} rows cannot serve anything")
        self._row_of_conversation: dict[str | None, int] = {}
        self._arrivals = tuple(arrivals)
        self._requests: list[int | None] = [None] * num_rows  # by row
        self._next_of, is_follow_up = _chains(arrivals)
        self._arrived_s = [arrival.at_s for arrival in arrivals]
        # A conversation that has begun goes first: a row still has its text.
        self._rank_s = [arrival.at_s or 0.0 for arrival in arrivals]
        self._waiting = [
            (rank_s, i) for i, rank_s in enumerate(self._rank_s) if i not in is_follow_up
        ]
        heapq.heapify(self._waiting)
        self._num_left = len(arrivals)

    @property
    def is_over(self) -> bool:
        """True once every request has finished."""
        return self._num_left == 0

    @property
    def running(self) -> tuple[int, ...]:
        """Running requests in the order of their rows, which are the first rows after `pack`."""
        return tuple(request for request in self._requests if request is not None)

    @property
    def next_arrival_s(self) -> float | None:
        """When the first waiting request arrives; None if none is waiting."""
        return self._waiting[0][0] if self._waiting else None

    def arrived_s(self, request: int) -> float:
        """When a request arrived; ValueError if it has not."""
        at_s = self._arrived_s[request]
        if at_s is None:
            raise ValueError(f"request {request} has not arrived")
        return at_s

    def admit(self, now_s: float) -> list[Admission]:
        """Start requests that have arrived, as long as rows are free.

        A conversation continues in the row that has the text of its last turn, if that row is free.
        """
        admitted = []
        while self._waiting and self._waiting[0][0] <= now_s and None in self._requests:
            _, request = heapq.heappop(self._waiting)
            row = self._free_row(self._arrivals[request].conversation)
            self._requests[row] = request
            if self._arrived_s[request] is None:
                self._arrived_s[request] = now_s
            admitted.append(Admission(row, request))
        return admitted

    def finish(self, request: int, now_s: float) -> int:
        """Free a request's row and return it; the next turn of its conversation arrives now."""
        row = self._requests.index(request)
        self._requests[row] = None
        self._num_left -= 1
        conversation = self._arrivals[request].conversation
        if conversation is not None:
            self._row_of_conversation[conversation] = row
        following = self._next_of.get(request)
        if following is not None:
            self._arrived_s[following] = now_s
            self._rank_s[following] = self._rank_s[request]
            heapq.heappush(self._waiting, (self._rank_s[following], following))
        return row

    def pack(self) -> list[tuple[int, int]]:
        """Close gaps by moving the last active row to the first gap; returns (from, to) rows."""
        rows, moves = self._requests, []
        gaps = iter([row for row, request in enumerate(rows) if request is None])
        for source in reversed([row for row, request in enumerate(rows) if request is not None]):
            gap = next(gaps, source)
            if gap >= source:
                break
            rows[gap], rows[source] = rows[source], None
            moves.append((source, gap))
        return moves

    def _free_row(self, conversation: str | None) -> int:
        row = self._row_of_conversation.get(conversation)
        if row is None or self._requests[row] is not None:
            return self._requests.index(None)
        return row


def _chains(arrivals: Sequence[Request]) -> tuple[dict[int, int], set[int]]:
    """The next request of each one in a conversation, and all requests that follow another."""
    next_of: dict[int, int] = {}
    last: dict[str, int] = {}
    for i, arrival in enumerate(arrivals):
        if arrival.conversation is None:
            continue
        if arrival.conversation in last:
            next_of[last[arrival.conversation]] = i
        last[arrival.conversation] = i
    return next_of, set(next_of.values())


class ObservedRound(NamedTuple):
    """A finished round over `num_rows` computed rows, with the counts of each live row.

    `num_caught_up`: tokens per row, emitted at K = 0, that the drafter caught up on in this round;
    `seconds` and `draft_s` include the time for them.
    """

    k: int
    num_rows: int
    num_accepted: Sequence[int]
    num_emitted: Sequence[int]
    num_caught_up: int
    seconds: float
    began_s: float = 0.0  # since the pass began
    draft_s: float | None = None  # None: not timed separately
    graph: str = "off"


class Policy(Protocol):
    """Chooses K round by round, the same for all rows."""

    @property
    def max_k(self) -> int:
        """The largest K that it may choose; rows have capacity for it."""
        ...

    def choose(self, num_rows: int, num_live: int, num_behind: int) -> int:
        """K of the next round over `num_rows` computed rows, `num_live` of them in use.

        In each row, the drafter has not seen up to `num_behind` of the last tokens.
        """
        ...

    def observe(self, ended: ObservedRound) -> None:
        """Learn from a finished round."""


class FixedK:
    """The same K in every round."""

    def __init__(self, k: int) -> None:
        self.max_k = k

    def choose(self, num_rows: int, num_live: int, num_behind: int) -> int:  # noqa: ARG002
        return self.max_k

    def observe(self, ended: ObservedRound) -> None:
        """Does nothing."""


class ObservedFixedK(FixedK):
    """The same K in every round of one row. After each round it calls `between` with the number of
    emitted tokens, so that one can measure between rounds."""

    def __init__(self, k: int, between: Callable[[int], None]) -> None:
        super().__init__(k)
        self._between = between

    def observe(self, ended: ObservedRound) -> None:
        self._between(ended.num_emitted[0])
