"""Under a time budget, which K are not worth more of it, or more than it can pay for."""

from collections.abc import Iterator, Mapping, Sequence

from specbench.decide.recommend import by_question
from specbench.records import CellSummary

CLEARLY_SLOWER = 0.8  # than K = 0, seen on one prompt
BEHIND = 0.85  # of the drafter's best K, seen on a few
A_FEW = 3
ENOUGH_PROMPTS = 6  # an interval needs five


def hopeless(cells: Sequence[CellSummary], num_prompts: int) -> frozenset[str]:
    """Ids of the cells that are pruned after `num_prompts` prompts measured at every K.

    The best K of every drafter stays in, so that "do not speculate" is said with an interval.
    """
    return frozenset(loser for group in by_question(cells) for loser in _losers(group, num_prompts))


def unaffordable(
    cells: Sequence[CellSummary], seconds: Mapping[str, float], limit_s: float
) -> frozenset[str]:
    """Ids of the cells that go beyond `limit_s` seconds a prompt, the slowest-running first.

    `seconds` is what each cell took for a prompt, K = 0 included. K = 0 and the best K of every
    drafter always stay.
    """
    groups = by_question(cells)
    speedups = {c.key.id: c.speedup.estimate for g in groups for c in g if c.speedup}
    best = {max((c.key.id for c in g), key=lambda i: speedups.get(i, 0.0)) for g in groups}
    left_s = limit_s - sum(s for i, s in seconds.items() if i in best or i not in speedups)
    out = []
    for cell_id in sorted(speedups.keys() - best, key=lambda i: -speedups[i]):
        left_s -= seconds[cell_id]
        if left_s < 0:
            out.append(cell_id)
    return frozenset(out)


def _losers(group: Sequence[CellSummary], num_prompts: int) -> Iterator[str]:
    speedups = {cell.key.id: cell.speedup.estimate for cell in group if cell.speedup}
    best = max(speedups.values(), default=0.0)
    bar = max(CLEARLY_SLOWER, BEHIND * best) if num_prompts >= A_FEW else CLEARLY_SLOWER
    yield from (cell_id for cell_id, s in speedups.items() if s < min(bar, best))
