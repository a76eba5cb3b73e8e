"""When requests come in, where the next one does not wait for an answer (open loop)."""

import random
from collections.abc import Iterator


def poisson_arrivals(rate: float, seed: int) -> Iterator[float]:
    """Seconds since the first arrival, without end; `rate` a second, the same for a seed."""
    draw, at_s = random.Random(seed), 0.0
    while True:
        yield at_s
        at_s += draw.expovariate(rate)
