"""The plan of a race of servers within a time budget: the seconds of sessions, the starts that a
cycle still measures, and the sessions that confirm the fastest."""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from specbench.bench.blocks import Cell
from specbench.bench.budget import EXPLORE_SHARE
from specbench.bench.plan import WAITING_PER_ROW, TargetPlan
from specbench.bench.served.sessions import Start, cycle_of, served_cells
from specbench.records import SESSIONS_PER_K, CellSummary, Condition
from specbench.stats.crossed import MIN_CYCLES, MOST_PLANNED, expected_noise
from specbench.stats.machine_noise import MachineKind
from specbench.stats.spread import MIN_UNITS

RACE_SHARE = 0.5  # of a budget that explores; only the confirmation is quoted
FIRST_CYCLE_SHARE = 0.25  # of a budget: the other cycles and the confirmation follow
NUM_CONFIRMING = 2  # K = 0 and the winner
CONFIRMED_TO = 0.1  # the margin of the log speedup up to which slower starts are confirmed as well
# The time to plan for, over that of a cycle: other prompts may take longer, and one cycle too few
# may leave no interval.
SPARE = 1.15


class Sessions(NamedTuple):
    """The sessions that confirm, and the margin of the log speedup to expect of them."""

    num_prompts: int  # of each workload
    margin: float


class SessionTimes(NamedTuple):
    """The seconds of a session."""

    start_s: float  # its start, warm-up and stop
    prompt_s: float  # one prompt of every workload

    def session_s(self, num_prompts: int) -> float:
        return self.start_s + num_prompts * self.prompt_s

    def longest_s(self, num_prompts: int, num_sessions: int, num_confirming: int) -> float:
        """A race with a budget that does not end it: the most cycles, and as many that confirm with
        `num_confirming` prompts."""
        confirming_s = NUM_CONFIRMING * SESSIONS_PER_K * self.session_s(num_confirming)
        return MOST_PLANNED * (num_sessions * self.session_s(num_prompts) + confirming_s)

    def least_s(self, num_prompts: int, num_sessions: int, num_confirming: int) -> float:
        """One cycle, and the fewest that confirm a single K: with twice as many prompts, or with
        `num_confirming` if those are fewer."""
        num = min(2 * num_prompts, num_confirming)
        confirming_s = NUM_CONFIRMING * SESSIONS_PER_K * self.session_s(num)
        return num_sessions * self.session_s(num_prompts) + MIN_CYCLES * confirming_s

    def num_prompts(
        self, budget_s: float, num_sessions: int, most: int, concurrency: int = 1
    ) -> int:
        """The prompts of each workload with which a cycle of `num_sessions` takes its share of the
        budget: at most `most`, at least those that an interval needs, or that fill the batch."""
        least = max(MIN_UNITS, WAITING_PER_ROW * concurrency)
        session_s = FIRST_CYCLE_SHARE * budget_s / num_sessions
        return max(min(int((session_s - self.start_s) / self.prompt_s), most), least)

    def confirming(
        self,
        left_s: float,
        num_sessions: int,
        most: int,
        kind: MachineKind,
        *,
        is_fixed: bool = False,
        are_together: bool = False,
    ) -> Sessions:
        """The prompts of each session with which cycles of `num_sessions` have the narrowest
        interval by what is assumed of the machine and of prompts: at most `most`, or so many if
        they are fixed. `are_together`: prompts are served together, and their noise is part of that
        of cycles."""
        plans = [Sessions(most if is_fixed else min(MIN_UNITS, most), math.inf)]
        for num_cycles in range(MIN_CYCLES, MOST_PLANNED + 1):
            served_s = left_s / (SPARE * num_cycles * num_sessions) - self.start_s
            num = min(int(served_s / self.prompt_s) if self.prompt_s else most, most)
            if served_s <= 0 or (is_fixed and num < most):
                break
            noise = expected_noise(None if are_together else num, kind)
            if noise is not None:
                plans.append(Sessions(num, noise.spread(num_cycles).margin()))
        return min(plans, key=lambda plan: plan.margin)


def explore_share(plan: TargetPlan, engine: str) -> float:
    """What a race may take of a budget to choose: all if there is no choice, and most if only a K
    that is shown to be faster is confirmed, as no other prompts are left."""
    cells = served_cells(plan, engine)
    if len(starts_of(cells)) < 2:
        return 1.0
    return RACE_SHARE if confirms_open(plan) else EXPLORE_SHARE


