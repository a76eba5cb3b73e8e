"""Builds the cells of a run from its records."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from specbench.metrics.cell import CellData, Pass, finished, turn_of
from specbench.metrics.stalls import MAX_PAUSED, is_paused
from specbench.metrics.streams import faulty_streams, without_stream_times
from specbench.records import (
    NO_DRAFTER,
    SESSIONS_PER_K,
    BlockPurpose,
    BlockRecord,
    CellKey,
    ClientLoad,
    EarlierRuns,
    FailureRecord,
    FirstDifference,
    ForwardCost,
    Kind,
    LimitRecord,
    MemoryRecord,
    Reason,
    RequestRecord,
    ServerRecord,
)
from specbench.runs import StoredRun
from specbench.stats.crossed import MIN_CYCLES


def usable_sessions(servers: Sequence[ServerRecord]) -> Mapping[str, ServerRecord]:
    """The last attempt at each session, by name, unless it has a problem.

    Only the sessions of one attempt at a cycle on one node are usable, so that K = 0 and every K
    have the same machine and the same time: the attempt with the most sessions of K = 0, then with
    the most sessions, then the latest.
    """
    cycles: dict[object, dict[object, dict[str, ServerRecord]]] = {}
    for server in reversed(servers):
        attempts = cycles.setdefault((server.target, server.engine, server.cycle), {})
        attempts.setdefault((server.node, server.attempt), {}).setdefault(server.place, server)
    usable: dict[str, ServerRecord] = {}
    for attempts in cycles.values():
        sound = [[s for s in last.values() if not s.problems] for last in attempts.values()]
        best = max(sound, key=lambda s: (sum(not x.num_speculative_tokens for x in s), len(s)))
        usable |= {server.session: server for server in best}
    return {s.session: s for s in servers if usable.get(s.session) is s}


def lost_sessions(servers: Sequence[ServerRecord]) -> Iterator[FailureRecord]:
    """Sessions without a usable attempt; a resumed run repeats their cycles."""
    usable = {server.place for server in usable_sessions(servers).values()}
    last = {server.place: server for server in servers if server.place not in usable}
    for server in last.values():
        problems = server.problems or ("a later attempt at its cycle lacks it",)
        drafter = "" if server.drafter == NO_DRAFTER else f"/{server.drafter}"
        variant = f" ({server.variant})" if server.variant else ""
        yield FailureRecord(
            pairing=f"{server.target}{drafter}",
            workload="",
            stage="decode" if server.version else "load",
            reason=f"{server.engine}, K={server.num_speculative_tokens}{variant}, "
            f"cycle {server.cycle + 1}: {'; '.join(problems)}",
        )


MAX_CLIENT_SHARE = 0.5  # of its core
MAX_CLIENT_LAG = 0.05  # of the seconds of a round
MOST_PAUSED = 0.5  # of requests that are left out one by one


def aggregate_cells(
    keys: Sequence[CellKey],
    blocks: Sequence[BlockRecord],
    *,
    memories: Sequence[MemoryRecord] = (),
    forwards: Sequence[ForwardCost] = (),
    limits: Sequence[LimitRecord] = (),
    differences: Sequence[FirstDifference] = (),
    servers: Sequence[ServerRecord] = (),
    purpose: BlockPurpose = "explore",
    slo: Mapping[str, float] | None = None,
    device: str = "cpu",
    earlier: EarlierRuns | None = None,
) -> tuple[CellData, ...]:
    """The cells, in the order of `keys`, from the blocks of one purpose, measured on `device`
    of a machine that `earlier` runs know.

    A cell without a request in those blocks is left out: it was not measured. Sessions of a server
    that were not finished, that have a problem, or that were repeated are also left out.
    """
    sessions = usable_sessions(servers)
    chosen = [
        _merged([_by_cell(block, sessions.get(block.session or "")) for block in group])
        for group in _groups([block for block in blocks if block.purpose == purpose], sessions)
    ]
    memory = {(record.target, record.drafter): record for record in memories}
    cells = [
        replace(
            cell,
            memory_target=memory.get((cell.key.condition.target, NO_DRAFTER)),
            memory_pair=memory.get((cell.key.condition.target, cell.key.draft.drafter))
            if cell.key.draft.drafter != NO_DRAFTER
            else None,
            forwards=tuple(cost for cost in forwards if cost.cell_id == cell.key.id),
            limits=tuple(limit for limit in limits if limit.cell_id == cell.key.id),
            differences=tuple(d for d in differences if d.cell_id == cell.key.id),
            device=device,
            earlier=earlier,
            # Whether a request met a limit of its stream is then unknown.
            slo={} if _lacks_stream_times(cell) and _OF_STREAMS & (slo or {}).keys() else slo or {},
        )
        for key in keys
        if (cell := _gather(key, _baseline_of(key, keys), chosen)).requests
    ]
    return tuple(_sharing(cells))


_OF_STREAMS = {"ttft_s", "tpot_s"}


def _lacks_stream_times(cell: CellData) -> bool:
    return bool(cell.faulty_streams or cell.baseline_faulty_streams)


def _sharing(cells: Iterable[CellData]) -> Iterator[CellData]:
    """Cells with the same baseline share its tuple, and the results computed from it."""
    first: dict[tuple[int, ...], CellData] = {}
    for cell in cells:
        owner = first.setdefault(tuple(map(id, cell.baseline)), cell)
        yield replace(cell, baseline=owner.baseline, shared=owner.shared)


def aggregate_run(stored: StoredRun, purpose: BlockPurpose = "explore") -> tuple[CellData, ...]:
    """The cells of a stored run, with all records about them."""
    return aggregate_cells(
        stored.run.keys,
        stored.blocks,
        memories=stored.memory,
        forwards=stored.forwards,
        limits=stored.limits,
        differences=stored.differences,
        servers=stored.servers,
        purpose=purpose,
        slo=stored.run.settings.load.slo,
        device=stored.run.environment.device,
        earlier=stored.run.earlier,
    )


class _CellPart(NamedTuple):
    """The records of one cell in one block, or in the blocks of a server's cycle together."""

    requests: tuple[RequestRecord, ...] = ()
    passes: tuple[Pass, ...] = ()
    servers: tuple[ServerRecord, ...] = ()
    sessions: tuple[tuple[RequestRecord, ...], ...] = ()
    cycle: int | None = None


