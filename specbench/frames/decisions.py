"""A row per decision: what to use for one target, workload and setting, and the words for it."""

from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, NamedTuple, Protocol

import pandas as pd

from specbench.decide.recommend import judge
from specbench.frames.column import TEXT, Column, Doc, frame_of, record_columns
from specbench.frames.identity import KEY, RUN_ID, cell_id
from specbench.records import CellKey, Decision, RunRecord

DOCS = {
    "speedup": Doc(
        "what the sentence quotes, of the winner measured again on fresh repeats; absent where "
        "nothing may be quoted",
        "x",
    ),
    "sentence": Doc("the verdict in words", dtype=TEXT),
    "reasons": Doc("the facts behind it"),
}


class Decided(Protocol):
    """What decisions are read from: a run after analysis, as `Document` is."""

    @property
    def run(self) -> RunRecord: ...
    @property
    def decisions(self) -> tuple[Decision, ...]: ...


class DecisionRow(NamedTuple):
    """One decision of one run."""

    run: RunRecord
    decision: Decision

    @property
    def key(self) -> CellKey:
        """What to use: `none` and K = 0 where the answer is not to speculate, or not shown."""
        return self.decision.key


_VERDICT: Column[DecisionRow] = Column(
    name="verdict",
    unit="",
    meaning="`helps`, `hurts or gains nothing` or `not shown to help`",
    dtype="category",
    value=lambda row: judge(row.decision.speedup).value,
)
_ANSWER: tuple[Column[DecisionRow], ...] = record_columns(
    Decision, DOCS, attrgetter("decision"), without=("leader", "draft", "warnings")
)


def decisions_frame(runs: Sequence[Decided]) -> pd.DataFrame:
    """The answer to every question, in the order of the plan."""
    rows = [
        DecisionRow(run.run, replace(decision, reasons=decision.reasons_and_warnings))
        for run in runs
        for decision in run.decisions
    ]
    return frame_of(decision_columns(), rows)


def decision_columns() -> tuple[Column[Any], ...]:
    """`cell_id` is the cell that the decision speaks of, also where the answer is not to use it."""
    return (RUN_ID, *KEY, _VERDICT, *_ANSWER, cell_id(attrgetter("decision.leader")))