def confirms_open(plan: TargetPlan) -> bool:
    """Whether a leader that is not shown to be faster yet is confirmed as well: what confirms it
    has to be new, other prompts or other passes over the same ones."""
    return others_left(plan) > 0 or any(at.overlaps for at in plan.conditions)


def others_left(plan: TargetPlan) -> int:
    """The prompts of each workload that did not choose K; 0 if one has too few to confirm it."""
    numbers = []
    for workload in plan.workloads:
        used = {prompt.id for prompt in plan.measured(workload)}
        are_enough = bool(plan.other_prompts(workload, used))
        numbers.append(len(workload.prompts) - len(used) if are_enough else 0)
    return min(numbers)


def is_fixed(plan: TargetPlan) -> bool:
    """Whether a session that confirms has as many requests as one that explores."""
    has_streams = any(at.is_stream for at in plan.conditions)
    return bool(plan.settings.effort.num_requests or has_streams or not others_left(plan))


def starts_of(cells: Sequence[Cell]) -> Mapping[Start, Sequence[Cell]]:
    """The cells with drafts, by the start of their server."""
    starts: dict[Start, list[Cell]] = {}
    for cell in cells:
        if cell.key.draft.k:
            starts.setdefault((cell.key.draft, cell.key.condition.variant), []).append(cell)
    return starts


def dropped(
    cells: Sequence[Cell], measured: Mapping[str, CellSummary], most_sessions: float
) -> frozenset[str]:
    """Ids of the cells to drop so that a cycle has at most `most_sessions`: the slowest starts, and
    the K = 0 of a variant without others. A start with drafts always remains."""
    left = list(cells)
    for start in list(_slowest_first(cells, measured))[:-1]:
        if len([*cycle_of(left, 0)]) <= most_sessions:
            break
        left = _without(start, left)
    return frozenset(cell.key.id for cell in cells if cell not in left)


def to_confirm(
    cells: Sequence[Cell],
    measured: Mapping[str, CellSummary],
    sessions_of: Callable[[Sequence[Cell]], Sessions],
) -> tuple[tuple[Cell, ...], Sessions]:
    """The cells to confirm in the time left, and their sessions, which `sessions_of` plans.

    Slower starts are left out until the margin is small; the fastest of a setting only if there is
    no time for any interval, and one start never.
    """
    left = list(cells)
    sessions = sessions_of(left)
    for start, behind in list(_slowest_first(cells, measured).items())[:-1]:
        if sessions.margin <= (CONFIRMED_TO if behind else sys.float_info.max):
            break
        left = _without(start, left)
        sessions = sessions_of(left)
    return tuple(left), sessions


def _slowest_first(
    cells: Sequence[Cell], measured: Mapping[str, CellSummary]
) -> Mapping[Start, float]:
    """How far each start is behind the fastest valid one of a setting, by the log of the speedup
    that decides: 0 if it is the fastest of one, and infinite if it is valid in none. Starts that
    are equally far behind are ordered by their mean log speedup."""
    logs = {cell.key.id: -math.inf for cell in cells}
    for key_id in logs.keys() & measured.keys():
        speedup = measured[key_id].as_decided.speedup
        if speedup is not None and speedup.estimate:
            logs[key_id] = math.log(speedup.estimate)
    # A K that is not valid, such as one that never drafted, would race only to be left out.
    valid = {key_id for key_id in logs.keys() & measured.keys() if measured[key_id].valid}
    fastest: dict[Condition, float] = {}
    for cell in cells:
        setting = cell.key.condition.without("variant")
        if cell.key.draft.k and cell.key.id in valid:
            fastest[setting] = max(logs[cell.key.id], fastest.get(setting, -math.inf))
    behind, means = {}, {}
    for start, group in starts_of(cells).items():
        known = [cell for cell in group if logs[cell.key.id] > -math.inf]
        compared = [cell for cell in known if cell.key.id in valid]
        gaps = [fastest[c.key.condition.without("variant")] - logs[c.key.id] for c in compared]
        behind[start] = min(gaps, default=math.inf)
        speeds = [logs[cell.key.id] for cell in compared or known]
        means[start] = fmean(speeds) if speeds else -math.inf
    order = sorted(behind, key=lambda start: (-behind[start], means[start]))
    return {start: behind[start] for start in order}


def _without(start: Start, cells: Sequence[Cell]) -> list[Cell]:
    """The cells without those of a start, and without the K = 0 of a variant without others."""
    left = [c for c in cells if (c.key.draft, c.key.condition.variant) != start]
    variants = {cell.key.condition.variant for cell in left if cell.key.draft.k}
    return [cell for cell in left if cell.key.condition.variant in variants]
