"""Under a time budget, which K are not worth more of it."""

from collections.abc import Iterator, Sequence

from specbench.pairing.recommend import by_question
from specbench.records import CellSummary

CLEARLY_SLOWER = 0.8  # than K = 0, seen on one prompt
BEHIND = 0.85  # of the drafter's best K, seen on a few
A_FEW = 3


def hopeless(cells: Sequence[CellSummary], num_prompts: int) -> frozenset[str]:
    """Ids of the cells that leave the race after `num_prompts` prompts measured at every K.

    The best K of every drafter stays in, so that "do not speculate" is said with an interval.
    """
    return frozenset(loser for group in by_question(cells) for loser in _losers(group, num_prompts))


def _losers(group: Sequence[CellSummary], num_prompts: int) -> Iterator[str]:
    speedups = {cell.key.id: cell.speedup.estimate for cell in group if cell.speedup}
    best = max(speedups.values(), default=0.0)
    bar = max(CLEARLY_SLOWER, BEHIND * best) if num_prompts >= A_FEW else CLEARLY_SLOWER
    yield from (cell_id for cell_id, s in speedups.items() if s < min(bar, best))
