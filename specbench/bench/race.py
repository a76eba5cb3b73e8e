"""Under a time budget, which K are not worth more of it."""

from collections.abc import Iterable, Sequence

from specbench.pairing.recommend import by_question
from specbench.records import CellSummary

PROMPTS_BEFORE = 2  # of each workload, measured at every K
CLEARLY_SLOWER = 0.8


def hopeless(cells: Sequence[CellSummary]) -> frozenset[str]:
    """Ids of the cells that run clearly slower than K = 0 and are not their drafter's best.

    The best K of every drafter stays in, so that "do not speculate" is said with an interval.
    """
    return frozenset(_losers(by_question(cells)))


def _losers(groups: Iterable[Sequence[CellSummary]]) -> Iterable[str]:
    for group in groups:
        speedups = {cell.key.id: cell.speedup.estimate for cell in group if cell.speedup}
        best = max(speedups, key=lambda cell_id: speedups[cell_id], default=None)
        yield from (i for i, s in speedups.items() if s < CLEARLY_SLOWER and i != best)
