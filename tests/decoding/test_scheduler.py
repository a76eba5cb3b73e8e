"""Assignment of requests to rows over time, without a model."""

import random
from functools import partial

import pytest

from specbench.decode.scheduler import Scheduler
from specbench.records import Request

arrival = partial(Request, max_new_tokens=1)


def closed(num_requests: int) -> list[Request]:
    return [arrival() for _ in range(num_requests)]


def test_requests_take_rows_in_their_order_and_the_rest_wait() -> None:
    scheduler = Scheduler(closed(4), num_rows=2)

    assert scheduler.admit(0.0) == [(0, 0), (1, 1)]
    assert scheduler.admit(1.0) == []
    assert scheduler.running == (0, 1)


def test_a_freed_row_goes_to_the_next_waiting_request() -> None:
    scheduler = Scheduler(closed(3), num_rows=2)
    scheduler.admit(0.0)

    scheduler.finish(0, 5.0)

    assert scheduler.admit(5.0) == [(0, 2)]
    assert scheduler.arrived_s(2) == 5.0  # in a closed loop it comes in when a row is free


def test_a_request_does_not_start_before_it_arrives() -> None:
    scheduler = Scheduler([arrival(at_s=0.0), arrival(at_s=3.0)], num_rows=2)

    assert scheduler.admit(2.9) == [(0, 0)]
    assert scheduler.next_arrival_s == 3.0
    assert scheduler.admit(3.0) == [(1, 1)]
    assert scheduler.next_arrival_s is None


def test_a_request_that_waited_for_a_row_keeps_its_arrival_time() -> None:
    scheduler = Scheduler([arrival(at_s=0.0), arrival(at_s=1.0)], num_rows=1)
    scheduler.admit(0.0)
    scheduler.finish(0, 9.0)
    scheduler.admit(9.0)

    assert scheduler.arrived_s(1) == 1.0


def test_a_later_turn_waits_for_the_response_and_reuses_its_row() -> None:
    turns = [arrival(conversation="a"), arrival(conversation="a")]
    scheduler = Scheduler([arrival(), *turns, arrival(), arrival()], num_rows=2)
    assert scheduler.admit(0.0) == [(0, 0), (1, 1)]

    scheduler.finish(1, 2.0)

    assert scheduler.admit(2.0) == [(1, 2)]
    assert scheduler.arrived_s(2) == 2.0


def test_a_later_turn_runs_in_the_row_of_its_conversation() -> None:
    scheduler = Scheduler([arrival(), *[arrival(conversation="a")] * 2], num_rows=2)
    scheduler.admit(0.0)
    scheduler.finish(0, 1.0)
    scheduler.finish(1, 1.0)

    assert scheduler.admit(1.0) == [(1, 2)]


def test_a_later_turn_takes_a_free_row_if_its_own_is_taken() -> None:
    scheduler = Scheduler(
        [arrival(), arrival(conversation="a"), arrival(), arrival(conversation="a")], num_rows=3
    )
    scheduler.admit(0.0)
    scheduler.finish(1, 1.0)
    assert scheduler.pack() == [(2, 1)]

    assert scheduler.admit(1.0) == [(2, 3)]


def test_a_later_turn_arrives_with_the_previous_response() -> None:
    turns = [arrival(at_s=1.0, conversation="a"), arrival(at_s=50.0, conversation="a")]
    scheduler = Scheduler([*turns, arrival(at_s=1.5)], num_rows=1)
    assert scheduler.admit(1.0) == [(0, 0)]

    scheduler.finish(0, 2.0)

    assert scheduler.admit(2.0) == [(0, 1)]
    assert scheduler.arrived_s(1) == 2.0


def test_free_rows_are_filled_from_the_last_row() -> None:
    scheduler = Scheduler(closed(4), num_rows=4)
    scheduler.admit(0.0)
    for request in (0, 2):
        scheduler.finish(request, 1.0)

    assert scheduler.pack() == [(3, 0)]
    assert scheduler.running == (3, 1)
    assert scheduler.pack() == []


def test_the_arrival_of_a_waiting_request_is_an_error() -> None:
    with pytest.raises(ValueError, match="request 0"):
        Scheduler(closed(1), num_rows=1).arrived_s(0)


def test_zero_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="0 rows"):
        Scheduler(closed(1), num_rows=0)


@pytest.mark.parametrize("seed", range(20))
def test_every_request_runs_once_in_order_of_arrival(seed: int) -> None:
    draw = random.Random(seed)
    num_rows, num_requests = draw.randint(1, 8), draw.randint(1, 60)
    arrivals = [arrival(at_s=draw.uniform(0, 20)) for _ in range(num_requests)]
    scheduler = Scheduler(arrivals, num_rows)
    started: list[int] = []
    now = 0.0
    while not scheduler.is_over:
        admitted = scheduler.admit(now)
        for row, request in admitted:
            assert arrivals[request].at_s <= now
            assert scheduler.running[row] == request
        started += [request for _, request in admitted]
        scheduler.pack()
        assert None not in scheduler.running
        for request in scheduler.running:
            if draw.random() < 0.3:
                assert request is not None
                scheduler.finish(request, now)
        now += 0.5

    assert started == sorted(range(num_requests), key=lambda i: arrivals[i].at_s)
