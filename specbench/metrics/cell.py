"""The stored records of a cell, the input of every metric."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from itertools import chain, pairwise, zip_longest
from typing import Any, Generic, NamedTuple, TypeVar

from specbench.records import (
    CellKey,
    ClientLoad,
    EarlierRuns,
    FirstDifference,
    ForwardCost,
    LimitRecord,
    MemoryRecord,
    PassRecord,
    Reason,
    RequestRecord,
    RoundLog,
    RoundTimeline,
    SamplesRecord,
    ServerRecord,
)
from specbench.stats.rounds import RoundCounts, rounds_counted

T = TypeVar("T")


class Pair(NamedTuple, Generic[T]):
    """The same request or pass, decoded at K = 0 and at the cell's K."""

    base: T
    spec: T


class Pass(NamedTuple):
    """Requests of a cell that were decoded together: all of a block, or the samples of a turn."""

    name: str  # the same in every cell of the block, and of a server's cycle for one repeat
    record: PassRecord
    requests: tuple[RequestRecord, ...]
    choice: SamplesRecord | None = None  # of samples

    @property
    def seconds(self) -> float:
        """Seconds until the last token; for samples until one is chosen."""
        return (self.choice or self.record).seconds

    @property
    def unit(self) -> str:
        """The unit of intervals that it belongs to: the pass, or the prompt of samples."""
        return self.choice.prompt_id if self.choice else self.name


