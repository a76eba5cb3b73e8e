"""Decisions that a run makes about its plan while it measures; a resumed run follows them."""

from collections.abc import Callable, Collection, Iterator, Sequence

from specbench.bench.blocks import Cell
from specbench.decide.comparisons import best_fixed
from specbench.decide.recommend import by_question, choose
from specbench.records import NO_DRAFTER, CellSummary, ExtensionRecord
from specbench.records.provenance import ExtensionKind
from specbench.runs import RunStore


class Extensions:
    """Decisions about the cells of drafters that are loaded together."""

    def __init__(self, store: RunStore, drafters: frozenset[str]) -> None:
        self._store = store
        self._drafters = tuple(sorted(drafters))
        stored = (e for e in store.stored.extensions if e.drafters == self._drafters)
        self._taken = {(e.kind, e.question, e.num_prompts): e.cell_ids for e in stored}

    def is_taken(
        self, kind: ExtensionKind, question: Cell | None = None, num_prompts: int = 0
    ) -> bool:
        return (kind, _id_of(question), num_prompts) in self._taken

    def take(
        self,
        kind: ExtensionKind,
        decide: Callable[[], frozenset[str] | None],
        question: Cell | None = None,
        num_prompts: int = 0,
    ) -> frozenset[str]:
        """The cells of a recorded decision, else those of `decide`, which are then recorded.

        If `decide` returns None, it is too early to decide, and nothing is recorded.
        """
        key = kind, _id_of(question), num_prompts
        if key not in self._taken:
            decided = decide()
            if decided is None:
                return frozenset()
            record = ExtensionRecord(
                kind=kind,
                question=_id_of(question),
                drafters=self._drafters,
                num_prompts=num_prompts,
                cell_ids=tuple(sorted(decided)),
            )
            self._store.append(record)
            self._taken[key] = record.cell_ids
        return frozenset(self._taken[key])


def _id_of(question: Cell | None) -> str:
    return question.key.id if question else ""


def winners(cells: Sequence[CellSummary]) -> Iterator[str]:
    """Ids of the cells to confirm, since the best of many estimates is biased upward.

    They are the winner of each question, and in those with K = auto also that and the best fixed K.
    """
    for group in by_question(cells):
        winner = choose(group).to_confirm
        if winner is not None:
            yield winner.id
        adaptive = [cell.key.id for cell in group if cell.key.draft.is_adaptive]
        yield from adaptive
        best = best_fixed(group) if adaptive else None
        if best is not None:
            yield best.id


def with_baselines(cells: Sequence[Cell], ids: Collection[str]) -> tuple[Cell, ...]:
    """The cells with these ids, after the baselines of their conditions."""
    chosen = [cell for cell in cells if cell.key.id in ids]
    conditions = {cell.key.condition for cell in chosen}
    baselines = [c for c in cells if c.drafter == NO_DRAFTER and c.key.condition in conditions]
    return (*baselines, *(cell for cell in chosen if cell not in baselines))