class _Sides(NamedTuple):
    """Both sides of a comparison: a cell's part of a block, or of a cycle, and the baseline's."""

    cell: _CellPart
    base: _CellPart


_NO_PART = _CellPart()
_Parts = Mapping[str, _CellPart]  # by cell


def _groups(
    blocks: Iterable[BlockRecord], sessions: Mapping[str, ServerRecord]
) -> Iterator[list[BlockRecord]]:
    """Groups of blocks that are paired: a single block, or the blocks of a server's cycle."""
    cycles: dict[int, list[BlockRecord]] = {}
    for block in blocks:
        if block.session is None:
            yield [block]
        elif block.session in sessions:
            assert block.cycle is not None, "a session has a cycle"
            cycles.setdefault(block.cycle, []).append(block)
    yield from cycles.values()


def _merged(blocks: Sequence[_Parts]) -> _Parts:
    parts: dict[str, list[_CellPart]] = {}
    for block in blocks:
        for cell_id, part in block.items():
            parts.setdefault(cell_id, []).append(part)
    return {cell_id: _joined(of_cell) for cell_id, of_cell in parts.items()}


def _joined(parts: Sequence[_CellPart]) -> _CellPart:
    """All records of several parts, with the cycle of the last one."""
    return _CellPart(
        requests=tuple(request for part in parts for request in part.requests),
        passes=tuple(served for part in parts for served in part.passes),
        servers=tuple(server for part in parts for server in part.servers),
        sessions=tuple(session for part in parts for session in part.sessions),
        cycle=parts[-1].cycle if parts else None,
    )


def _by_cell(block: BlockRecord, server: ServerRecord | None) -> _Parts:
    requests: dict[str, list[RequestRecord]] = {}
    for request in block.requests:
        requests.setdefault(request.cell_id, []).append(request)
    parts = {}
    for cell_id, served in requests.items():
        # Sessions of a cycle are paired if their requests have the same repeat.
        name = block.block_id if server is None else f"repeat {served[0].repeat}"
        records = (record for record in block.passes if record.cell_id == cell_id)
        passes = [Pass(name, record, tuple(served)) for record in records]
        for choice in block.samples:
            if choice.served.cell_id == cell_id:
                samples = tuple(r for r in served if turn_of(r) == turn_of(choice))
                passes.append(Pass(f"{name}, turn {choice.turn}", choice.served, samples, choice))
        parts[cell_id] = _CellPart(
            requests=tuple(served),
            passes=tuple(passes),
            servers=(server,) if server else (),
            sessions=(tuple(served),) if server else (),
            cycle=block.cycle,
        )
    return parts


def _gather(key: CellKey, baseline: CellKey | None, blocks: Sequence[_Parts]) -> CellData:
    cell_id, baseline_id = key.id, baseline.id if baseline else ""
    sides = [
        _Sides(block[cell_id], block.get(baseline_id, _NO_PART))
        for block in blocks
        if cell_id in block
    ]
    if baseline:
        sides = _last_of_each(sides)
    faults = [
        faulty_streams(chain.from_iterable(side[i].requests for side in sides), k)
        for i, k in enumerate((key.draft.k, 0))
    ]
    sides = [
        _Sides(
            *(_timeless(part) if fault else part for part, fault in zip(side, faults, strict=True))
        )
        for side in sides
    ]
    bound = _bound_by(sides, overlapping=key.condition.overlaps)
    sound = [side for side, reason in zip(sides, bound, strict=True) if not reason]
    is_rule = any(bound) and len(sound) < MIN_CYCLES  # then all are kept, and the cell is invalid
    kept = sides if is_rule else sound
    parts, bases = [side.cell for side in kept], [side.base for side in kept]
    cell, base = _joined(parts), _joined(bases)
    return CellData(
        key=key,
        requests=cell.requests,
        baseline=base.requests,
        passes=cell.passes,
        baseline_passes=base.passes,
        servers=cell.servers,
        sessions=cell.sessions,
        baseline_servers=base.servers,
        cycles=dict(_whole_cycles(parts, bases if baseline else parts)),
        num_bound_cycles=sum(map(bool, bound)),
        client_bound=next(filter(None, bound)) if is_rule else None,
        faulty_streams=faults[0],
        baseline_faulty_streams=faults[1],
    )


