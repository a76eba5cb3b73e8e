"""Whether requests came faster than they could be taken, so that each waited longer."""

from collections.abc import Iterator

from specbench.metrics.cell import CellData
from specbench.stats.percentiles import median_of

MIN_REQUESTS = 24  # of a pass: a third of fewer is no trend
GROWTH = 2.0


def saturation(cell: CellData) -> str:
    """Why an open-loop cell is saturated: the last third of its requests all waited more than
    twice as long for their first token as the first third did; empty where they did not.

    In the median pass: of eight passes at 90 % of what a server can take chance says so in one case
    of twenty, at half of it in none (tests/metrics/test_saturation.py).
    """
    passes = [waits for waits in _waits(cell) if len(waits) >= MIN_REQUESTS]
    first = median_of(median_of(waits[: len(waits) // 3]) for waits in passes)
    last = median_of(min(waits[-len(waits) // 3 :]) for waits in passes)
    if first is None or last is None or last <= GROWTH * first:
        return ""
    return (
        f"saturated, or nearly: {cell.key.condition.request_rate:g} requests per second are more "
        f"than it takes; the first third waited {first:.3g} s for the first token, the last third "
        f"at least {last:.3g} s, and more requests would wait longer"
    )


def _waits(cell: CellData) -> Iterator[list[float]]:
    """Seconds to the first token by arrival, of each pass; later turns do not come at the rate."""
    for served in cell.passes if cell.key.condition.request_rate is not None else ():
        found = [
            (request.arrived_s, request.ttft_s)
            for request in served.requests
            if request.turn == 0 and request.arrived_s is not None and request.ttft_s is not None
        ]
        yield [ttft_s for _, ttft_s in sorted(found)]
