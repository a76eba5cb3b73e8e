"""One K for all workloads of a pairing, and what it costs each of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specbench.decide.recommend import TIE, deciding
from specbench.records import CellKey, CellSummary, Fixed
from specbench.stats.regret import minimax_regret

_SHOWN = 0.0005  # a regret below this prints as 0.0%


@dataclass(frozen=True, kw_only=True, slots=True)
class Compromise:
    """The K whose worst regret is least; regret is the share of the best speed-up given up."""

    num_speculative_tokens: int
    regret: Mapping[str, float]  # per workload, 0.05: 5 % slower than that workload's best K


def find_compromise(cells: Sequence[CellSummary]) -> Compromise | None:
    """One fixed K for the workloads of one pairing at one setting; None without a valid cell.

    Speed-ups are the first pass's estimates; K = 0 takes part at 1. A K competes when it has a
    say in every workload (`deciding`); worst regrets within 1 % are equal, and the smaller K wins.
    Raises ValueError for several pairings or settings.
    """
    cells = [cell for cell in cells if cell.key.draft.is_fixed]
    groups = {across_workloads(cell.key) for cell in cells}
    if len(groups) > 1:
        raise ValueError(f"one pairing and setting is needed, got {len(groups)}")
    speedups: dict[str, dict[int, float]] = {}
    for workload in dict.fromkeys(cell.key.condition.workload for cell in cells):
        for cell in deciding([c for c in cells if c.key.condition.workload == workload]):
            if cell.speedup is not None:
                at_k = speedups.setdefault(workload, {0: 1.0})
                at_k[cell.key.draft.k] = cell.speedup.estimate
    if not speedups:
        return None
    shared = sorted(set.intersection(*(set(at_k) for at_k in speedups.values())))
    best = {workload: max(at_k.values()) for workload, at_k in speedups.items()}
    options = [{workload: at_k[k] for workload, at_k in speedups.items()} for k in shared]
    found = minimax_regret(options, best, tie=TIE)
    return Compromise(num_speculative_tokens=shared[found.place], regret=found.regret)


def across_workloads(key: CellKey) -> CellKey:
    """What a pairing's cells have in common over workloads and K."""
    return key.without("workload").at(Fixed(0))


def losses_in_words(regret: Mapping[str, float]) -> list[str]:
    """Such as `5.0% on code`, a workload each, but for what would print as 0.0%; or `nothing`."""
    found = [f"{loss:.1%} on {name}" for name, loss in regret.items() if loss >= _SHOWN]
    return found or ["nothing"]