@dataclass(frozen=True, kw_only=True)
class CellData:
    """One cell's requests with the baseline's of the same blocks (none for the baseline itself).

    `requests` and `baseline` include failed requests, which are counted. All other figures come
    from `finished`, `rounds` and `pairs`, which leave them out.
    """

    key: CellKey
    requests: tuple[RequestRecord, ...]
    baseline: tuple[RequestRecord, ...] = ()
    passes: tuple[Pass, ...] = ()  # if requests overlapped, or K is adaptive
    baseline_passes: tuple[Pass, ...] = ()
    memory_target: MemoryRecord | None = None
    memory_pair: MemoryRecord | None = None
    forwards: tuple[ForwardCost, ...] = ()
    limits: tuple[LimitRecord, ...] = ()
    differences: tuple[FirstDifference, ...] = ()
    # For a server: the sessions that served them, and the cycle of each repeat of which both sides
    # have all sessions.
    servers: tuple[ServerRecord, ...] = ()
    sessions: tuple[tuple[RequestRecord, ...], ...] = ()  # the requests of each
    baseline_servers: tuple[ServerRecord, ...] = ()
    cycles: Mapping[int, int] = field(default_factory=dict)
    slo: Mapping[str, float] = field(default_factory=dict)  # limits of a request: seconds by metric
    # Cycles whose client was too slow on one side, and the reason if they are used because too few
    # others remain.
    num_bound_cycles: int = 0
    client_bound: Reason | None = None
    # Streams of both sides whose times are not those of decoding: they have been left out.
    faulty_streams: Reason | None = None
    baseline_faulty_streams: Reason | None = None
    device: str = "cpu"  # of the run, such as `cuda:0`; `server`: not this machine's
    earlier: EarlierRuns | None = None  # that its run found at its start
    is_alike: bool = False  # whether both sides draft, or neither
    is_screened: bool = True  # whether speedups are without stalled requests
    # The results of `once_a_baseline`, for all cells with the same baseline.
    shared: dict[str, tuple[object, Any]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def k(self) -> int:
        """K, or the largest K of an adaptive cell."""
        return self.key.draft.k

    @cached_property
    def finished(self) -> tuple[RequestRecord, ...]:
        return finished(self.requests)

    @cached_property
    def rounds(self) -> RoundLog | None:
        """All rounds of the cell; None if there are none or the engine does not report them."""
        return pooled_rounds(self.finished)

    @property
    def speculative_rounds(self) -> RoundLog | None:
        """The rounds of a cell that speculates; None at K = 0."""
        return self.rounds if self.k > 0 else None

    @cached_property
    def acceptance(self) -> RoundCounts | None:
        """Counts of the rounds of a cell that speculates."""
        log = self.speculative_rounds
        if log is None:
            if not self.k:
                return None
            return pooled_counts(self.finished, self.k) or counted_by_server(self)
        return RoundCounts.of_rounds(log.num_drafted, log.num_accepted, log.num_emitted, self.k)

    @cached_property
    def pairs(self) -> tuple[Pair[RequestRecord], ...]:
        """Requests that finished on both sides, in the order of `requests`."""
        return _paired(_baseline_by_unit(self), self.finished)

    @cached_property
    def pass_pairs(self) -> tuple[Pair[Pass], ...]:
        """Passes of the same name on both sides, in the order of `passes`."""
        base = {served.name: served for served in self.baseline_passes}
        return tuple(Pair(base[spec.name], spec) for spec in self.passes if spec.name in base)

    @property
    def choices(self) -> tuple[SamplesRecord, ...]:
        """The chosen sample of each turn; empty if a turn has a single output."""
        return tuple(served.choice for served in self.passes if served.choice is not None)

    @property
    def loads(self) -> tuple[ClientLoad, ...]:
        """Client load and server counters of each session that served this cell."""
        loads = (load for server in self.servers for load in server.client)
        return tuple(load for load in loads if load.cell_id == self.key.id)

    @property
    def time_lines(self) -> tuple[RoundTimeline, ...]:
        """Rounds of the passes; a server does not report them."""
        known = (served.record.rounds for served in self.passes)
        return tuple(rounds for rounds in known if rounds is not None)

    @property
    def memory(self) -> MemoryRecord | None:
        """Memory of this cell: of the pair, or of the target on its own at K = 0."""
        return self.memory_pair if self.k > 0 else self.memory_target


def once_a_cell(function: Callable[[CellData], T]) -> Callable[[CellData], T]:
    """Caches the function's result in the cell, as `cached_property` does."""
    name = f"{function.__module__}.{function.__qualname__}"

    @wraps(function)
    def kept(cell: CellData) -> T:
        cached = vars(cell)
        if name not in cached:
            cached[name] = function(cell)
        result: T = cached[name]
        return result

    return kept


def once_a_baseline(function: Callable[[CellData], T]) -> Callable[[CellData], T]:
    """Caches the function's result for all cells with the same baseline.

    The function may read only the baseline and the condition of the cell: the rest differs between
    them. Every K of every drafter has the same baseline, which is half of all records.
    """
    name = f"{function.__module__}.{function.__qualname__}"

    @wraps(function)
    def kept(cell: CellData) -> T:
        baseline, cached = cell.shared.get(name, (None, None))
        if baseline is not cell.baseline:
            cached = function(cell)
            cell.shared[name] = cell.baseline, cached
        result: T = cached
        return result

    return kept


@once_a_baseline
def finished_baseline(cell: CellData) -> tuple[RequestRecord, ...]:
    """The baseline's requests that did not fail."""
    return finished(cell.baseline)


@once_a_baseline
def _baseline_by_unit(cell: CellData) -> Mapping[tuple[str, int, int, int], RequestRecord]:
    return {identity_of(request): request for request in finished_baseline(cell)}


def against(cell: CellData, other: CellData) -> CellData:
    """The cell with another cell as its baseline, in the cycles of a server that both have."""
    is_one_engine = cell.key.condition.engine == other.key.condition.engine
    return replace(
        cell,
        baseline=other.requests,
        baseline_passes=other.passes,
        baseline_servers=other.servers,
        baseline_faulty_streams=other.faulty_streams,
        is_alike=bool(cell.k) == bool(other.k),
        shared={},
        # Nothing balances the sessions of two engines.
        cycles=dict(cell.cycles.items() & other.cycles.items()) if is_one_engine else {},
    )


def paired_requests(
    base: Iterable[RequestRecord], spec: Iterable[RequestRecord]
) -> tuple[Pair[RequestRecord], ...]:
    """Requests that finished on both sides, in the order of `spec`."""
    return _paired({identity_of(request): request for request in finished(base)}, finished(spec))


def _paired(
    known: Mapping[tuple[str, int, int, int], RequestRecord], spec: Iterable[RequestRecord]
) -> tuple[Pair[RequestRecord], ...]:
    pairs = ((known.get(identity_of(request)), request) for request in spec)
    return tuple(Pair(base, request) for base, request in pairs if base is not None)


def have_same_text(a: RequestRecord, b: RequestRecord) -> bool:
    """Whether the outputs are equal: by token ids, or by text if a server returns no ids."""
    if a.output_ids or b.output_ids:
        return a.output_ids == b.output_ids
    return a.text == b.text


def finished(requests: Iterable[RequestRecord]) -> tuple[RequestRecord, ...]:
    """The requests that did not fail."""
    return tuple(request for request in requests if request.finish_reason != "failed")


def num_within(requests: Iterable[RequestRecord], slo: Mapping[str, float]) -> int:
    """Finished requests that meet every limit; without a second token, TPOT is 0."""
    num = 0
    for request in finished(requests):
        known = {
            "ttft_s": request.ttft_s,
            "tpot_s": request.decode_s and request.decode_s / max(request.num_timed_tokens, 1),
            "request_latency_s": request.total_s,
        }
        latencies = {name: known[name] for name in slo}
        num += all(s is not None and s <= slo[name] for name, s in latencies.items())
    return num


def pooled_rounds(requests: Iterable[RequestRecord]) -> RoundLog | None:
    """One log of all requests' rounds; draft_s and verify_s only if every log has them."""
    logs = [request.rounds for request in requests if request.rounds]
    if not logs:
        return None
    drafts = [log.draft_s for log in logs if log.draft_s is not None]
    verifies = [log.verify_s for log in logs if log.verify_s is not None]
    return RoundLog(
        num_drafted=_joined(log.num_drafted for log in logs),
        num_accepted=_joined(log.num_accepted for log in logs),
        num_emitted=_joined(log.num_emitted for log in logs),
        round_s=_joined(log.round_s for log in logs),
        draft_s=_joined(drafts) if len(drafts) == len(logs) else None,
        verify_s=_joined(verifies) if len(verifies) == len(logs) else None,
    )


def _joined(columns: Iterable[tuple[T, ...]]) -> tuple[T, ...]:
    return tuple(chain.from_iterable(columns))


def pooled_counts(requests: Sequence[RequestRecord], k: int) -> RoundCounts | None:
    """A server's counts of the requests' rounds; None unless it counted every request."""
    known = [request.counts for request in requests if request.counts is not None]
    if not known or len(known) < len(requests):
        return None
    histograms = [counts.num_by_accepted for counts in known if counts.num_by_accepted is not None]
    return RoundCounts.of_sums(
        num_rounds=sum(counts.num_rounds for counts in known),
        num_drafted=sum_of_all(counts.num_drafted for counts in known),
        num_accepted=sum(counts.num_accepted for counts in known),
        num_emitted=sum(request.num_output_tokens - 1 for request in requests),
        num_drafting=sum_of_all(counts.num_drafting for counts in known),
        num_rejecting=sum_of_all(counts.num_rejecting for counts in known),
        by_accepted=[sum(h[i] for h in histograms if i < len(h)) for i in range(k + 1)]
        if len(histograms) == len(known)
        else None,
    )


def counted_by_server(cell: CellData) -> RoundCounts | None:
    """Rounds by the server's own counters, if it gives no counts per request.

    They include the tokens that the last round of an output accepts past its end.
    """
    counters = [load.counters for load in cell.loads]

    def total(name: str) -> int | None:
        known = [sums[name] for sums in counters if name in sums]
        return round(sum(known)) if known and len(known) == len(counters) else None

    tokens, drafting, accepted = total("num_tokens"), total("num_rounds"), total("num_accepted")
    if not tokens or (drafting is None and accepted is None):
        return None
    num_requests = total("num_requests")
    later = tokens - (len(cell.requests) if num_requests is None else num_requests)
    if accepted is None:  # such a server counts all rounds
        accepted = later - (drafting or 0)
        if accepted < 0:  # other clients' requests were aborted
            return None
    num_rounds = rounds_counted(later, accepted, drafting or 0)
    if num_rounds <= 0:
        return None
    positions = (load.num_accepted_at for load in cell.loads)
    at = [sum(entries) for entries in zip_longest(*positions, fillvalue=0.0)]
    reached = [*map(round, at), *[0] * (cell.k - len(at)), 0]
    return RoundCounts.of_sums(
        num_rounds=num_rounds,
        num_drafted=total("num_draft_tokens"),
        num_accepted=accepted,
        num_emitted=later,
        num_drafting=drafting,
        num_rejecting=None,
        by_accepted=[num_rounds - reached[0], *(a - b for a, b in pairwise(reached))]
        if at
        else None,
    )


def num_server_drafts(cell: CellData) -> float | None:
    """Draft tokens, or rounds that verify any, by the requests' counts or else by the server's
    counters; None if some were not counted."""
    counts = [request.counts for request in cell.finished]
    by_request = sum_of_all(None if c is None else c.num_drafted for c in counts)
    if by_request is not None:
        return by_request
    for name in ("num_draft_tokens", "num_rounds"):
        if cell.loads and all(name in load.counters for load in cell.loads):
            return sum(load.counters[name] for load in cell.loads)
    return None


def sum_of_all(values: Iterable[int | None]) -> int | None:
    """The sum; None without values, or if one of them is unknown."""
    entries = [*values]
    known = [value for value in entries if value is not None]
    return sum(known) if known and len(known) == len(entries) else None


def turn_of(record: RequestRecord | SamplesRecord) -> tuple[str, int, int]:
    """Prompt, turn and repeat, which all samples of a turn share."""
    return record.prompt_id, record.turn, record.repeat


def identity_of(request: RequestRecord) -> tuple[str, int, int, int]:
    """Prompt, turn, repeat and sample: the request among those of its cell."""
    return *turn_of(request), request.sample
