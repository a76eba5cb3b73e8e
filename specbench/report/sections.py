"""A document cut by question: one target and workload under one setting, all its drafters."""

from dataclasses import dataclass, replace

from specbench.pairing.recommend import Verdict, judge
from specbench.records import NO_DRAFTER, CellKey, CellSummary, Decision
from specbench.report.document import Document

_PER_POSITION = "acceptance_rate_per_position"


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """One question and what was measured to answer it."""

    question: CellKey  # of the K = 0 cell, whether or not that was measured
    title: str  # the workload and whatever else tells it from the other sections
    baseline: CellSummary | None
    cells: tuple[CellSummary, ...]  # every K > 0, by pairing in the order of the plan, then by K
    decisions: tuple[Decision, ...]  # one for each pairing that was measured
    names_pairings: bool  # whether an answer must say which pairing it is about

    @property
    def best(self) -> Decision | None:
        """Of the drafters that help the one with the highest lower bound; None if none does."""
        helping = [d for d in self.decisions if verdict_of(d) is Verdict.HELPS]
        return max(helping, key=_lower_bound, default=None)

    @property
    def measured(self) -> tuple[CellSummary, ...]:
        """K = 0, where it was measured, and every other cell."""
        return (self.baseline, *self.cells) if self.baseline else self.cells

    @property
    def pairings(self) -> tuple[str, ...]:
        """The pairings measured here, in the order of the plan."""
        return tuple(dict.fromkeys(cell.key.pairing for cell in self.cells))

    def of(self, pairing: str) -> tuple[CellSummary, ...]:
        """The K > 0 cells of one pairing."""
        return tuple(cell for cell in self.cells if cell.key.pairing == pairing)

    @property
    def deepest(self) -> tuple[CellSummary, ...]:
        """Each pairing's valid cell of the largest K whose rounds are known."""
        known = (c for c in self.cells if c.valid and c.metrics.get(_PER_POSITION))
        return tuple({cell.key.pairing: cell for cell in known}.values())

    def is_chosen(self, key: CellKey) -> bool:
        """Whether a decision recommends this cell."""
        return any(
            decision.method != NO_DRAFTER
            and decision.pairing == key.pairing
            and decision.num_speculative_tokens == key.num_speculative_tokens
            for decision in self.decisions
        )


def sections(document: Document) -> tuple[Section, ...]:
    """Every question the run set out to answer, in the order of the plan."""
    planned = [plan.key for plan in document.run.cells]
    questions = tuple(dict.fromkeys(map(_question, planned)))
    pairings = {(k.target, k.pairing) for k in planned if k.num_speculative_tokens > 0}
    return tuple(
        Section(
            question=question,
            title=_title(question, questions),
            baseline=next((c for c in document.cells if c.key == question), None),
            cells=tuple(
                cell
                for cell in document.cells
                if _question(cell.key) == question and cell.key.num_speculative_tokens > 0
            ),
            decisions=tuple(d for d in document.decisions if _asked(d) == _setting(question)),
            names_pairings=sum(target == question.target for target, _ in pairings) > 1,
        )
        for question in questions
    )


def by_setting(all_sections: tuple[Section, ...]) -> tuple[tuple[Section, ...], ...]:
    """Sections that differ in the workload alone, which share a figure."""
    groups: dict[CellKey, list[Section]] = {}
    for section in all_sections:
        groups.setdefault(replace(section.question, workload=""), []).append(section)
    return tuple(map(tuple, groups.values()))


def setting_title(question: CellKey) -> str:
    """Such as `demo, temperature 0, one request at a time, float32, builtin engine`."""
    return ", ".join(
        (
            question.target,
            f"temperature {question.temperature:g}",
            requests_at_once(question),
            question.dtype,
            f"{question.engine} engine",
        )
    )


def requests_at_once(key: CellKey) -> str:
    """The batch size in words."""
    return (
        "one request at a time" if key.concurrency == 1 else f"{key.concurrency} requests at once"
    )


def drafter_of(pairing: str) -> str:
    """The drafter's name alone, which is enough where the target is known."""
    return pairing.rsplit("/", 1)[-1]


def verdict_of(decision: Decision) -> Verdict:
    """Which of the three answers a decision gives."""
    return judge(decision.speedup)


def _question(key: CellKey) -> CellKey:
    """The K = 0 cell that a cell is compared with."""
    return replace(
        key,
        pairing=key.target,
        drafter=NO_DRAFTER,
        method=NO_DRAFTER,
        num_speculative_tokens=0,
    )


def _title(question: CellKey, questions: tuple[CellKey, ...]) -> str:
    parts = {
        "target": question.target,
        "workload": question.workload,
        "temperature": f"temperature {question.temperature:g}",
        "concurrency": requests_at_once(question),
        "dtype": question.dtype,
        "engine": question.engine,
    }
    varying = {name for name in parts if len({getattr(q, name) for q in questions}) > 1}
    return ", ".join(parts[name] for name in parts if name in varying | {"workload"})


def _setting(key: CellKey) -> tuple[object, ...]:
    return (key.target, key.workload, key.engine, key.concurrency, key.temperature, key.dtype)


def _asked(decision: Decision) -> tuple[object, ...]:
    return (
        decision.target,
        decision.workload,
        decision.engine,
        decision.concurrency,
        decision.temperature,
        decision.dtype,
    )


def _lower_bound(decision: Decision) -> float:
    return decision.speedup.low or 0.0 if decision.speedup else 0.0
