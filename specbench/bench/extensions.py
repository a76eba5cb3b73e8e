"""Decisions about the rest of a measurement. They are recorded, and a resumed run follows them."""

from collections.abc import Callable
from dataclasses import replace

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
        self._taken = {_place(extension): extension for extension in stored}

    def is_taken(
        self, kind: ExtensionKind, question: Cell | None = None, num_prompts: int = 0
    ) -> bool:
        return _place(self._about(kind, question, num_prompts)) in self._taken

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
        about = self._about(kind, question, num_prompts)
        if _place(about) not in self._taken:
            decided = decide()
            if decided is None:
                return frozenset()
            self._record(replace(about, cell_ids=tuple(sorted(decided))))
        return frozenset(self._taken[_place(about)].cell_ids)

    def take_confirmation(
        self, decide: Callable[[], tuple[frozenset[str], int] | None], question: Cell
    ) -> tuple[frozenset[str], int]:
        """The cells to confirm, and the prompts of each workload in a session, as by `take`."""
        about = self._about("confirm", question)
        if _place(about) not in self._taken:
            decided = decide()
            if decided is None:
                return frozenset(), 0
            ids, num_prompts = decided
            self._record(replace(about, cell_ids=tuple(sorted(ids)), num_prompts=num_prompts))
        record = self._taken[_place(about)]
        return frozenset(record.cell_ids), record.num_prompts

    def _about(
        self, kind: ExtensionKind, question: Cell | None, num_prompts: int = 0
    ) -> ExtensionRecord:
        return ExtensionRecord(
            kind=kind,
            question=question.key.id if question else "",
            drafters=self._drafters,
            num_prompts=num_prompts,
        )

    def _record(self, record: ExtensionRecord) -> None:
        self._store.append(record)
        self._taken[_place(record)] = record


def _place(record: ExtensionRecord) -> tuple[ExtensionKind, str, int]:
    """What a decision is about: a setting has several drops, one after another."""
    return record.kind, record.question, record.num_prompts if record.kind == "drop" else 0
