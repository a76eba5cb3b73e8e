"""One K for all workloads of a pairing, and what it costs each of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specbench.decide.recommend import TIE, by_question, choose, deciding, is_undecided
from specbench.records import CellKey, CellSummary, Decision, Fixed
from specbench.stats.regret import minimax_regret

_SHOWN = 0.0005  # a regret below this prints as 0.0%


@dataclass(frozen=True, kw_only=True, slots=True)
class Compromise:
    """The K whose worst regret is least; regret is the share of the best speed-up given up."""

    key: CellKey  # of its cells, without workload and K
    num_speculative_tokens: int
    regret: Mapping[str, float]  # per workload, 0.05: 5 % slower than at that workload's own K
    own: Mapping[str, int]  # the K that each workload would choose for itself; 0: none
    left_out: tuple[int, ...]  # of those K the ones that have no say in every workload


def find_compromise(
    cells: Sequence[CellSummary], decisions: Sequence[Decision] = ()
) -> Compromise | None:
    """One fixed K for the workloads of one pairing at one setting.

    None without a valid cell, and if K = 0 would be left because the K of an answer have no say
    in every workload: nothing is known against them there.

    Speed-ups are the first pass's estimates; K = 0 takes part at 1. A workload's own K is that of
    its decision, so that none is said to lose at the K of its own answer; where nothing is decided,
    the K that `choose` speaks of, or 0 if that is slower. A K competes when it has a say in every
    workload (`deciding`); worst regrets within 1 % are equal, and the smaller K wins. Raises
    ValueError for several pairings or settings.
    """
    cells = [cell for cell in cells if cell.key.draft.is_fixed]
    groups = {across_workloads(cell.key) for cell in cells}
    if len(groups) > 1:
        raise ValueError(f"one pairing and setting is needed, got {len(groups)}")
    speedups: dict[str, dict[int, float]] = {}
    own: dict[str, int] = {}
    for group in by_question(cells):
        leader = choose(group).leader
        if leader is None or leader.speedup is None:
            continue
        workload = leader.key.condition.workload
        at_k = {c.key.draft.k: c.speedup.estimate for c in deciding(group) if c.speedup}
        speedups[workload] = {0: 1.0, **at_k}
        told = next((d for d in decisions if d.leader == leader.key and not is_undecided(d)), None)
        its = leader.key.draft.k if leader.speedup.estimate > 1 else 0
        own[workload] = its if told is None else told.draft.k
    if not speedups:
        return None
    shared = sorted(set.intersection(*(set(at_k) for at_k in speedups.values())))
    best = {workload: at_k[own[workload]] for workload, at_k in speedups.items()}
    options = [{workload: at_k[k] for workload, at_k in speedups.items()} for k in shared]
    found = minimax_regret(options, best, tie=TIE)
    k, left_out = shared[found.place], tuple(sorted(set(own.values()) - set(shared)))
    if left_out and not k:
        return None
    return Compromise(
        key=groups.pop(),
        num_speculative_tokens=k,
        regret=found.regret,
        own=own,
        left_out=left_out,
    )


def across_workloads(key: CellKey) -> CellKey:
    """What a pairing's cells have in common over workloads and K."""
    return key.without("workload").at(Fixed(0))


def losses_in_words(regret: Mapping[str, float], others: Mapping[str, str]) -> list[str]:
    """`5.0% on code` per workload, but for what prints as 0.0%; or `nothing`. `others`: other
    answers of workloads, such as `K=2`, which are named also if they lose nothing."""
    found = [f"{loss:.1%} on {name}" for name, loss in regret.items() if loss >= _SHOWN]
    equal = [
        f"nothing measurable on {name} (alone: {others[name]})"
        for name, loss in regret.items()
        if loss < _SHOWN and name in others
    ]
    return [*found, *equal] or ["nothing"]


def left_out_in_words(names: Sequence[str]) -> str:
    """What follows the losses where a workload's own answer could not compete."""
    if not names:
        return ""
    lack = "lacks" if len(names) == 1 else "lack"
    return f"; {' and '.join(names)} {lack} an interval on some workload"


def other_ks(own: Mapping[str, int], k: int) -> dict[str, str]:
    """`others` of `losses_in_words` for a K."""
    return {name: f"K={its}" if its else "none" for name, its in own.items() if its != k}
