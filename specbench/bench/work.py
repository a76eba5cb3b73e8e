"""What an engine is told to do for a cell."""

from specbench.bench.blocks import Cell
from specbench.engines.engine import Work


def work_of(cell: Cell) -> Work:
    """Method and K of a cell; an adaptive one also knows what it learns from."""
    key = cell.key
    return Work(
        drafter=key.drafter,
        method=key.method,
        k=key.num_speculative_tokens,
        adaptive=key.adaptive,
        workload=key.workload if key.adaptive else "",
        context=key.context if key.adaptive else None,
    )
