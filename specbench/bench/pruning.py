"""Decides the K to measure under a time budget: five prompts first, then successive halving.

A K is dropped only if its interval shows that it cannot win, or if it does not fit the budget.
Decisions about the plan are recorded, and a resumed run follows them.
Source: Karnin, Koren and Somekh 2013, Almost optimal exploration in multi-armed bandits.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from math import inf
from statistics import fmean

import numpy as np

from specbench.bench.blocks import Block, Cell
from specbench.bench.budget import Deadline, block_seconds
from specbench.bench.extensions import Extensions
from specbench.bench.session import OpenTarget
from specbench.metrics.aggregate import aggregate_cells
from specbench.metrics.cell import CellData, against
from specbench.metrics.pairs import paired_decode
from specbench.models.library_errors import EXPECTED_ERRORS
from specbench.records import NO_DRAFTER, BlockRecord, Condition, lengths
from specbench.stats.intervals import interval, speedup_ratio
from specbench.stats.spread import MIN_UNITS


class BudgetPruner:
    """One pass over the blocks of the `usable` cells, which compares K after 5, 10, 20 and more
    blocks. If `decides`, it makes and records decisions, otherwise it follows recorded ones."""

    def __init__(
        self,
        session: OpenTarget,
        deadline: Deadline,
        usable: frozenset[str],
        extensions: Extensions,
        *,
        decides: bool,
    ) -> None:
        self._session, self._store, self._deadline = session, session.store, deadline
        self._extensions, self._decides = extensions, decides
        self._budget_s = session.plan.settings.effort.budget_s
        every = (block.only(usable) for block in session.plan.explore_blocks())
        self._blocks = [block for block in every if block.cells]  # no cells: no engine can run it
        self._num_blocks = Counter(block.condition for block in self._blocks)
        self._left_out: dict[Condition, frozenset[str]] = {}
        self._began = deadline.spent_s, len(self._store.stored.blocks)

    def blocks(self) -> Iterator[Block]:
        """The planned blocks without their pruned cells."""
        begun: defaultdict[Condition, set[str]] = defaultdict(set)
        for block in self._blocks:
            at = block.condition
            num = len(begun[at])
            if self._budget_s is not None and (num < MIN_UNITS or _is_checkpoint(num)):
                question, decide = block.cells[0], partial(self._prune_at, block, begun[at])
                decided = self._extensions.take("drop", decide, question, num)
                if self._extensions.is_taken("drop", question, num):
                    self._left_out[at] = decided
            pruned = self._pruned(block)
            begun[at].add(pruned.id)
            yield pruned

    def _pruned(self, block: Block) -> Block:
        left_out = self._left_out.get(block.condition, frozenset())
        return block.only({cell.key.id for cell in block.cells} - left_out)

    def _prune_at(self, block: Block, begun: set[str]) -> frozenset[str] | None:
        """The cells to leave out from this block on, after those of its condition with the ids
        `begun`; None: no change."""
        num, finished = len(begun), self._store.finished_blocks
        if not self._decides or self._deadline.is_over("explore"):
            return None
        # An earlier session of the run that measured this block decided nothing here.
        if not begun <= finished or self._pruned(block).id in finished:
            return None
        if num == 0:
            return self._prune_at_start(block)
        measured = [stored for stored in self._store.stored.blocks if stored.block_id in begun]
        left_out = self._left_out.get(block.condition, frozenset())
        num_blocks = Counter(cell_id for stored in measured for cell_id in stored.order)
        device = self._store.run.environment.device
        gathered = aggregate_cells([c.key for c in block.cells], measured, device=device)
        enough = min(num, MIN_UNITS)
        cells = {c.key.id: c for c in gathered if num_blocks[c.key.id] >= enough}
        active = [cell for cell in _prunable(block.cells) if cell.key.id not in left_out]
        candidates, num_more = list(active), MIN_UNITS - num
        if num >= MIN_UNITS:
            lost = _losers(active, cells)
            candidates = active = [cell for cell in active if cell.key.id not in lost]
            num_more = min(num, self._num_blocks[block.condition] - num)
            if num_more >= MIN_UNITS:
                waiting = (cell for cell in _prunable(block.cells) if not num_blocks[cell.key.id])
                candidates = [*active, *waiting]
        means = _mean_seconds(measured)
        seconds = {cell.key.id: means.get(cell.key.id, 0.0) for cell in block.cells}
        seconds |= _interpolated(_prunable(block.cells), means)
        distances = _distances_to_best(block, active, cells)
        left = (cell for cell in candidates if cell.key.id in distances)
        ranked = sorted(left, key=lambda cell: distances[cell.key.id])
        unpruned = [cell for cell in block.cells if cell not in _prunable(block.cells)]
        # Time outside of cells: references and other measurements.
        since = self._store.stored.blocks[self._began[1] :]
        in_blocks_s = sum(sum(block_seconds(stored).values()) for stored in since)
        around_s = max(self._deadline.spent_s - self._began[0] - in_blocks_s, 0.0)
        every_s = around_s / len(since) * len(self._num_blocks) if since else 0.0
        left_s = (self._left_s() / num_more - every_s) * self._share(block)
        left_s -= sum(seconds[cell.key.id] for cell in unpruned)
        kept: list[Cell] = []
        fewest = -(-len(active) // 2) if num >= MIN_UNITS else 1
        for cell in ranked:
            left_s -= seconds[cell.key.id]
            if left_s < 0 and len(kept) >= fewest:
                break
            kept.append(cell)
        if cut := [cell for cell in active if cell not in kept]:
            unit, count = "prompts", len({stored.prompt_id for stored in measured})
            if block.condition.is_stream:
                unit, count = "passes", num
            text = f"no time for more {unit} at {_describe(cut)} (measured: {count})"
            self._session.reporter.detail(text)
        decided = frozenset(cell.key.id for cell in _prunable(block.cells) if cell not in kept)
        return None if decided == left_out else decided

    def _prune_at_start(self, block: Block) -> frozenset[str] | None:
        """The cells to leave out before the first prompt, if five prompts of every K at the cost of
        K = 0 exceed the budget; the remaining K are evenly spread."""
        groups = _by_drafter(_prunable(block.cells))
        try:
            cell_s = self._baseline_s(block)
        except EXPECTED_ERRORS:
            return None  # serving the block records the failure
        if not groups or not cell_s:
            return None
        num_unpruned = len(block.cells) - sum(map(len, groups)) + 1  # and a reference answer
        available_s = self._left_s() * self._share(block)
        num_fitting = int(available_s / (cell_s * MIN_UNITS))
        each = (num_fitting - num_unpruned) // len(groups)
        first = [cell for group in groups for cell in _spread(group, max(each, 1))]
        later = frozenset(c.key.id for group in groups for c in group if c not in first)
        if later and each >= 1:
            text = f"the budget fits {MIN_UNITS} prompts at K=0 and {_describe(first)}; "
            text += "K next to the best follow if time is left"
            self._info(block, text)
        elif each < 1:
            needed_s = cell_s * MIN_UNITS * (num_unpruned + len(groups)) / self._share(block)
            spent_s = self._deadline.spent_s
            # Drafters that are loaded in turn, targets and engines share the budget.
            factor = (needed_s + spent_s) / (self._left_s() + spent_s)
            budget_s = factor * (self._budget_s or 0.0)
            text = f"too little time for the {MIN_UNITS} prompts that an interval needs; use "
            text += f"--time-budget {budget_s:.0f}s. Measuring only K=0 and {_describe(first)}"
            self._info(block, text)
        return later or None

    def _baseline_s(self, block: Block) -> float:
        """Seconds of a block at K = 0: measured, or else estimated from the first answer."""
        if known := _mean_seconds(self._store.stored.blocks).get(block.cells[0].key.id):
            return known
        before_s, num_known = self._deadline.spent_s, len(self._store.stored.references)
        request = self._session.request(block, block.cells[0])
        if len(self._store.stored.references) == num_known:  # known from another condition
            self._session.engine.generate(request, self._session.engine.baseline)
        times = len(block.prompts) / block.condition.concurrency
        arriving_s = len(block.prompts) / (block.condition.request_rate or inf)
        return max((self._deadline.spent_s - before_s) * times, arriving_s)

    def _info(self, block: Block, text: str) -> None:
        self._session.reporter.info(f"{block.condition.target}, {block.condition.workload}: {text}")

    def _left_s(self) -> float:
        return max(self._deadline.seconds_left("explore") or 0.0, 0.0)

    def _share(self, block: Block) -> float:
        """The condition's share of the time left, in proportion to the seconds at K = 0 of the
        blocks that it needs for an interval."""
        explored = (b for b in self._store.stored.blocks if b.purpose == "explore")
        means, plan = _mean_seconds(explored), self._session.plan
        taken = {
            b.condition: means.get(b.cells[0].key.id, 0.0) * plan.needed_blocks(b.condition)
            for b in self._blocks
        }
        if not all(taken.values()):
            return 1 / len(taken)
        return taken[block.condition] / sum(taken.values())


def _mean_seconds(blocks: Iterable[BlockRecord]) -> dict[str, float]:
    """The mean seconds of each cell per block."""
    taken: dict[str, list[float]] = {}
    for stored in blocks:
        for cell_id, seconds in block_seconds(stored).items():
            taken.setdefault(cell_id, []).append(seconds)
    return {cell_id: fmean(seconds) for cell_id, seconds in taken.items()}


def _is_checkpoint(num: int) -> bool:
    """Whether K are compared after `num` blocks: 5, 10, 20 and so on."""
    times = num // MIN_UNITS
    return num == times * MIN_UNITS and times & (times - 1) == 0


def _prunable(cells: Iterable[Cell]) -> list[Cell]:
    """The cells that can be pruned: those with drafts and a fixed K."""
    return [cell for cell in cells if cell.drafter != NO_DRAFTER and cell.key.draft.is_fixed]


def _by_drafter(cells: Iterable[Cell]) -> list[list[Cell]]:
    """The cells of each drafter and engine together, by K."""
    groups: dict[object, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.key.question, []).append(cell)
    return [sorted(group, key=lambda cell: cell.key.draft.k) for group in groups.values()]


def _spread(group: Sequence[Cell], num: int) -> Sequence[Cell]:
    """`num` cells spread evenly over their range: 2, 5 and 7 for three of 1 to 8."""
    if num >= len(group):
        return group
    return [group[int((i + 0.5) * len(group) / num)] for i in range(num)]


def _losers(active: Iterable[Cell], cells: dict[str, CellData]) -> set[str]:
    """Ids of cells slower than their drafter's best K or than K = 0 by their intervals, without
    the best itself."""
    lost = set[str]()
    for group in _by_drafter(active):
        known = [cells[cell.key.id] for cell in group if cell.key.id in cells]
        best = max(known, key=_speedup, default=None)
        for cell in known:
            if best and cell is not best and (_is_slower(cell) or _is_slower(against(cell, best))):
                lost.add(cell.key.id)
    return lost


def _distances_to_best(
    block: Block, active: Collection[Cell], cells: dict[str, CellData]
) -> dict[str, tuple[float, int, float]]:
    """The distance of each K from its drafter's best, in speed and then in K; best drafters first.

    K that were not measured yet are interpolated; drafters without an active K are left out.
    """
    known = {cell_id: _speedup(cell) for cell_id, cell in cells.items()}
    speedups = _interpolated(_prunable(block.cells), known)
    distances: dict[str, tuple[float, int, float]] = {}
    for group in _by_drafter(_prunable(block.cells)):
        left = (cell for cell in group if cell in active)
        best = max(left, key=lambda cell: speedups[cell.key.id], default=None)
        if best is None:
            continue
        k, most = best.key.draft.k, speedups[best.key.id]
        for cell in group:
            distance = max(1 - speedups[cell.key.id] / most, 0.0) if most else 0.0
            distances[cell.key.id] = distance, abs(cell.key.draft.k - k), -most
    return distances


def _interpolated(cells: Iterable[Cell], known: dict[str, float]) -> dict[str, float]:
    """A value per cell, interpolated between the known ones of its drafter; 0 without any."""
    values: dict[str, float] = {}
    for group in _by_drafter(cells):
        points = {c.key.draft.k: known[c.key.id] for c in group if c.key.id in known} or {0: 0.0}
        at = np.interp([cell.key.draft.k for cell in group], [*points], [*points.values()])
        values |= {cell.key.id: float(value) for cell, value in zip(group, at, strict=True)}
    return values


def _speedup(cell: CellData) -> float:
    seconds = paired_decode(cell)
    return 0.0 if seconds is None else seconds.speedup


def _is_slower(cell: CellData) -> bool:
    """Whether the cell's interval is below its baseline's speed; not without an interval."""
    seconds = paired_decode(cell)
    high = None if seconds is None else interval(speedup_ratio(*seconds)).high
    return high is not None and high < 1


def _describe(cells: Collection[Cell]) -> str:
    return " and ".join(
        f"{group[0].key.source} K={lengths(cell.key.draft.length for cell in group)}"
        for group in _by_drafter(cells)
    )
