"""A stream of requests that outruns its server is called so, one that does not is not."""

import random
from dataclasses import replace

from specbench.metrics.cell import CellData
from specbench.metrics.saturation import MIN_REQUESTS, saturation
from specbench.metrics.validity import cell_warnings
from tests.cell_keys import KEY, with_axes
from tests.made_records import made_request, steps

SERVICE_S = 0.5


def stream(rate: float, num: int = 40, repeats: int = 2, seed: int = 0) -> CellData:
    """Poisson arrivals at a server that takes one request after the other, half a second each."""
    draw = random.Random(seed)
    key = with_axes(KEY, request_rate=rate)
    requests = []
    for repeat in range(repeats):
        arrived_s = free_s = 0.0
        for i in range(num):
            arrived_s += draw.expovariate(rate)
            begun_s = max(arrived_s, free_s)
            free_s = begun_s + SERVICE_S
            requests.append(
                made_request(
                    key.id,
                    f"p{i}",
                    steps(5),
                    repeat=repeat,
                    arrived_s=arrived_s,
                    ttft_s=begun_s - arrived_s + 0.1,
                )
            )
    draw.shuffle(requests)
    return CellData(key=key, requests=tuple(requests))


def test_more_than_the_server_can_take_is_saturation_and_names_the_rate():
    found = saturation(stream(3.0))
    assert found.startswith("saturated: 3 requests a second are more than it takes")
    assert found in cell_warnings(stream(3.0))


def test_half_of_what_it_can_take_is_none():
    """Of 200 streams at most 2 % are called so: waiting comes and goes by chance."""
    assert sum(bool(saturation(stream(1.0, seed=seed))) for seed in range(200)) <= 4


def test_few_requests_show_no_trend():
    assert not saturation(stream(3.0, num=MIN_REQUESTS - 1))


def test_where_the_next_one_comes_when_one_ends_there_is_none():
    assert not saturation(replace(stream(3.0), key=KEY))
