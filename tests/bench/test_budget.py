from dataclasses import replace
from types import SimpleNamespace

import pytest

from specbench.bench.budget import Deadline
from specbench.bench.units import RunLoop
from tests.bench.fake_runs import SETTINGS, SIX, make_plan
from tests.bench.fakes import FakeClock, RecordingWatch


def test_exploring_gets_four_fifths_of_the_budget_and_confirming_the_rest():
    clock = FakeClock()
    deadline = Deadline(100.0, clock)
    assert (deadline.seconds_left("explore"), deadline.seconds_left("confirm")) == (80.0, 100.0)

    clock.now_s = 79.0
    assert not deadline.is_over("explore")
    clock.now_s = 80.0
    assert deadline.is_over("explore")
    assert not deadline.is_over("confirm")
    clock.now_s = 100.0
    assert deadline.is_over("confirm")


def test_it_counts_from_when_it_was_made():
    clock = FakeClock()
    clock.now_s = 500.0
    assert Deadline(10.0, clock).seconds_left("confirm") == 10.0


def test_a_part_of_it_gets_a_share_of_what_is_left():
    clock = FakeClock()
    deadline = Deadline(100.0, clock)
    clock.now_s = 20.0
    part = deadline.part(0.25)  # of 80 seconds
    assert (part.seconds_left("explore"), part.seconds_left("confirm")) == (16.0, 20.0)
    assert deadline.part(1.0) is deadline
    assert Deadline(None, clock).part(0.25).seconds_left("confirm") is None


def test_without_a_budget_it_is_never_over():
    clock = FakeClock()
    deadline = Deadline(None, clock, spent_s=1e9)
    clock.now_s = 1e9
    assert deadline.seconds_left("explore") is None
    assert not deadline.is_over("confirm")


@pytest.mark.parametrize(
    ("spent_s", "explore_s", "confirm_s"), [(30.0, 50.0, 70.0), (90.0, -10.0, 10.0)]
)
def test_what_earlier_sessions_spent_is_taken_from_both_phases(spent_s, explore_s, confirm_s):
    # A run killed while it confirmed (90 of 100 s) goes on confirming: exploring is over.
    deadline = Deadline(100.0, FakeClock(), spent_s=spent_s)
    assert deadline.seconds_left("explore") == explore_s
    assert deadline.seconds_left("confirm") == confirm_s


def test_a_budget_that_is_spent_leaves_nothing():
    deadline = Deadline(100.0, FakeClock(), spent_s=120.0)
    assert deadline.is_over("explore")
    assert deadline.is_over("confirm")


class SlowServer:
    """Takes 30 seconds for each block, and names what it served."""

    def __init__(self, clock):
        self.clock, self.served = clock, []

    def serve(self, block):
        self.clock.now_s += 30.0
        self.served.append(block.id)
        return SimpleNamespace(block_id=block.id)


@pytest.mark.parametrize(("is_session", "num_served"), [(False, 3), (True, 5)])
def test_the_loop_serves_what_is_not_stored_until_the_deadline_or_the_end_of_a_session(
    tmp_path, is_session, num_served
):
    """80 s to explore in; the first block is stored already."""
    blocks = list(make_plan(tmp_path, SETTINGS, SIX).explore_blocks())
    if is_session:
        blocks = [replace(block, session=f"s{i}", cycle=0) for i, block in enumerate(blocks)]
    clock, watch, checked = FakeClock(), RecordingWatch(), []
    stored = []
    store = SimpleNamespace(finished_blocks={blocks[0].id}, append=stored.append)
    server = SlowServer(clock)
    loop = RunLoop(store, watch, Deadline(100.0, clock), len(blocks))
    loop.serve(blocks, server, lambda block, _: checked.append((block.id, len(stored))))
    ids = [block.id for block in blocks[1 : 1 + num_served]]
    assert server.served == watch.blocks == [record.block_id for record in stored] == ids
    assert checked == [(block_id, i) for i, block_id in enumerate(ids, 1)]  # each once it is stored
    assert [done for done, _, _ in watch.advances] == [*range(1, num_served + 2)]
    assert {total for _, total, _ in watch.advances} == {len(blocks)}
