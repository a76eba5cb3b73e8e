"""Under a time budget, which K the first prompts are measured at, so that some get an interval.

Five prompts at K = 0 and a few K, spread over the range, say more than two prompts at every K:
below five there is no interval at all. What is left of the time then goes to the neighbours of the
best.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from specbench.bench.blocks import Cell
from specbench.bench.deadline import EXPLORE_SHARE
from specbench.bench.plan import TargetPlan
from specbench.records import CellKey
from specbench.stats.spread import MIN_UNITS

SECURED = MIN_UNITS  # prompts: the fewest that give an interval


@dataclass(frozen=True, slots=True)
class Share:
    """What one question may still take, and what a cell takes for a prompt, in seconds."""

    left_s: float
    cell_s: float

    @property
    def num_cells(self) -> int:
        """Cells that can be measured over so many prompts."""
        return int(self.left_s / (self.cell_s * SECURED)) if self.cell_s > 0 else 10**6


def put_off(cells: Sequence[Cell], share: Share) -> frozenset[str]:
    """Ids of the cells of a question that wait; K = 0, K = auto and a K of every drafter do not."""
    groups = _by_drafter(cells)
    if not groups:
        return frozenset()
    others = len(cells) - sum(map(len, groups))
    each = max(1, (share.num_cells - others) // len(groups))
    return frozenset(
        cell.key.id for group in groups for cell in group if cell not in _spread(group, each)
    )


def brought_back(
    waiting: Collection[Cell], measured: Collection[Cell], leaders: Sequence[CellKey], room: int
) -> frozenset[str]:
    """Ids of the waiting cells between a leader and the K measured beside it, the nearest first,
    as many as there is room for."""
    found = []
    for leader in leaders:
        own = [c.key.draft.k for c in measured if c.key.draft.way == leader.draft.way]
        k = leader.draft.k
        low = max((other for other in own if other < k), default=0)
        high = min((other for other in own if other > k), default=10**6)
        found += [
            (abs(cell.key.draft.k - k), cell.key.draft.k, cell.key.id)
            for cell in waiting
            if cell.key.draft.way == leader.draft.way and low < cell.key.draft.k < high
        ]
    return frozenset(cell_id for *_, cell_id in sorted(found)[: max(room, 0)])


def told(
    cells: Sequence[Cell],
    later: Collection[str],
    share: Share,
    spent_s: float,
    plan: TargetPlan,
) -> Iterator[str]:
    """What a user should know of a budget that does not pay for every K, or for any interval."""
    if not later:
        return
    groups, budget_s = _by_drafter(cells), plan.settings.effort.budget_s
    condition = cells[0].key.condition
    first = sorted({c.key.draft.k for g in groups for c in g if c.key.id not in later})
    ks = " and ".join([", ".join(map(str, [0, *first][:-1])), str(first[-1])])
    place = f"{condition.target}, {condition.workload}"
    fewest = 1 + len(groups)
    if share.num_cells < fewest:
        questions = len(plan.conditions)
        needed_s = (spent_s + fewest * SECURED * share.cell_s * questions) / EXPLORE_SHARE
        yield (
            f"{place}: a budget of {budget_s:g} s is too small for the {SECURED} prompts that an "
            f"interval needs, about {needed_s:,.0f} s would do; measuring K = {ks} alone"
        )
    else:
        yield (
            f"{place}: the budget first pays for {SECURED} prompts at K = {ks}; K beside the "
            "best follow if time is left"
        )


def _by_drafter(cells: Sequence[Cell]) -> list[list[Cell]]:
    """The cells of a fixed K > 0, those of each drafter and engine together, by K."""
    groups: dict[object, list[Cell]] = {}
    for cell in cells:
        if cell.key.draft.k > 0 and cell.key.draft.is_fixed:
            groups.setdefault((cell.key.condition, cell.key.draft.way), []).append(cell)
    return [sorted(group, key=lambda cell: cell.key.draft.k) for group in groups.values()]


def _spread(group: Sequence[Cell], num: int) -> list[Cell]:
    """So many of them, evenly over their range: of 1 to 8 three are 2, 5 and 7."""
    if num >= len(group):
        return list(group)
    return [group[int((i + 0.5) * len(group) / num)] for i in range(num)]