def _last_of_each(sides: Sequence[_Sides]) -> list[_Sides]:
    """The last block of each prompt and repeat. A resumed run that loads other drafters measures
    them again, with another K = 0."""
    last = {
        (side.cell.cycle, min(map(turn_of, side.cell.requests), default=None)): i
        for i, side in enumerate(sides)
    }
    return [sides[i] for i in sorted(last.values())]


def _timeless(part: _CellPart) -> _CellPart:
    """The part without the times within its streams."""

    def whole(requests: Iterable[RequestRecord]) -> tuple[RequestRecord, ...]:
        return tuple(map(without_stream_times, requests))

    return part._replace(
        requests=whole(part.requests),
        passes=tuple(served._replace(requests=whole(served.requests)) for served in part.passes),
        sessions=tuple(map(whole, part.sessions)),
    )


def _bound_by(sides: Sequence[_Sides], *, overlapping: bool) -> list[Reason | None]:
    """For each cycle the reason why its client was too slow; None if it was not."""
    cell, base = (_reasons([side[i] for side in sides], overlapping) for i in range(2))
    return [
        reason or (other and Kind.OF_BASELINE(because=(other,)))
        for reason, other in zip(cell, base, strict=True)
    ]


def _reasons(parts: Sequence[_CellPart], overlapping: bool) -> list[Reason | None]:
    """For each part the reason why its client was too slow; None if it was not.

    Tokens of one round arrive together, in one event or in several: where the server counts rounds,
    the lag is compared with their time. It is that of all parts: by its own rounds, a fast part
    would count as client-bound sooner than a slow one, and the speedup of the rest would be biased.
    """
    requests = [request for part in parts for request in finished(part.requests)]
    cell_id = requests[0].cell_id if requests else ""
    loads = [
        [load for server in part.servers for load in server.client if load.cell_id == cell_id]
        for part in parts
    ]
    num_events = sum(load.num_events for part in loads for load in part)
    counted = [request.counts.num_rounds for request in requests if request.counts]
    num_rounds = min(sum(counted), num_events) if len(counted) == len(requests) else num_events
    streamed_s = sum((r.total_s if r.decode_s is None else r.decode_s) or 0.0 for r in requests)
    round_s = streamed_s / num_rounds if num_rounds and streamed_s else None
    return [
        next(filter(None, (why_bound(load, round_s) for load in of_part)), None)
        or _why_paused(part, of_part, overlapping)
        for part, of_part in zip(parts, loads, strict=True)
    ]


def why_bound(load: ClientLoad, round_s: float | None) -> Reason | None:
    """Why the client, and not the server, set the pace of streams with rounds of this mean time;
    None: it did not."""
    if load.cpu_s > MAX_CLIENT_SHARE * load.seconds:
        return Kind.CLIENT_BUSY(share=load.cpu_s / load.seconds, most=MAX_CLIENT_SHARE)
    if round_s is not None and load.mean_lag_s > MAX_CLIENT_LAG * round_s:
        return Kind.CLIENT_LAGGED(lag=load.mean_lag_s, most=MAX_CLIENT_LAG, interval=round_s)
    return None


def _why_paused(part: _CellPart, loads: Sequence[ClientLoad], overlapping: bool) -> Reason | None:
    """Why pauses of the client leave too little of a part; None: they do not.

    A request that a pause hits is left out of the speedup, unless it shares rounds with others.
    """
    if overlapping:
        hit = sum(sum(load.pauses_s) for load in loads)
        most, whole = MAX_PAUSED, sum(load.seconds for load in loads)
    else:
        requests = finished(part.requests)
        hit, most, whole = sum(map(is_paused, requests)), MOST_PAUSED, len(requests)
    return Kind.CLIENT_PAUSED(share=hit / whole, most=most) if hit > most * whole else None


def _whole_cycles(
    cell: Sequence[_CellPart], base: Sequence[_CellPart]
) -> Iterator[tuple[int, int]]:
    """Repeats, with the cycle of each, if both sides have all their sessions in it."""
    for part, other in zip(cell, base, strict=True):
        if part.cycle is not None and len(part.servers) == len(other.servers) == SESSIONS_PER_K:
            yield from ((request.repeat, part.cycle) for request in part.requests)


def _baseline_of(key: CellKey, keys: Sequence[CellKey]) -> CellKey | None:
    """The baseline of the same setting; None for the baseline itself."""
    if key.is_baseline:
        return None
    return next((k for k in keys if k.is_baseline and k.condition == key.condition), None)
