"""What an engine is told to do for a cell."""

from specbench.bench.blocks import Cell
from specbench.engines.engine import Work


def work_of(cell: Cell) -> Work:
    """Method and K of a cell; an adaptive one also knows what it learns from."""
    key = cell.key
    return Work(
        drafter=key.draft.drafter,
        method=key.draft.method,
        k=key.draft.k,
        adaptive=key.draft.is_adaptive,
        workload=key.condition.workload if key.draft.is_adaptive else "",
        context=key.condition.context if key.draft.is_adaptive else None,
    )
