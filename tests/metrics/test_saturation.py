"""A stream of requests is reported as saturated exactly if it exceeds its server's capacity."""

import heapq
import random
from dataclasses import replace

from specbench.metrics.cell import CellData, Pass
from specbench.metrics.speed import MIN_REQUESTS, saturation
from specbench.metrics.validity import cell_warnings
from specbench.records import PassRecord
from tests.cell_keys import KEY, with_axes
from tests.made_records import made_request, steps

SERVICE_S, SLOTS = 0.5, 4


def stream(load: float, num: int = 40, passes: int = 2, seed: int = 0, turns: int = 1) -> CellData:
    """Poisson arrivals at a server with four slots, half a second each; `load`: arrival rate /
    capacity. Repeats count occurrences of ten prompts, as a pass's do."""
    draw, rate = random.Random(seed), load * SLOTS / SERVICE_S
    key = with_axes(KEY, request_rate=rate)
    served = []
    for number in range(passes):
        arrived_s, free_s = 0.0, [0.0] * SLOTS
        requests = []
        for i in range(num):
            arrived_s += draw.expovariate(rate)
            begun_s = max(arrived_s, heapq.heappop(free_s))
            heapq.heappush(free_s, begun_s + SERVICE_S)
            for turn in range(turns):
                requests.append(
                    made_request(
                        key.id,
                        f"p{i % 10}",
                        steps(5),
                        repeat=i // 10,
                        turn=turn,
                        arrived_s=arrived_s + 60 * turn,
                        ttft_s=begun_s - arrived_s + 0.1 + turn,
                    )
                )
        draw.shuffle(requests)
        record = PassRecord(cell_id=key.id, seconds=9.0, rounds=None)
        served.append(Pass(f"{number}", record, tuple(requests)))
    requests = [request for p in served for request in p.requests]
    return CellData(key=key, requests=tuple(requests), passes=tuple(served))


def share(load: float, **changes: int) -> float:
    """The share of 100 streams that are reported as saturated."""
    return sum(bool(saturation(stream(load, seed=seed, **changes))) for seed in range(100)) / 100


def test_an_arrival_rate_above_capacity_is_reported_as_saturation():
    cell = stream(2.0)
    reason = saturation(cell)
    assert reason is not None
    assert reason.figures["request_rate"] == 16
    assert reason in cell_warnings(cell)
    assert share(2.0) > 0.99
    assert share(1.5, num=24, passes=8) > 0.95


def test_half_the_capacity_is_rarely_reported_as_saturation():
    """Waiting comes and goes by chance. Observed in eight passes: 0.07."""
    assert share(0.5) <= 0.02
    assert share(0.9, num=24, passes=8) <= 0.16


def test_a_slow_first_request_does_not_hide_saturation():
    cell = stream(2.0)
    slow = tuple(
        p._replace(
            requests=tuple(
                replace(r, ttft_s=r.ttft_s + 10) if r is min(p.requests, key=_arrival) else r
                for r in p.requests
            ),
        )
        for p in cell.passes
    )
    assert saturation(replace(cell, passes=slow))


def _arrival(request):
    return request.arrived_s


def test_longer_later_turns_are_not_taken_for_saturation():
    """Later turns start after all first turns, so the last third consists of only them."""
    assert not saturation(stream(0.3, turns=3))


def test_fewer_requests_than_the_minimum_show_no_saturation():
    assert not saturation(stream(3.0, num=MIN_REQUESTS - 1))


def test_a_closed_loop_is_never_reported_as_saturated():
    assert not saturation(replace(stream(3.0), key=KEY))
