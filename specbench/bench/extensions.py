"""Decisions about the rest of a measurement. They are recorded, and a resumed run follows them."""

from collections.abc import Callable

from specbench.bench.blocks import Cell
from specbench.records import ExtensionRecord
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
        """The cells of a recorded decision, or else those of `decide`, which are then recorded.

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
