"""Whether requests came faster than they could be taken, so that each waited longer."""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from specbench.metrics.cell import CellData
from specbench.records import RequestRecord
from specbench.stats.percentiles import median_of

MIN_REQUESTS = 12  # of a pass: below this a third of them is no trend


def saturation(cell: CellData) -> str:
    """How much longer the last requests of a stream waited than the first; empty where one of
    them waited no longer, for a queue that comes and goes does not grow, and where requests come
    when others end."""
    if cell.key.condition.request_rate is None:
        return ""
    early: list[float] = []
    late: list[float] = []
    for served in _passes(cell.finished):
        third = len(served) // 3
        if len(served) >= MIN_REQUESTS:
            early.append(max(served[:third]))
            late.append(min(served[-third:]))
    first, last = median_of(early), median_of(late)
    if first is None or last is None or last <= first:
        return ""
    return (
        f"saturated: {cell.key.condition.request_rate:g} requests a second are more than it takes; "
        f"the first third waited at most {first:.3g} s for the first token, the last third at "
        f"least {last:.3g} s, and more requests would wait longer"
    )


def _passes(requests: Iterable[RequestRecord]) -> Iterator[list[float]]:
    """Times to the first token by arrival; each pass, and each session of a server, begins anew."""
    found: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for request in requests:
        if request.arrived_s is not None and request.ttft_s is not None:
            found[request.repeat].append((request.arrived_s, request.ttft_s))
    for own in found.values():
        yield [ttft_s for _, ttft_s in sorted(own)]
