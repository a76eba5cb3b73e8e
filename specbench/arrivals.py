"""Arrival times of requests that do not wait for earlier responses (open loop)."""

import random
from collections.abc import Iterator


def poisson_arrivals(rate: float, seed: int) -> Iterator[float]:
    """Seconds since the first arrival, endlessly; `rate` per second, equal for equal seeds."""
    draw, at_s = random.Random(seed), 0.0
    while True:
        yield at_s
        at_s += draw.expovariate(rate)
