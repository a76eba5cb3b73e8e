"""Two passes over a target's blocks: exploration of every cell, then confirmation of winners."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import torch

from specbench.bench.blocks import Block, Cell, confirm_block, with_baselines
from specbench.bench.budget import Deadline, block_seconds
from specbench.bench.limits import BLOCKS, measure_forwards, measure_limits
from specbench.bench.pruning import BudgetPruner, Extensions
from specbench.bench.session import OpenTarget
from specbench.bench.units import RunLoop
from specbench.decide.recommend import by_question, choose, winners
from specbench.engines.engine import InstrumentedEngine
from specbench.errors import first_line
from specbench.metrics.aggregate import aggregate_cells
from specbench.metrics.summary import summarize
from specbench.models.library_errors import EXPECTED_ERRORS, errors_translated
from specbench.probes.device import copy_bandwidth
from specbench.records import BlockRecord, CellKey, CellSummary
from specbench.settings import BUILTIN

FORWARD_SHARE = 0.15  # under a budget: seconds of measured forwards per second of blocks


class Passes:
    """Runs the blocks that are not stored yet, until the deadline.

    `usable` are the ids of the cells with loaded drafters. Dropped K, settings with precise results
    and confirmed cells are recorded, and a resumed run follows these decisions.
    """

    def __init__(self, session: OpenTarget, deadline: Deadline, usable: frozenset[str]) -> None:
        self._session, self._deadline, self._usable = session, deadline, usable
        self._plan, self._store, self._reporter = session.plan, session.store, session.reporter
        self._device = torch.device(self._store.run.environment.device)
        self._num_timed: Counter[CellKey] = Counter()  # blocks after which forwards were timed
        self._block_s = self._forward_s = 0.0
        drafters = (cell.drafter for cell in self._plan.all_cells if cell.key.id in usable)
        self._extensions = Extensions(self._store, frozenset(drafters))

    def explore(self, after_block: Callable[[Block, BlockRecord], None] | None = None) -> None:
        """Measure every cell, block by block, and call `after_block` after each. Does nothing if
        the confirmation has begun."""
        if self._extensions.is_taken("confirm"):
            return

        def after(block: Block, record: BlockRecord) -> None:
            try:
                with errors_translated():
                    self._measure_limits(block, record)
            except EXPECTED_ERRORS as error:  # the block is stored without its bounds
                self._reporter.warn(f"{block.condition.target}: {first_line(error)}")
            if after_block is not None:
                after_block(block, record)

        num_blocks = sum(1 for _ in self._plan.explore_blocks())
        loop = RunLoop(self._store, self._reporter, self._deadline, num_blocks)
        blocks = (
            block
            for block in self._with_stages(self._explored(decides=True))
            if block.id in self._store.finished_blocks
            or self._deadline.is_over("explore")
            or not self._is_precise(block)
        )
        loop.serve(blocks, self._session, after)

    def _with_stages(self, blocks: Iterable[Block], suffix: str = "") -> Iterator[Block]:
        """The blocks, each reported as a stage before it is served."""
        for block in blocks:
            at = block.condition
            self._reporter.stage(f"{at.target}: measuring{suffix}", at.workload)
            yield block

    def _measure_limits(self, block: Block, record: BlockRecord) -> None:
        """Store the bounds of rounds of single requests, measured directly after the block."""
        engine = self._session.engine
        if block.condition.overlaps or not isinstance(engine, InstrumentedEngine):
            return
        done = {request.cell_id for request in record.requests if request.output_ids}
        cells = tuple(
            cell
            for cell in block.cells
            if cell.key.id in done
            and cell.key.condition.engine == BUILTIN
            and not cell.key.draft.is_adaptive
        )
        if not cells:
            return
        self._block_s += sum(block_seconds(record).values())
        is_late = self._deadline.seconds_left("explore") is not None
        is_late &= self._forward_s > FORWARD_SHARE * self._block_s
        few = tuple(
            cell for cell in cells if self._num_timed[cell.key] < (1 if is_late else BLOCKS)
        )
        self._num_timed.update(cell.key for cell in few)
        before_s = self._deadline.spent_s
        for cost in measure_forwards(engine, few, partial(self._session.request, block)):
            self._store.append(cost)
        self._forward_s += self._deadline.spent_s - before_s
        speed = copy_bandwidth(self._device, torch.get_num_threads())
        for limit in measure_limits(
            engine, cells, record, device=self._device, copy_bytes_per_s=speed
        ):
            self._store.append(limit)

    def confirm(self) -> None:
        """Measure the winners and their baselines again, in new repeats."""
        ids = self._extensions.take("confirm", self._winners)
        # Repeats after all planned ones are new, and the same in every session.
        blocks = [
            confirm_block(block, cells, self._plan.repeats(block.condition))
            for block in self._explored(decides=False)
            if block.id in self._store.finished_blocks
            and (cells := with_baselines(block.cells, ids))
        ]
        loop = RunLoop(self._store, self._reporter, self._deadline, len(blocks))
        loop.serve(self._with_stages(blocks, " the winners again"), self._session)

    def _winners(self) -> frozenset[str]:
        return self._usable.intersection(winners(self._summaries(self._plan.all_cells)))

    def _explored(self, *, decides: bool) -> Iterator[Block]:
        """The blocks of the exploration without pruned cells; if it `decides`, cells are pruned
        as the blocks are measured."""
        pruner = BudgetPruner(
            self._session, self._deadline, self._usable, self._extensions, decides=decides
        )
        return pruner.blocks()

    def _is_precise(self, block: Block) -> bool:
        """Whether the best K of every pairing is precise enough in the block's setting."""
        precision, question = self._plan.settings.effort.precision, block.cells[0]
        if precision is None:
            return False
        if not self._extensions.is_taken("precise", question):
            summaries = self._summaries(block.cells)
            leaders = [choose(group).leader for group in by_question(summaries)]
            if not leaders or any(_half_width(leader) > precision for leader in leaders):
                return False
            ids = frozenset(leader.key.id for leader in leaders if leader is not None)
            self._extensions.take("precise", lambda: ids, question)
        return True

    def _summaries(self, cells: Sequence[Cell]) -> tuple[CellSummary, ...]:
        """Summaries of the cells from the exploration so far."""
        keys, blocks = [cell.key for cell in cells], self._store.stored.blocks
        return summarize(aggregate_cells(keys, blocks, slo=self._plan.settings.load.slo))


def _half_width(cell: CellSummary | None) -> float:
    """Relative half-width of the speedup's interval; infinite without an interval."""
    if cell is None or cell.speedup is None or cell.speedup.low is None:
        return math.inf
    assert cell.speedup.high is not None
    return (cell.speedup.high - cell.speedup.low) / 2 / cell.speedup.estimate
