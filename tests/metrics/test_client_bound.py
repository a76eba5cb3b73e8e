"""Cells measured by a client that could not keep up."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest

from specbench.metrics.aggregate import why_bound
from specbench.metrics.pairs import paired_decode
from specbench.metrics.stalls import stalls
from specbench.metrics.validity import cell_warnings, judge_cell
from specbench.records import ClientLoad, Kind, ServerRecord
from specbench.runs import StoredRun
from tests.served_sessions import ACCEPTED, Sweep, cell_of, served_sweep


def load(cell_id: str, **changed: Any) -> ClientLoad:
    usual: dict[str, Any] = {"seconds": 10.0, "cpu_s": 0.5, "num_events": 500, "mean_lag_s": 0.0}
    return ClientLoad(cell_id=cell_id, **{**usual, **changed})


def bound(server: ServerRecord, cell_id: str, **changed: Any) -> ServerRecord:
    rest = tuple(client_load for client_load in server.client if client_load.cell_id != cell_id)
    return replace(server, client=(*rest, load(cell_id, **changed)))


ROUND_S = 0.24 / sum(ACCEPTED[4])  # of requests of 0.24 s, whose tokens come in 500 events


@pytest.mark.parametrize(
    ("changed", "is_bound"),
    [
        ({"cpu_s": 5.0}, False),  # half of its core
        ({"cpu_s": 5.01}, True),
        ({"mean_lag_s": 0.049 * ROUND_S}, False),
        ({"mean_lag_s": 0.051 * ROUND_S}, True),
        ({"mean_lag_s": 0.051 * ROUND_S, "num_events": 24}, False),  # of several rounds each
    ],
)
def test_a_client_that_cannot_keep_up_makes_the_cell_invalid(changed, is_bound):
    stored = served_sweep(Sweep(wobble=0.0, differing=0.0))
    cell_id = cell_of(stored, 4).key.id
    servers = tuple(bound(server, cell_id, **changed) for server in stored.servers)
    reasons = judge_cell(cell_of(replace(stored, servers=servers), 4))
    expected = [Kind.CLIENT_BUSY if "cpu_s" in changed else Kind.CLIENT_LAGGED]
    assert [reason.kind for reason in reasons] == expected * is_bound


@pytest.mark.parametrize(("lag", "is_bound"), [(0.049, False), (0.051, True)])
def test_an_event_is_a_round_where_rounds_are_not_counted(lag, is_bound):
    stored = served_sweep(Sweep(wobble=0.0, differing=0.0))
    cell_id = cell_of(stored, 4).key.id
    blocks = tuple(
        replace(block, requests=tuple(replace(r, counts=None) for r in block.requests))
        for block in stored.blocks
    )
    event_s = 0.24 * 6 / 500
    servers = tuple(bound(server, cell_id, mean_lag_s=lag * event_s) for server in stored.servers)
    kinds = {
        r.kind for r in judge_cell(cell_of(replace(stored, blocks=blocks, servers=servers), 4))
    }
    assert (Kind.CLIENT_LAGGED in kinds) == is_bound


def test_a_client_bound_baseline_invalidates_every_speedup():
    stored = served_sweep()
    base = cell_of(stored, 0).key.id
    slow = replace(stored, servers=tuple(bound(s, base, cpu_s=9.0) for s in stored.servers))
    (reason,) = judge_cell(cell_of(slow, 4))
    busy = Kind.CLIENT_BUSY(share=0.9, most=0.5)
    assert reason == Kind.OF_BASELINE(because=(busy,))
    assert judge_cell(cell_of(slow, 0)) == (busy,)


def test_client_load_of_another_cell_is_ignored():
    stored = served_sweep()
    other = cell_of(stored, 4, rows=4).key.id
    slow = replace(stored, servers=tuple(bound(s, other, cpu_s=9.0) for s in stored.servers))
    assert not judge_cell(cell_of(slow, 4))
    assert judge_cell(cell_of(slow, 4, rows=4))


def test_the_client_bound_reason_states_the_lag():
    idle = ClientLoad(cell_id="", seconds=0.0, cpu_s=0.0, num_events=0, mean_lag_s=0.0)
    assert why_bound(idle, 0.01) is None
    late = ClientLoad(cell_id="", seconds=1.0, cpu_s=0.1, num_events=9, mean_lag_s=0.002)
    assert why_bound(late, 0.01) == Kind.CLIENT_LAGGED(lag=0.002, most=0.05, interval=0.01)
    assert why_bound(late, None) is None  # no event was timed


def paused(stored: StoredRun, k: int, cycles: Collection[int], num_requests: int) -> StoredRun:
    """At K the client stood still in so many requests of each session of these cycles."""
    cell_id = cell_of(stored, k).key.id
    blocks = tuple(
        replace(
            block,
            requests=tuple(
                replace(r, paused_s=r.total_s / 2) if i < num_requests else r
                for i, r in enumerate(block.requests)
            ),
        )
        if block.order == (cell_id,) and block.cycle in cycles
        else block
        for block in stored.blocks
    )
    return replace(stored, blocks=blocks)


def test_a_cycle_whose_requests_mostly_have_pauses_is_excluded():
    """Each session has six requests; fewer than half of them are left out one by one."""
    some = cell_of(paused(served_sweep(), 4, [1], num_requests=3), 4)
    assert (some.num_bound_cycles, len(stalls(some).proven)) == (0, 2 * 3)
    most = cell_of(paused(served_sweep(), 4, [1], num_requests=4), 4)
    assert (most.num_bound_cycles, stalls(most).proven) == (1, ())
    every = cell_of(paused(served_sweep(), 4, [0, 1, 2], num_requests=4), 4)
    assert judge_cell(every) == (Kind.CLIENT_PAUSED(share=4 / 6, most=0.5),)


@pytest.mark.parametrize(("pause_s", "is_bound"), [(0.9, False), (1.1, True)])
def test_pauses_of_a_client_with_concurrent_requests_exclude_their_cycle(pause_s, is_bound):
    """Two sessions of 10 s, one of which has a pause."""
    stored = served_sweep()
    cell_id = cell_of(stored, 4, rows=4).key.id
    servers = tuple(
        bound(server, cell_id, pauses_s=(pause_s / 2, pause_s / 2))
        if (server.num_speculative_tokens, server.cycle) == (4, 1) and server.place.endswith(".1")
        else server
        for server in stored.servers
    )
    cell = cell_of(replace(stored, servers=servers), 4, rows=4)
    assert cell.num_bound_cycles == is_bound
    assert not judge_cell(cell)


def bound_in(k: int, cycles: Collection[int]) -> StoredRun:
    """The client's loop stood still in one of the two sessions of each of these cycles."""
    stored = served_sweep()
    cell_id = cell_of(stored, k).key.id
    servers = tuple(
        bound(server, cell_id, mean_lag_s=0.1)
        if (server.num_speculative_tokens, server.cycle) in {(k, cycle) for cycle in cycles}
        and server.place.endswith(".1")
        else server
        for server in stored.servers
    )
    return replace(stored, servers=servers)


