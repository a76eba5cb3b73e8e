"""Under a time budget, which K stay in the race: few at first, then the promising ones."""

from collections.abc import Iterator, Sequence
from functools import partial

from specbench.bench.blocks import Block, Cell
from specbench.bench.deadline import Deadline
from specbench.bench.extensions import Extensions
from specbench.bench.first_ks import SECURED, Share, brought_back, put_off, told
from specbench.bench.plan import TargetPlan
from specbench.bench.pruning import A_FEW, ENOUGH_PROMPTS, hopeless, unaffordable
from specbench.bench.session import Session
from specbench.bench.spent import block_seconds
from specbench.bench.watch import Watch
from specbench.decide.recommend import by_question
from specbench.engines.refusals import REFUSALS
from specbench.metrics.gathering import gather_cells
from specbench.metrics.summary import summarise
from specbench.records import NO_DRAFTER, BlockRecord, CellKey, CellSummary
from specbench.runs import Ledger


def summaries(cells: Sequence[Cell], blocks: Sequence[BlockRecord]) -> tuple[CellSummary, ...]:
    """What some blocks say of some cells."""
    return summarise(gather_cells([cell.key for cell in cells], blocks))


def _estimate(cell: CellSummary) -> float:
    return cell.speedup.estimate if cell.speedup else 0.0


class Race:
    """One pass over the blocks of the cells that are `usable`.

    With a `session` it decides, and records it; without one it follows what was decided.
    """

    def __init__(
        self,
        plan: TargetPlan,
        ledger: Ledger,
        watch: Watch,
        deadline: Deadline,
        usable: frozenset[str],
        extensions: Extensions,
        session: Session | None,
    ) -> None:
        self._plan = plan
        self._ledger = ledger
        self._watch = watch
        self._deadline = deadline
        self._usable = usable
        self._extensions = extensions
        self._session = session
        self._gone: dict[CellKey, frozenset[str]] = {}  # by question
        self._waiting: dict[CellKey, frozenset[str]] = {}  # what of that may come back

    def dropped(self, block: Block, begun: int) -> frozenset[str]:
        """What is not measured from this block of its question on, which is its number `begun`."""
        name = block.cells[0].key
        gone = self._gone.get(name, frozenset())
        if self._plan.settings.effort.budget_s is not None:
            gone = self._gone[name] = self._decided(block, begun, gone)
        return gone

    def _decided(self, block: Block, begun: int, gone: frozenset[str]) -> frozenset[str]:
        question, racing = block.cells[0], block.only(self._usable - gone)
        if begun == 0:
            later = self._extensions.take("drop", partial(self._put_off, block), question)
            self._waiting[question.key] = later
            return later
        if begun in (1, A_FEW):
            losers = partial(self._losers, racing, begun)
            return gone | self._extensions.take("drop", losers, question, begun)
        later = self._waiting.get(question.key, frozenset())
        if begun == SECURED and later:
            decide = partial(self._still_off, block, racing, later)
            off = self._extensions.take("drop", decide, question, SECURED)
            if self._extensions.is_taken("drop", question, SECURED):
                return gone - later | off
        return gone

    def _put_off(self, block: Block) -> frozenset[str] | None:
        """The cells that wait until few, spread ones have an interval; None where nobody can say.

        Judged by the target's own answer to the first prompt, which has to be decoded anyway.
        """
        left_s = self._deadline.seconds_left("explore")
        at = block.condition
        if self._session is None or left_s is None or left_s <= 0 or at.overlaps:
            return None
        if self._own(block):
            return None  # begun with every K
        try:
            self._session.request(block, block.cells[0])
        except REFUSALS:
            return None  # the block will record it
        after_s = self._deadline.seconds_left("explore") or 0.0
        waiting = sum(not self._own(other) for other in self._first_blocks())
        share = Share(left_s=max(after_s, 0.0) / max(1, waiting), cell_s=left_s - after_s)
        later = put_off(block.cells, share)
        spent_s = self._deadline.explore_s - after_s
        for warning in told(block.cells, later, share, spent_s, self._plan):
            self._watch.warn(warning)
        return later or None

    def _still_off(
        self, block: Block, racing: Block, later: frozenset[str]
    ) -> frozenset[str] | None:
        """What stays put off once the first K have an interval: all but the neighbours of the best
        that the time left pays for. None before that."""
        own = self._own(block)
        left_s = self._deadline.seconds_left("explore")
        if self._session is None or len(own) < SECURED or left_s is None:
            return None
        spent = [seconds for stored in own for seconds in block_seconds(stored).values()]
        share = Share(
            left_s=max(left_s, 0.0) / len(self._plan.conditions), cell_s=sum(spent) / len(spent)
        )
        groups = by_question(summaries(block.cells, own))
        # A deep K has few rounds so far and may not be valid yet: the estimate has to do.
        timed = [[cell for cell in group if cell.speedup] for group in groups]
        leaders = [max(some, key=_estimate) for some in timed if some]
        waiting = [cell for cell in block.cells if cell.key.id in later]
        tried = [cell for cell in block.cells if cell.key.id not in later]
        room = share.num_cells - len(racing.cells)
        return later - brought_back(waiting, tried, [one.key for one in leaders], room)

    def _own(self, block: Block) -> list[BlockRecord]:
        """The stored blocks of a block's question, of the first pass and with its drafters."""
        drafted = {cell.key.id for cell in block.cells if cell.drafter != NO_DRAFTER}
        return [
            stored
            for stored in self._ledger.stored.blocks
            if stored.purpose == "explore" and drafted & set(stored.order)
        ]

    def _first_blocks(self) -> Iterator[Block]:
        """One of every question."""
        seen = set()
        for block in self._plan.explore_blocks():
            if block.condition not in seen:
                seen.add(block.condition)
                yield block.only(self._usable)

    def _losers(self, block: Block, num_prompts: int) -> frozenset[str] | None:
        """The cells of the block that its question's first prompts show to be hopeless.

        None before so many prompts are measured.
        """
        first = self._own(block)[:num_prompts]
        if len(first) < num_prompts:
            return None
        cells = summaries(block.cells, first)
        losers = hopeless(cells, num_prompts)
        if num_prompts > 1:
            return losers
        seconds = block_seconds(first[0])
        racing = [cell for cell in cells if cell.key.id not in losers]
        limit_s = self._affordable_share() * sum(seconds.values())
        kept = {i: s for i, s in seconds.items() if i not in losers}
        return losers | unaffordable(racing, kept, limit_s)

    def _affordable_share(self) -> float:
        """What a further prompt may take of the first one's time, so that enough can follow."""
        questions = len(self._plan.conditions)
        own = (b for b in self._ledger.stored.blocks if self._usable >= set(b.order))
        first = [block for block in own if block.purpose == "explore"][:questions]
        spent_s = sum(sum(block_seconds(block).values()) for block in first)
        left_s = max(self._deadline.explore_s - spent_s, 0.0)
        return left_s / spent_s / (ENOUGH_PROMPTS - 1) if spent_s else 1.0
