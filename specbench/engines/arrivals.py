"""When requests come in."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from specbench.arrivals import poisson_arrivals
from specbench.engines.engine import Load
from specbench.records import Request


def arriving(requests: Sequence[Request], load: Load) -> Iterator[Request]:
    """Each as it comes in: when a row is free, or at Poisson times drawn from the load's seed.

    The rate counts first turns; a later turn comes in when its user has the answer before.
    """
    times_s = poisson_arrivals(load.request_rate, load.seed) if load.request_rate else None
    begun: set[str] = set()
    for request in requests:
        is_later_turn = request.conversation in begun
        at_s = None if times_s is None or is_later_turn else next(times_s)
        yield replace(request, at_s=at_s, is_sample=load.best_of)
        if request.conversation is not None:
            begun.add(request.conversation)
