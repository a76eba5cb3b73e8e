"""What bounds a round: the memory it must read, and what the host does in it.

A cell's limits are measured beside its blocks; each number is the median over them.
"""

from specbench.metrics.cell import CellData
from specbench.metrics.registry import metric
from specbench.metrics.rounds import round_s_p50
from specbench.stats.costs import roofline_s
from specbench.stats.percentiles import median_of


@metric(unit="s", better="lower")
def roofline_round_s(cell: CellData) -> float | None:
    """Bytes that a round's forwards must read (weights, and keys and values in use) /
    measured copy bandwidth, in bytes read + written per second.

    Memory's side of the roofline; what fits a cache can be read faster.
    """
    return median_of(
        roofline_s(limit.bytes_per_round, limit.copy_bytes_per_s)
        for limit in cell.limits
        if limit.bytes_per_round is not None and limit.copy_bytes_per_s
    )


@metric(unit="x", better="lower")
def roofline_ratio(cell: CellData) -> float | None:
    """round_s_p50 / roofline_round_s: how far a round is from what memory allows."""
    typical, least = round_s_p50(cell), roofline_round_s(cell)
    return None if typical is None or not least else typical / least


@metric(unit="fraction", better="higher")
def bandwidth_utilisation(cell: CellData) -> float | None:
    """Bytes that a round must read / (round_s_p50 * measured copy bandwidth), the latter in
    bytes read + written per second; on a GPU only.
    """
    ratio = roofline_ratio(cell)
    return 1 / ratio if ratio and _is_on_gpu(cell) else None


@metric(unit="launches/round", better="lower")
def launches_per_round(cell: CellData) -> float | None:
    """Kernel and graph launches per round, from the profiler; a graph counts as one."""
    return median_of(limit.launches_per_round for limit in cell.limits)


@metric(unit="waits/round", better="lower")
def syncs_per_round(cell: CellData) -> float | None:
    """Times that the host waits for the device in a round, by the profiler."""
    return median_of(limit.syncs_per_round for limit in cell.limits)


@metric(unit="s", better="lower")
def device_idle_s(cell: CellData) -> float | None:
    """Seconds a round between the end of one and the start of the next, by the GPU's own clock: it
    waits for the host. (decode_s - round_s of its rounds - predicted-output checks) / rounds, of
    requests that do not overlap.
    """
    if cell.key.condition.overlaps or not _is_on_gpu(cell):
        return None
    timed = [
        (r, r.rounds, r.decode_s) for r in cell.finished if r.rounds and r.decode_s is not None
    ]
    num_rounds = sum(len(log) for _, log, _ in timed)
    if not num_rounds:
        return None
    checks_s = sum(r.answer_check.seconds for r, *_ in timed if r.answer_check)
    idle_s = sum(decode_s - sum(log.round_s) for _, log, decode_s in timed) - checks_s
    return max(idle_s, 0.0) / num_rounds


def _is_on_gpu(cell: CellData) -> bool:
    return any(limit.device.startswith("cuda") for limit in cell.limits)
