"""Which starts of servers a cycle still measures, if a time budget does not fit all of them."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from specbench.bench.blocks import Cell
from specbench.bench.served.sessions import Start, cycle_of
from specbench.metrics.cell import CellData
from specbench.metrics.pairs import paired_decode


def dropped(
    cells: Sequence[Cell], measured: Mapping[str, CellData], most_sessions: float
) -> frozenset[str]:
    """Ids of the cells to drop so that a cycle has at most `most_sessions`: the slowest starts, by
    the mean log speedup of their cells, and the K = 0 of a variant without others. The fastest
    start with drafts always remains."""
    starts: dict[Start, list[Cell]] = {}
    for cell in cells:
        if cell.key.draft.k:
            starts.setdefault((cell.key.draft, cell.key.condition.variant), []).append(cell)
    slowest_first = sorted(starts.values(), key=lambda group: _mean_log_speedup(group, measured))
    left = list(cells)
    for group in slowest_first[:-1]:
        if len([*cycle_of(left, 0)]) <= most_sessions:
            break
        left = [cell for cell in left if cell not in group]
        variants = {cell.key.condition.variant for cell in left if cell.key.draft.k}
        left = [cell for cell in left if cell.key.condition.variant in variants]
    return frozenset(cell.key.id for cell in cells if cell not in left)


def _mean_log_speedup(group: Sequence[Cell], measured: Mapping[str, CellData]) -> float:
    known = [measured[cell.key.id] for cell in group if cell.key.id in measured]
    pairs = [seconds for seconds in map(paired_decode, known) if seconds is not None]
    return fmean(math.log(seconds.speedup) for seconds in pairs) if pairs else -math.inf
