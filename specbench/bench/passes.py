"""Two passes over a target's blocks: every cell, then the winners again on fresh repeats."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import torch

from specbench.bench.blocks import Block, Cell, confirm_block
from specbench.bench.deadline import Deadline
from specbench.bench.extensions import Extensions
from specbench.bench.limits import BLOCKS, measure_forwards, measure_limits
from specbench.bench.plan import TargetPlan
from specbench.bench.pruning import BudgetPruner
from specbench.bench.session import Session
from specbench.bench.watch import Watch
from specbench.decide.comparisons import best_fixed
from specbench.decide.recommend import by_question, choose
from specbench.engines.engine import Engine, Instrumented
from specbench.engines.refusals import REFUSALS, failures_told
from specbench.errors import first_line
from specbench.metrics.aggregate import gather_cells
from specbench.metrics.summary import summarise
from specbench.probes.bandwidth import copy_bandwidth
from specbench.records import (
    BlockRecord,
    CellKey,
    CellSummary,
)
from specbench.runs import Ledger
from specbench.settings import BUILTIN


class Passes:
    """Runs the blocks that are not stored yet, as far as the deadline lets.

    `usable` are the ids of the cells whose drafters are loaded. What is decided on the way -
    which K are dropped, what is precise enough, what is confirmed - is recorded, and a resumed
    run follows it.
    """

    def __init__(
        self,
        plan: TargetPlan,
        ledger: Ledger,
        watch: Watch,
        deadline: Deadline,
        usable: frozenset[str],
    ) -> None:
        self._plan = plan
        self._ledger = ledger
        self._watch = watch
        self._deadline = deadline
        self._usable = usable
        self._device = torch.device(ledger.run.environment.device)
        self._num_timed: Counter[CellKey] = Counter()  # blocks beside which they were measured
        drafters = (cell.drafter for cell in plan.all_cells if cell.key.id in usable)
        self._extensions = Extensions(ledger, frozenset(drafters))

    def explore(
        self,
        session: Session,
        engine: Engine,
        beside: Callable[[Block, BlockRecord], None] | None = None,
    ) -> None:
        """Every cell, block by block; `beside` is called after each. Nothing if winners are being
        confirmed."""
        if self._extensions.is_taken("confirm"):
            return
        total = sum(1 for _ in self._plan.explore_blocks())
        for done, block in enumerate(self._explored(session)):
            self._watch.stage(f"{block.condition.target}: {block.condition.workload}")
            if block.id not in self._ledger.finished_blocks:
                if self._deadline.is_over("explore") or self._is_precise(block):
                    continue
                record = session.run_block(block)
                self._watch.measured(block, record)
                try:
                    with failures_told():
                        self._measure_beside(session, engine, block, record)
                except REFUSALS as error:  # the block is stored: what bounds it is not known
                    self._watch.warn(f"{block.condition.target}: {first_line(error)}")
                if beside is not None:
                    beside(block, record)
            self._watch.advance(done + 1, total, self._deadline.seconds_left("confirm"))

    def _measure_beside(
        self, session: Session, engine: Engine, block: Block, record: BlockRecord
    ) -> None:
        """What bounds one row's rounds, while the machine is as it was in them."""
        if block.condition.is_stream or block.condition.num_samples > 1:
            return
        if not isinstance(engine, Instrumented):
            return
        done = {request.cell_id for request in record.requests if request.output_ids}
        own = (
            c
            for c in block.cells
            if c.key.condition.engine == BUILTIN and not c.key.draft.is_adaptive
        )
        cells = tuple(cell for cell in own if cell.key.id in done)
        if not cells:
            return
        few = tuple(cell for cell in cells if self._num_timed[cell.key] < BLOCKS)
        self._num_timed.update(cell.key for cell in few)
        for cost in measure_forwards(engine, few, lambda cell: session.request(block, cell)):
            self._ledger.append(cost)
        speed = copy_bandwidth(self._device)
        for limit in measure_limits(
            engine, cells, record, device=self._device, copy_bytes_per_s=speed
        ):
            self._ledger.append(limit)

    def confirm(self, session: Session) -> None:
        """Every winner and K = 0 beside it: the best of many is biased upward."""
        chosen = self._extensions.take("confirm", self._winners)
        # Repeats past all planned ones are fresh, and the same ones in every session.
        blocks = [
            confirm_block(block, cells, self._plan.repeats(block.condition))
            for block in self._explored()
            if block.id in self._ledger.finished_blocks and (cells := _confirmed(block, chosen))
        ]
        for done, block in enumerate(blocks):
            self._watch.stage(
                f"{block.condition.target}: {block.condition.workload}, the winners again"
            )
            if block.id not in self._ledger.finished_blocks:
                if self._deadline.is_over("confirm"):
                    continue
                self._watch.measured(block, session.run_block(block))
            self._watch.advance(done + 1, len(blocks), self._deadline.seconds_left("confirm"))

    def _winners(self) -> frozenset[str]:
        groups = by_question(self._summaries(self._plan.all_cells))
        return frozenset(key.id for group in groups for key in _again(group)) & self._usable

    def _explored(self, session: Session | None = None) -> Iterator[Block]:
        """The blocks of the first pass without pruned cells; a `session` decides which those
        are."""
        pruner = BudgetPruner(
            self._plan,
            self._ledger,
            self._watch,
            self._deadline,
            self._usable,
            self._extensions,
            session,
        )
        return pruner.blocks()

    def _is_precise(self, block: Block) -> bool:
        """Whether the best K of every pairing of the block's question is known well enough."""
        precision, question = self._plan.settings.effort.precision, block.cells[0]
        if precision is None:
            return False
        if not self._extensions.is_taken("precise", question):
            found = self._summaries(block.cells)
            leaders = [choose(group).leader for group in by_question(found)]
            if not leaders or any(_half_width(leader) > precision for leader in leaders):
                return False
            ids = frozenset(leader.key.id for leader in leaders if leader is not None)
            self._extensions.take("precise", lambda: ids, question)
        return True

    def _summaries(self, cells: Sequence[Cell]) -> tuple[CellSummary, ...]:
        """The first pass of some cells so far."""
        keys, blocks = [cell.key for cell in cells], self._ledger.stored.blocks
        return summarise(gather_cells(keys, blocks, slo=self._plan.settings.load.slo))


def _again(group: Sequence[CellSummary]) -> Iterator[CellKey]:
    """What of one question is measured again: the winner, and K = auto beside the best K."""
    winner = choose(group).to_confirm
    if winner is not None:
        yield winner
    if any(cell.key.draft.is_adaptive for cell in group):
        yield from (cell.key for cell in group if cell.key.draft.is_adaptive)
        best = best_fixed(group)
        if best is not None:
            yield best


def _confirmed(block: Block, chosen: frozenset[str]) -> tuple[Cell, ...]:
    """The chosen cells of a block with their engines' baselines; empty where none is chosen."""
    cells = block.only(chosen).cells
    engines = {cell.key.condition.engine for cell in cells}
    baselines = (cell for cell in block.baselines if cell.key.condition.engine in engines)
    return (*baselines, *cells) if cells else ()


def _half_width(cell: CellSummary | None) -> float:
    """Relative half-width of the speed-up's interval; infinite while there is none."""
    if cell is None or cell.speedup is None or cell.speedup.low is None:
        return math.inf
    assert cell.speedup.high is not None
    return (cell.speedup.high - cell.speedup.low) / 2 / cell.speedup.estimate
