"""Several runs beside each other: what each answers, and where they differ."""

from collections.abc import Iterator, Sequence

from specbench.decide.explanation import range_text, speedup_text
from specbench.decide.recommend import Verdict
from specbench.records import CellKey, Decision
from specbench.report.document import Document
from specbench.report.grids import Grid
from specbench.report.numbers import ABSENT
from specbench.report.provenance import provenance
from specbench.report.sections import drafter_of, verdict_of


def answers_grid(documents: Sequence[Document]) -> Grid | None:
    """A row a question and drafter, a column a run; None for a single run."""
    if len(documents) < 2:
        return None
    every = asked(documents)
    settings = [key.condition for key in every]
    return Grid(
        title="Answers of the runs",
        headers=("question", "drafter", *(f"run {i + 1}" for i in range(len(documents)))),
        rows=tuple(
            (
                ", ".join(key.condition.distinct_parts(settings, also="workload")),
                drafter_of(key.source),
                *(_said(found) + document.mark for found, document in by_run(documents, key)),
            )
            for key in every
        ),
        num_names=2 + len(documents),
    )


def differences_grid(documents: Sequence[Document]) -> Grid | None:
    """The facts in which the runs differ, a column a run; None for a single run."""
    if len(documents) < 2:
        return None
    facts = [{fact.name: fact.value for fact in provenance(document)} for document in documents]
    names = dict.fromkeys(name for own in facts for name in own)
    return Grid(
        title="Where the runs differ",
        headers=("", *(f"run {i + 1}" for i in range(len(documents)))),
        rows=tuple(
            (name, *(own.get(name, ABSENT) for own in facts))
            for name in names
            if len({own.get(name) for own in facts}) > 1
        ),
        num_names=1 + len(documents),
    )


def asked(documents: Sequence[Document]) -> list[CellKey]:
    """A cell for every question and drafter that some run decided."""
    found: dict[tuple[object, ...], CellKey] = {}
    for document in documents:
        for decision in document.decisions:
            found.setdefault(_question(decision), decision.leader)
    return list(found.values())


def _question(decision: Decision) -> tuple[object, ...]:
    return decision.condition, decision.leader.draft.way


def by_run(
    documents: Sequence[Document], key: CellKey
) -> Iterator[tuple[Decision | None, Document]]:
    """Each run with what it decided for that question and drafter; None where it did not."""
    for document in documents:
        own = (d for d in document.decisions if _question(d) == (key.condition, key.draft.way))
        yield next(own, None), document


def _said(found: Decision | None) -> str:
    if found is None:
        return ABSENT
    if found.speedup is None:
        return "undecided"
    k, verdict = found.leader.draft.length.named, verdict_of(found)
    if verdict is Verdict.NOT_SHOWN:
        return f"undecided: {k}, {range_text(found.speedup)}"
    answer = "do not speculate: " if verdict is Verdict.GAINS_NOTHING else ""
    return f"{answer}{k}, {speedup_text(found.speedup)}"
