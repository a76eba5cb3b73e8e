"""Which request runs in which row, and when: bookkeeping on the host, without tensors.

Requests wait in order of arrival and take a row when one is free; no later one overtakes them but
the next turn of a conversation that has begun. Active rows are the first ones: a gap that no
request waits for is filled by the last active row.
"""

import heapq
from collections.abc import Sequence
from typing import NamedTuple

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
        self._row_of_conversation: dict[str, int] = {}
        self._arrivals = tuple(arrivals)
        self._requests: list[int | None] = [None] * num_rows  # by row
        self._next_of, is_follow_up = _chains(arrivals)
        self._arrived_s = [arrival.at_s for arrival in arrivals]
        # A conversation that has begun goes before those that have not: its row holds its text.
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
        """Requests in the order of their rows, which are the first ones once gaps are closed."""
        return tuple(request for request in self._requests if request is not None)

    @property
    def next_arrival_s(self) -> float | None:
        """When the first waiting request comes in; None while none waits."""
        return self._waiting[0][0] if self._waiting else None

    def arrived_s(self, request: int) -> float:
        """When a request came in; ValueError before it has."""
        at_s = self._arrived_s[request]
        if at_s is None:
            raise ValueError(f"request {request} has not come in")
        return at_s

    def admit(self, now_s: float) -> list[Admission]:
        """Start the requests that have come in, as far as rows are free.

        A conversation continues in the row that holds the text of its last turn, if that is free.
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
        """Free the row of a request, which is returned; its conversation's next turn comes in."""
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
        """Close gaps: moves (from row, to row), the last active row into the first gap."""
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
        if conversation is not None:
            row = self._row_of_conversation.get(conversation)
            if row is not None and self._requests[row] is None:
                return row
        return self._requests.index(None)


def _chains(arrivals: Sequence[Request]) -> tuple[dict[int, int], set[int]]:
    """The next request of each one's conversation, and the requests that follow another."""
    next_of: dict[int, int] = {}
    last: dict[str, int] = {}
    for i, arrival in enumerate(arrivals):
        if arrival.conversation is None:
            continue
        if arrival.conversation in last:
            next_of[last[arrival.conversation]] = i
        last[arrival.conversation] = i
    return next_of, set(next_of.values())
