"""When requests come in."""

from collections.abc import Sequence

from specbench.arrivals import poisson_arrivals
from specbench.engines.engine import EngineRequest, Load
from specbench.serving.scheduler import Arrival


def arrivals(requests: Sequence[EngineRequest], load: Load) -> list[Arrival]:
    """One a request: when a row is free for it, or at Poisson times drawn from the load's seed.

    The rate counts first turns; a later turn comes in when its user has the answer before.
    """
    if load.request_rate is None:
        return [Arrival(conversation=request.conversation) for request in requests]
    times_s = poisson_arrivals(load.request_rate, load.seed)
    begun: set[str] = set()
    found = []
    for request in requests:
        is_later_turn = request.conversation in begun
        at_s = None if is_later_turn else next(times_s)
        found.append(Arrival(at_s=at_s, conversation=request.conversation))
        if request.conversation is not None:
            begun.add(request.conversation)
    return found
