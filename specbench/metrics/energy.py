"""What a token costs in energy."""

from specbench.metrics.cell import CellData
from specbench.metrics.registry import metric


@metric(unit="J/token", better="lower")
def joules_per_token(cell: CellData) -> float | None:
    """NVML total-energy difference over the requests / their output tokens."""
    metered = [(r.energy_j, r.num_output_tokens) for r in cell.finished if r.energy_j is not None]
    tokens = sum(n for _, n in metered)
    return sum(joules for joules, _ in metered) / tokens if tokens else None
