"""Cells that a client measured which could not keep up."""

from collections.abc import Collection
from dataclasses import replace

import pytest

from specbench.metrics.cell import CellData
from specbench.metrics.client_bound import why_bound
from specbench.metrics.pairs import paired_decode
from specbench.metrics.validity import cell_warnings, judge_cell
from specbench.records import ClientLoad, ServerRecord
from specbench.runs import StoredRun
from tests.metrics.test_sessions import cell_of
from tests.served_sessions import Sweep, served_sweep


@pytest.fixture(scope="module")
def cell() -> CellData:
    return cell_of(served_sweep(), 4)


def load(cell: CellData, **changed: float) -> ClientLoad:
    usual = {"seconds": 10.0, "cpu_s": 0.5, "num_events": 500, "mean_lag_s": 0.0}
    return ClientLoad(cell_id=cell.key.id, **{**usual, **changed})


def bound(server: ServerRecord, cell: CellData, **changed: float) -> ServerRecord:
    others = tuple(own for own in server.client if own.cell_id != cell.key.id)
    return replace(server, client=(*others, load(cell, **changed)))


@pytest.mark.parametrize(
    ("changed", "is_bound"),
    [
        ({"cpu_s": 5.0}, False),  # half of its core
        ({"cpu_s": 5.01}, True),
        ({"mean_lag_s": 0.05 * 0.0100}, False),  # a token takes 10 ms
        ({"mean_lag_s": 0.05 * 0.0102}, True),
    ],
)
def test_a_client_that_cannot_keep_up_makes_the_cell_invalid(changed, is_bound):
    cell = cell_of(served_sweep(Sweep(wobble=0.0, differing=0.0)), 4)
    first, *rest = cell.servers
    reasons = judge_cell(replace(cell, servers=(bound(first, cell, **changed), *rest)))
    assert [reason.startswith("client-bound") for reason in reasons] == [True] * is_bound


def test_a_client_bound_baseline_makes_every_speedup_over_it_invalid(cell):
    base = cell_of(served_sweep(), 0)
    slow = tuple(bound(server, base, cpu_s=9.0) for server in cell.baseline_servers)
    (reason,) = judge_cell(replace(cell, baseline_servers=slow))
    assert reason.startswith("baseline: client-bound: the client used 90% of a core, more than 50%")
    (own,) = judge_cell(replace(base, servers=slow))
    assert f"baseline: {own}" == reason


def test_another_cells_load_is_not_held_against_this_one(cell):
    other = cell_of(served_sweep(), 4, rows=4)
    slow = tuple(bound(server, other, cpu_s=9.0) for server in cell.servers)
    assert not judge_cell(replace(cell, servers=slow))


def test_why_a_client_is_bound_says_how_far():
    idle = ClientLoad(cell_id="", seconds=0.0, cpu_s=0.0, num_events=0, mean_lag_s=0.0)
    assert why_bound(idle, 0.01) == ""
    late = ClientLoad(cell_id="", seconds=1.0, cpu_s=0.1, num_events=9, mean_lag_s=0.002)
    told = why_bound(late, 0.01)
    assert all(words in told for words in ("2.0 ms", "5%", "10.0 ms per output token"))


def bound_in(k: int, cycles: Collection[int]) -> StoredRun:
    """In one of the two sessions of each of these cycles the client's loop stood still."""
    stored = served_sweep()
    own = cell_of(stored, k)
    servers = tuple(
        bound(server, own, mean_lag_s=0.1)
        if (server.num_speculative_tokens, server.cycle) in {(k, cycle) for cycle in cycles}
        and server.place.endswith(".1")
        else server
        for server in stored.servers
    )
    return replace(stored, servers=servers)


@pytest.mark.parametrize("k", [0, 4])
def test_a_cycle_in_which_either_side_was_bound_is_left_out_and_that_is_said(k):
    found = cell_of(bound_in(k, [1]), 4)
    assert set(found.cycles.values()) == {0, 2, 3}
    assert not judge_cell(found)
    (warning,) = cell_warnings(found)
    assert warning.startswith("1 of 4 cycles are left out: client-bound")
    rest = paired_decode(cell_of(served_sweep(), 4))
    assert (paired_decode(found).spec_s == rest.spec_s[[0, 2, 3]]).all()


def test_of_a_bound_k_the_cycles_of_another_are_whole():
    assert len(set(cell_of(bound_in(4, [1]), 2).cycles.values())) == 4


def test_where_the_client_is_bound_as_a_rule_nothing_is_left_out_and_the_cell_is_invalid():
    found = cell_of(bound_in(4, [0, 1, 3]), 4)
    assert len(set(found.cycles.values())) == 4
    assert [reason.startswith("client-bound") for reason in judge_cell(found)] == [True]
    assert not cell_warnings(found)


def test_two_cycles_that_are_left_still_count():
    assert not judge_cell(cell_of(bound_in(4, [0, 1]), 4))
