"""Requests within the limits on their latency that a service promises: its SLO."""

from specbench.metrics.cell import CellData, num_within
from specbench.metrics.pairs import paired_goodput
from specbench.metrics.registry import metric
from specbench.metrics.serving import serving_seconds


@metric(unit="requests/s", better="higher", low=0)
def goodput_requests_per_s(cell: CellData) -> float | None:
    """Requests that keep every limit of --slo / the seconds of requests_per_s, as the goodput of
    `vllm bench serve` and aiperf; absent without --slo.
    """
    seconds = serving_seconds(cell)
    return num_within(cell.requests, cell.slo) / seconds if seconds and cell.slo else None


@metric(unit="x", better="higher", low=0)
def goodput_ratio(cell: CellData) -> float | None:
    """goodput_requests_per_s / the baseline's, over the same requests or passes, with half a
    request added to the number on each side; over cycles of a server the geometric mean.
    """
    counts = paired_goodput(cell)
    return None if counts is None else counts.speedup


@metric(unit="fraction", better="higher", low=0, high=1)
def slo_attainment(cell: CellData) -> float | None:
    """Requests that keep every limit of --slo / all requests, failed ones included."""
    return num_within(cell.requests, cell.slo) / len(cell.requests) if cell.slo else None


@metric(unit="fraction", better=None, low=0, high=1)
def slo_attainment_of_baseline(cell: CellData) -> float | None:
    """slo_attainment of K = 0 in the same blocks; absent at K = 0."""
    if not cell.slo or not cell.baseline:
        return None
    return num_within(cell.baseline, cell.slo) / len(cell.baseline)
