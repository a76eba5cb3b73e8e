"""What a run decides about its plan while it measures; a resumed run follows it."""

from collections.abc import Callable

from specbench.bench.blocks import Cell
from specbench.records import ExtensionRecord
from specbench.records.extensions import ExtensionKind
from specbench.runs import Ledger


class Extensions:
    """Decisions about the cells of drafters that are loaded together."""

    def __init__(self, ledger: Ledger, drafters: frozenset[str]) -> None:
        self._ledger = ledger
        self._drafters = tuple(sorted(drafters))
        own = (e for e in ledger.stored.extensions if e.drafters == self._drafters)
        self._taken = {(e.kind, e.question, e.num_prompts): e.cell_ids for e in own}

    def is_taken(
        self, kind: ExtensionKind, question: Cell | None = None, num_prompts: int = 0
    ) -> bool:
        return (kind, _name(question), num_prompts) in self._taken

    def take(
        self,
        kind: ExtensionKind,
        decide: Callable[[], frozenset[str] | None],
        question: Cell | None = None,
        num_prompts: int = 0,
    ) -> frozenset[str]:
        """The cells of a decision: as recorded, else as `decide` says, which is then recorded.

        None of `decide`: it is too early to say, and nothing is recorded.
        """
        place = kind, _name(question), num_prompts
        if place not in self._taken:
            decided = decide()
            if decided is None:
                return frozenset()
            record = ExtensionRecord(
                kind=kind,
                question=place[1],
                drafters=self._drafters,
                num_prompts=num_prompts,
                cell_ids=tuple(sorted(decided)),
            )
            self._ledger.append(record)
            self._taken[place] = record.cell_ids
        return frozenset(self._taken[place])


def _name(question: Cell | None) -> str:
    return question.key.id if question else ""
