"""When requests come in."""

import random
from collections.abc import Sequence

from specbench.engines.engine import EngineRequest, Load
from specbench.serving.scheduler import Arrival


def arrivals(requests: Sequence[EngineRequest], load: Load) -> list[Arrival]:
    """One a request: when a row is free for it, or at Poisson times drawn from the load's seed.

    The rate counts first turns; a later turn comes in when its user has the answer before.
    """
    if load.request_rate is None:
        return [Arrival(conversation=request.conversation) for request in requests]
    draw, at_s = random.Random(load.seed), 0.0
    begun: set[str] = set()
    found = []
    for request in requests:
        if request.conversation in begun:
            found.append(Arrival(conversation=request.conversation))
            continue
        found.append(Arrival(at_s=at_s, conversation=request.conversation))
        at_s += draw.expovariate(load.request_rate)
        if request.conversation is not None:
            begun.add(request.conversation)
    return found
