"""The answers of a run, one per question, for every format."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

from specbench.decide.objective import (
    across_workloads,
    one_k,
)
from specbench.metrics.registry import number_of
from specbench.records import Condition, Decision, Kind, Reason, SpeedupVerdict
from specbench.report.document import Document
from specbench.report.forecasts import best_forecast, forecast_text
from specbench.report.memory import memory_left
from specbench.report.sections import Section, sections
from specbench.words.answers import answer_text, decision_text, joined, text
from specbench.words.numbers import listed, range_text
from specbench.words.table import Table, column, text_table


@dataclass(frozen=True, kw_only=True, slots=True)
class VerdictCard:
    """The verdict on one pairing and workload."""

    title: str
    verdict: SpeedupVerdict
    figure: str  # the speedup that decided, or its range; empty without an interval
    text: str  # the answer without the verdict


@dataclass(frozen=True, kw_only=True, slots=True)
class SectionAnswer:
    """The best drafter of a section, or why there is none."""

    section: Section
    verdict: SpeedupVerdict
    quoted: Decision | None  # None: no drafter, or several of which none is faster
    answer: tuple[Reason | str, ...]  # of the quoted decision, or on the whole section
    unquoted: tuple[Decision, ...]  # on drafters that the headline does not quote

    @property
    def title(self) -> str:
        return self.section.title

    @property
    def headline(self) -> str:
        """The answer without the title."""
        if self.quoted is None:
            return answer_text(self.verdict, self.answer, mark=self.section.mark)
        text = decision_text(self.quoted)
        return f"{self.quoted.leader.source}, {text}" if self.section.names_pairings else text

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """The best pairing first."""
        return (*([self.quoted] if self.quoted else []), *self.unquoted)

    @property
    def cards(self) -> tuple[VerdictCard, ...]:
        """One per pairing, or one without a pairing."""
        if self.decisions:
            return tuple(_card(self.section, decision) for decision in self.decisions)
        text = joined(self.answer) + self.section.mark
        return (VerdictCard(title=self.title, verdict=self.verdict, figure="", text=text),)


def answer(section: Section) -> SectionAnswer:
    quoted, reasons = section.best, tuple[Reason | str, ...]()
    if quoted is None and len(section.decisions) == 1 and not section.lacks_drafters:
        (quoted,) = section.decisions
    verdicts = {decision.verdict for decision in section.decisions}
    if quoted is not None:
        verdict, reasons = quoted.verdict, quoted.answer
    elif verdicts == {SpeedupVerdict.NO_SPEEDUP} and not section.lacks_drafters:
        verdict, reasons = SpeedupVerdict.NO_SPEEDUP, (Kind.NO_DRAFTER_HELPS(),)
    elif section.decisions:
        verdict, reasons = SpeedupVerdict.UNDECIDED, (Kind.NO_DRAFTER_SHOWN(),)
    elif section.baseline is not None and not section.baseline.valid:
        verdict, reasons = SpeedupVerdict.UNDECIDED, (Kind.BASELINE_INVALID(),)
    else:
        verdict, reasons = SpeedupVerdict.NOT_MEASURED, tuple(_why_not_measured(section))
    return SectionAnswer(
        section=section,
        verdict=verdict,
        quoted=quoted,
        answer=reasons,
        unquoted=tuple(decision for decision in section.decisions if decision is not quoted),
    )


def _why_not_measured(section: Section) -> Iterator[Reason | str]:
    best = best_forecast(section.forecasts)
    if section.cells and not section.forecasts:
        yield Kind.NO_BASELINE()
    elif section.baseline is None and best is not None:
        yield forecast_text(best, names_pairing=section.names_pairings)
    elif section.baseline is None:
        yield Kind.NOT_MEASURED()
    else:
        yield Kind.ONLY_BASELINE(speed=number_of(section.baseline.metrics, "decode_tokens_per_s"))
        if not section.has_drafts:
            yield Kind.ADD_K()


def _card(section: Section, decision: Decision) -> VerdictCard:
    figure, speedup = "", decision.decided_by
    if speedup is not None and speedup.low is not None:
        is_open = decision.verdict is SpeedupVerdict.UNDECIDED
        figure = range_text(speedup) if is_open else f"{speedup.estimate:.2f}x"
    return VerdictCard(
        title=f"{decision.leader.source}, {section.title}",
        verdict=decision.verdict,
        figure=figure,
        text=joined(decision.answer) + decision.mark,
    )


def conclusion(answers: Sequence[SectionAnswer]) -> Iterator[Reason]:
    """The answer to the question of a run, over all its settings."""
    titles: dict[SpeedupVerdict, list[str]] = {}
    helping: dict[str, dict[str, list[str]]] = {}  # the titles by pairing and K
    for each in answers:
        titles.setdefault(each.verdict, []).append(each.title)
        if each.verdict is SpeedupVerdict.FASTER and each.quoted:
            by_k = helping.setdefault(each.quoted.leader.source, {})
            by_k.setdefault(each.quoted.draft.length.named, []).append(each.title)
    if not helping:
        if titles.keys() == {SpeedupVerdict.NO_SPEEDUP}:
            yield Kind.NO()
        elif titles.keys() & {SpeedupVerdict.NO_SPEEDUP, SpeedupVerdict.UNDECIDED}:
            yield Kind.NOTHING_SHOWN()  # a setting that was not measured may hold a speedup
        else:
            yield Kind.NO_ANSWER()
        return
    yield Kind.YES(
        which=tuple(
            ", ".join((source, *(_at(k, some, len(answers)) for k, some in by_k.items())))
            for source, by_k in helping.items()
        )
    )
    verdicts: dict[str, set[SpeedupVerdict]] = {}
    for decision in (d for each in answers for d in each.decisions):
        verdicts.setdefault(decision.leader.source, set()).add(decision.verdict)
    if lost := [name for name, of in verdicts.items() if of == {SpeedupVerdict.NO_SPEEDUP}]:
        yield Kind.NOT_WITH(which=tuple(lost))
    if SpeedupVerdict.NO_SPEEDUP in titles:
        yield Kind.NOT_ON(which=tuple(titles[SpeedupVerdict.NO_SPEEDUP]))
    if SpeedupVerdict.UNDECIDED in titles:
        yield Kind.OPEN_ON(which=tuple(titles[SpeedupVerdict.UNDECIDED]))
    if SpeedupVerdict.NOT_MEASURED in titles:
        yield Kind.UNMEASURED_ON(which=tuple(titles[SpeedupVerdict.NOT_MEASURED]))


def _at(k: str, titles: Sequence[str], num_all: int) -> str:
    """`K=7 on all 3`."""
    if num_all == 1:
        return k
    return f"{k} on {f'all {num_all}' if len(titles) == num_all else listed(titles)}"


_BOUND_BY = {
    Kind.DRAFT_BOUND: "drafting",
    Kind.VERIFY_BOUND: "verification",
    Kind.ACCEPTANCE_BOUND: "acceptance",
    Kind.OVERHEAD_BOUND: "overhead",
}


class _Why(NamedTuple):
    """A decision under the title of its section, with the figures of its reasons."""

    title: str
    decision: Decision
    figures: Mapping[str, Any]

    @property
    def name(self) -> str:
        return f"{self.decision.leader.source}, {self.title}"

    @property
    def bound_by(self) -> str | None:
        kinds = (reason.kind for reason in self.decision.reasons)
        return next((_BOUND_BY[kind] for kind in kinds if kind in _BOUND_BY), None)


def _whys(answers: Sequence[SectionAnswer]) -> list[_Why]:
    return [
        _Why(each.title, d, {n: v for reason in d.reasons for n, v in reason.figures.items()})
        for each in answers
        for d in each.decisions
    ]


def why_grid(answers: Sequence[SectionAnswer]) -> Table | None:
    """A row per pairing and setting: what decides its speedup; None without a decision."""
    rows = _whys(answers)
    if not rows:
        return None
    return Table(
        title="Why",
        columns=[
            column("", attrgetter("name")),
            column("K", attrgetter("decision.leader.draft.length.label")),
            column("accept. length", lambda row: row.figures.get("length"), "{:.2f}"),
            column("break-even", lambda row: row.figures.get("break_even"), "{:.2f}"),
            column("draft token", lambda row: row.figures.get("draft"), "{:.2f}"),
            column("verification", lambda row: row.figures.get("verify"), "{:.2f}"),
            column("memory", lambda row: row.figures.get("bytes"), unit="bytes"),
            column("bound by", attrgetter("bound_by")),
            column("", lambda row: next(map(text, row.decision.reasons), "")),
        ],
        records=rows,
        num_remarks=1,
        has_title=False,
    )


def reasons_grid(answers: Sequence[SectionAnswer]) -> Table:
    """All reasons of all decisions, the most important of each first."""
    rows = [(row.name, text(reason)) for row in _whys(answers) for reason in row.decision.reasons]
    return text_table("All reasons", ("", "reason"), rows, num_remarks=1, is_folded=True)


def has_undecided(document: Document) -> bool:
    """Whether an answer is undecided, or the K = 0 of a section without a decision is not valid."""
    return any(
        answer(section).verdict is SpeedupVerdict.UNDECIDED for section in sections(document)
    )


def answer_lines(document: Document) -> list[str]:
    """A sentence per setting; below it, indented, the drafters that it does not quote.

    `code: K=6, 1.90x faster [1.80, 2.00]` with one drafter; with several the sentence names
    the best of them: `code: demo/draft, K=6, 1.90x faster [1.80, 2.00]`.
    """
    lines: list[str] = []
    for section in sections(document):
        section_answer = answer(section)
        lines.append(f"{section_answer.title}: {section_answer.headline}")
        lines += (f"  {d.leader.source}: {decision_text(d)}" for d in section_answer.unquoted)
    return lines


def shared_k_lines(document: Document) -> list[str]:
    """One K for all workloads and what it loses, for each pairing that helps on some workload."""
    helping = {
        across_workloads(d.leader) for d in document.decisions if d.verdict is SpeedupVerdict.FASTER
    }
    settings = {shared.key.condition.without("target") for shared in document.shared_k}
    lines = []
    for shared in document.shared_k:
        if across_workloads(shared.key) not in helping:
            continue
        setting = shared.key.condition.without("target")
        at = "".join(f", {part}" for part in setting.distinct_parts(settings))
        lines.append(f"{shared.key.source}{at}, {text(one_k(shared))}{document.mark}")
    return lines


def context_lines(
    document: Document, conditions: Collection[Condition] | None = None
) -> Iterator[str]:
    """K by context length and the break-even; only for `conditions` (without context) if given."""
    settings = [entry.condition for entry in document.by_context]
    for entry in document.by_context:
        if conditions is not None and entry.condition not in conditions:
            continue
        at = "".join(
            f", {part}" for part in entry.condition.distinct_parts(settings, also="workload")
        )
        memory = memory_left(document, entry.decisions[-1].key)
        text = joined((*entry.answer, *entry.where_it_ends, *memory))
        source = entry.decisions[0].leader.source
        yield f"{source}{at}, by context: {text}{document.mark}"
