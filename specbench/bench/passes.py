"""Two passes over a target's blocks: exploration of every cell, then confirmation of winners."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import torch

from specbench.bench.blocks import Block, Cell, interleaved, with_baselines
from specbench.bench.budget import Deadline, block_seconds
from specbench.bench.extensions import Extensions
from specbench.bench.limits import BLOCKS, measure_forwards, measure_limits
from specbench.bench.pruning import BudgetPruner
from specbench.bench.session import OpenTarget
from specbench.bench.units import RunLoop
from specbench.decide.recommend import by_question, choose, winners
from specbench.engines.engine import InstrumentedEngine
from specbench.errors import first_line
from specbench.metrics.aggregate import aggregate_cells
from specbench.metrics.summary import summarize
from specbench.models.library_errors import EXPECTED_ERRORS, errors_translated
from specbench.probes.device import copy_bandwidth
from specbench.records import NO_DRAFTER, BlockRecord, CellKey, CellSummary, Condition
from specbench.settings import BUILTIN
from specbench.stats.spread import MIN_UNITS

PILOT = 20  # prompts that plan how many more a precision needs
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
        """Measure the winners and their baselines again: on prompts that did not choose them."""
        ids = self._extensions.take("confirm", self._winners)
        explored: dict[Condition, list[Block]] = {}
        for block in self._explored(decides=False):
            if block.id in self._store.finished_blocks:
                explored.setdefault(block.condition, []).append(block)
        blocks = [
            *interleaved([list(self._confirming(blocks, ids)) for blocks in explored.values()])
        ]
        loop = RunLoop(self._store, self._reporter, self._deadline, len(blocks))
        loop.serve(self._with_stages(blocks, " the winners again"), self._session)

    def _confirming(self, explored: Sequence[Block], ids: frozenset[str]) -> Iterator[Block]:
        """The blocks that confirm winners of one setting; none if its prompts are exhausted, since
        the exploration is then cross-fitted (decide/cross_fit.py).

        Requests that overlap, and K = auto, for which that is impossible, are confirmed on the same
        prompts then. Repeats after all planned ones are new, and the same in every session.
        """
        at, plan = explored[0].condition, self._plan
        known = {cell.key.id: cell for block in explored for cell in block.cells}
        cells = with_baselines(tuple(known.values()), ids)
        if not cells:
            return
        again = [(block.prompts, block.repeat) for block in explored]
        if not at.is_stream:
            used = {block.prompt_id for block in explored}
            if unused := plan.other_prompts(plan.workload(at.workload), used):
                repeats = sorted({block.repeat for block in explored})
                again = [((prompt,), repeat) for repeat in repeats for prompt in unused]
            elif not at.overlaps and not any(cell.key.draft.is_adaptive for cell in cells):
                return
        for prompts, repeat in again:
            yield Block(
                condition=at,
                prompts=prompts,
                repeat=plan.repeats(at) + repeat,
                purpose="confirm",
                cells=cells,
            )

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
        """Whether the best K of every pairing has the prompts that its precision needs.

        Their number is planned from the first PILOT prompts (Stein 1945). A run that stops at the
        first narrow interval stops on luck: then 0.81 to 0.95 of the intervals contain the truth,
        with a pilot 0.86 to 0.97 without the machine's part (tests/stats/test_recorded_sweep.py).
        """
        precision, question = self._plan.settings.effort.precision, block.cells[0]
        if precision is None:
            return False
        if not self._extensions.is_taken("precise", question):
            at, stored = block.condition, self._store.stored.blocks
            drafting = {cell.key.id for cell in block.cells if cell.drafter != NO_DRAFTER}
            ids = drafting or {question.key.id}  # at only K = 0 the pilot is enough
            done = [b for b in stored if b.purpose == "explore" and ids & set(b.order)]
            pilot = MIN_UNITS if at.is_stream else PILOT
            # Repeats of a prompt are no further prompts.
            first_of: dict[object, int] = {}
            for i, b in enumerate(done):
                first_of.setdefault(i if at.is_stream else b.prompt_id, i)
            if len(first_of) < pilot:
                return False
            summaries = self._summaries(block.cells, done[: [*first_of.values()][pilot - 1] + 1])
            leaders = [choose(group).leader for group in by_question(summaries)]
            needed = [num_needed(leader, precision, pilot) for leader in leaders]
            if len(first_of) < max(needed, default=pilot):
                return False
            chosen = frozenset(leader.key.id for leader in leaders if leader is not None)
            self._extensions.take("precise", lambda: chosen, question)
        return True

    def _summaries(
        self, cells: Sequence[Cell], blocks: Sequence[BlockRecord] | None = None
    ) -> tuple[CellSummary, ...]:
        """Summaries of the cells from these blocks, or from the exploration so far."""
        keys, slo, device = [c.key for c in cells], self._plan.settings.load.slo, str(self._device)
        stored = self._store.stored.blocks if blocks is None else blocks
        earlier = self._store.run.earlier
        return summarize(aggregate_cells(keys, stored, slo=slo, device=device, earlier=earlier))


def num_needed(cell: CellSummary | None, precision: float, pilot: int) -> float:
    """The prompts or passes that the margin of a pilot needs to shrink to `precision`.

    More of them narrow the part of the prompts only; once that is half of the machine's, more gain
    nothing. Infinite without an interval.
    """
    if cell is None or cell.margin is None:
        return math.inf
    machine = cell.margin.machine
    wanted = math.sqrt(max(precision**2 - machine**2, (machine / 2) ** 2))
    return pilot * max(1.0, (cell.margin.prompts / wanted) ** 2)