@pytest.mark.parametrize("k", [0, 4])
def test_a_client_bound_cycle_is_excluded_with_a_warning(k):
    cell = cell_of(bound_in(k, [1]), 4)
    assert set(cell.cycles.values()) == {0, 2, 3}
    assert not judge_cell(cell)
    assert cell_warnings(cell) == (Kind.CYCLES_LEFT_OUT(left_out=1, cycles=4),)
    rest = paired_decode(cell_of(served_sweep(), 4))
    assert (paired_decode(cell).spec_s == rest.spec_s[[0, 2, 3]]).all()


def test_a_client_bound_k_does_not_exclude_cycles_of_other_k():
    assert len(set(cell_of(bound_in(4, [1]), 2).cycles.values())) == 4


def test_a_client_bound_in_most_cycles_invalidates_the_cell():
    cell = cell_of(bound_in(4, [0, 1, 3]), 4)
    assert cell.num_bound_cycles == 3  # for the plan: as many more cycles
    assert len(set(cell.cycles.values())) == 4
    assert [reason.kind for reason in judge_cell(cell)] == [Kind.CLIENT_LAGGED]
    assert not cell_warnings(cell)


def test_two_cycles_that_are_left_still_count():
    assert not judge_cell(cell_of(bound_in(4, [0, 1]), 4))


def test_a_fast_cycle_is_not_excluded_as_client_bound():
    """One limit for all cycles: otherwise the cycles with a fast server would be dropped, and the
    speedup of the rest would be too low."""
    stored = served_sweep(Sweep(wobble=0.0, differing=0.0))
    cell_id = cell_of(stored, 4).key.id
    twice = tuple(
        replace(
            block,
            requests=tuple(replace(r, decode_s=r.decode_s / 2) for r in block.requests),
        )
        if block.cycle == 1 and block.order[0] == cell_id
        else block
        for block in stored.blocks
    )
    late = 0.04 * ROUND_S  # of the usual round 4%, of the fast cycle's 8%
    servers = tuple(bound(server, cell_id, mean_lag_s=late) for server in stored.servers)
    assert not cell_of(replace(stored, blocks=twice, servers=servers), 4).num_bound_cycles
