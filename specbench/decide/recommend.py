"""The decision rule: which K to use, or none, and up to which context length.

It has two stages because the best of many is biased upward: `choose` picks a leader from the
exploration phase, and `decide` quotes only the leader's confirmation run.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import groupby
from typing import TypeVar

from specbench.decide.comparisons import ContextCurve, best_fixed
from specbench.decide.explanation import (
    k_text,
    range_text,
    reasons_for,
    speedup_text,
    units_of,
    what_would_narrow,
)
from specbench.metrics.registry import number_of
from specbench.records import (
    NO_DRAFTER,
    CellKey,
    CellSummary,
    Condition,
    Decision,
    Fixed,
    Interval,
    lengths,
)
from specbench.records.keys import Question
from specbench.stats.spread import MIN_UNITS

TIE = 0.01  # lower bounds this close are equal, and the smaller K wins
BEATS_BASELINE = 1 + TIE  # the lower bound of K = 0 is 1
GAINS_NOTHING = 1.02  # with an upper bound up to here, do not speculate
Option = TypeVar("Option")


class SpeedupVerdict(Enum):
    """The answer for one drafter."""

    FASTER = "faster"
    NO_SPEEDUP = "no speedup"
    UNDECIDED = "undecided"


@dataclass(frozen=True, kw_only=True, slots=True)
class LeadingCell:
    """The leading cell of the exploration phase for one pairing, workload and setting."""

    cells: tuple[CellSummary, ...]  # every K > 0, also invalid ones, by K; then K = auto
    leader: CellSummary | None  # the cell that the answer is about; None without a valid speedup
    to_confirm: CellKey | None  # the leader, if its answer needs a confirmation run


def by_question(cells: Iterable[CellSummary]) -> tuple[tuple[CellSummary, ...], ...]:
    """The K > 0 cells, one group per decision in order of appearance.

    Their speedup is the ratio that the decision compares: of speeds, or of goodput.
    """
    groups: dict[Question, list[CellSummary]] = {}
    for cell in cells:
        if cell.key.draft.k > 0:
            groups.setdefault(cell.key.question, []).append(cell.as_decided)
    return tuple(map(tuple, groups.values()))


def choose(cells: Sequence[CellSummary]) -> LeadingCell:
    """The leader of the exploration phase in one setting, among valid cells.

    A single K is not biased by a choice, so it needs no confirmation run. ValueError without a
    K > 0, or for several settings.
    """
    groups = by_question(cells)
    if len(groups) != 1:
        raise ValueError(f"expected the K > 0 cells of one setting, got {len(groups)} settings")
    candidates = tuple(sorted(groups[0], key=_simplicity))
    judged = deciding(candidates)
    if not judged:
        return LeadingCell(cells=candidates, leader=None, to_confirm=None)
    # The answer is "do not speculate" only if no K is undecided.
    promising = [cell for cell in judged if judge(cell.speedup) is not SpeedupVerdict.NO_SPEEDUP]
    wins = any(lower_bound(cell) > BEATS_BASELINE for cell in promising)
    # Without a winner the best estimate leads: a narrow interval does not make a K better.
    leader = min(
        near_best((promising or judged), (lower_bound if wins else estimate)), key=_simplicity
    )
    return LeadingCell(
        cells=candidates,
        leader=leader,
        to_confirm=leader.key if wins and sum(map(_is_usable, candidates)) > 1 else None,
    )


def winners(cells: Sequence[CellSummary]) -> Iterator[str]:
    """Ids of the cells to confirm, since the best of many estimates is biased upward.

    They are the winner of each setting and, if K = auto was measured, also K = auto and the best
    fixed K.
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


def deciding(cells: Sequence[CellSummary]) -> list[CellSummary]:
    """The valid cells with an interval; if no cell has one, the valid cells with a speedup."""
    usable = [cell for cell in cells if _is_usable(cell)]
    return [c for c in usable if c.speedup and c.speedup.low is not None] or usable


def _is_usable(cell: CellSummary) -> bool:
    return cell.valid and cell.speedup is not None


def decide(
    choice: LeadingCell,
    confirmed: CellSummary | None = None,
    *,
    workload_prompts: int | None = None,
    is_synthetic: bool = False,
    is_imported: bool = False,
    is_cut_short: bool = False,
    num_unmeasured: int = 0,
) -> Decision:
    """The decision, which quotes `confirmed`, the confirmation run of `choice.to_confirm`.

    A winner that needs a confirmation run and has none is undecided. Raises ValueError if
    `confirmed` is another cell than the leader. `workload_prompts`: the number of prompts that fit
    the target, None if unknown; `is_synthetic` as in `why`; `is_imported`: measured by another
    tool; `is_cut_short`: a time budget ended before the leader had all its prompts;
    `num_unmeasured`: the number of K for which a time budget had no prompt.
    """
    confirmed = confirmed and confirmed.as_decided
    decision = _decide(
        choice, confirmed, workload_prompts, is_imported=is_imported, is_cut_short=is_cut_short
    )
    is_only = _is_only_judged(choice, num_unmeasured)
    if choice.leader is not None and is_only and not is_undecided(decision):
        units = units_of(choice.leader).noun(MIN_UNITS)
        text = f"{decision.sentence} (the only K with enough {units})"
        decision = replace(decision, sentence=text)
    reasons = reasons_for(
        choice.cells,
        choice.leader,
        confirmed,
        standing=tuple(_standing(choice)),
        is_synthetic=is_synthetic,
    )
    evidence = confirmed or choice.leader
    return replace(decision, reasons=reasons, warnings=evidence.warnings if evidence else ())


def _decide(
    choice: LeadingCell,
    confirmed: CellSummary | None,
    workload_prompts: int | None,
    *,
    is_imported: bool,
    is_cut_short: bool,
) -> Decision:
    leader = choice.leader
    if leader is None:
        return _decision(
            choice, SpeedupVerdict.UNDECIDED, f"undecided: {_nothing_valid(choice.cells)}"
        )
    if confirmed is not None and confirmed.key != leader.key:
        raise ValueError(f"the confirmation run is of {confirmed.key.id}, not {leader.key.id}")
    if choice.to_confirm is not None and confirmed is None:
        text = f"undecided: {k_text(leader)} led the exploration phase, but has no confirmation run"
        return _decision(choice, SpeedupVerdict.UNDECIDED, text)
    evidence = confirmed or leader
    if not evidence.valid or evidence.speedup is None:
        text = f"undecided: the confirmation run of {k_text(evidence)} is not valid"
        return _decision(choice, SpeedupVerdict.UNDECIDED, text)
    if is_imported and evidence.speedup.low is None:
        text = (
            f"undecided: {speedup_text(evidence.speedup, ' over K=0')} at {k_text(evidence)}, "
            "without an interval, which needs repeats at each K, or the times of "
            f"{MIN_UNITS} prompts sent one at a time"
        )
        return _decision(choice, SpeedupVerdict.UNDECIDED, text, evidence.speedup)
    verdict = judge(evidence.speedup)
    text = _answer(verdict, evidence, evidence.speedup, workload_prompts, is_cut_short=is_cut_short)
    return _decision(choice, verdict, text, evidence.speedup)


def judge(speedup: Interval | None) -> SpeedupVerdict:
    """The verdict that a speedup's interval supports."""
    if speedup is None or speedup.low is None or speedup.high is None:
        return SpeedupVerdict.UNDECIDED
    if speedup.high <= GAINS_NOTHING:
        return SpeedupVerdict.NO_SPEEDUP
    return SpeedupVerdict.FASTER if speedup.low > BEATS_BASELINE else SpeedupVerdict.UNDECIDED


def is_undecided(decision: Decision) -> bool:
    """Whether the interval allows both a gain and a loss."""
    return judge(decision.speedup) is SpeedupVerdict.UNDECIDED


def lower_bound(of: CellSummary | Decision) -> float:
    """The lower bound of the speedup; 0, the lowest ratio, without an interval."""
    return of.speedup.low or 0.0 if of.speedup else 0.0


def estimate(cell: CellSummary) -> float:
    """The estimate of the speedup; 0, the lowest ratio, without one."""
    return cell.speedup.estimate if cell.speedup else 0.0


def _nothing_valid(cells: Sequence[CellSummary]) -> str:
    """Why no cell is valid, with the reasons of the first one."""
    invalid = [cell for cell in cells if not cell.valid]
    if not invalid:
        return "no valid measurement"
    first, *rest = invalid
    more = f"; {len(rest)} more excluded" if rest else ""
    return f"no valid measurement ({k_text(first)}: {'; '.join(first.invalid_reasons)}{more})"


def _standing(choice: LeadingCell) -> Iterator[str]:
    """Why the leader was chosen, if there was a choice."""
    leader, usable = choice.leader, [cell for cell in choice.cells if _is_usable(cell)]
    if leader is None or len(usable) < 2:
        return
    tried = lengths(cell.key.draft.length for cell in usable)
    judged = deciding(choice.cells)
    if choice.to_confirm is not None:
        yield f"exploration phase: {k_text(leader)} had the highest lower bound of K = {tried}"
        if pruned := [cell for cell in usable if cell not in judged]:
            left = lengths(cell.key.draft.length for cell in pruned)
            yield f"not measured: K = {left} (dropped before it had an interval)"
        return
    lost = [c for c in judged if judge(c.speedup) is SpeedupVerdict.NO_SPEEDUP and c is not leader]
    is_open = judge(leader.speedup) is not SpeedupVerdict.NO_SPEEDUP
    if is_open and any(estimate(cell) > estimate(leader) for cell in lost):
        shown = lengths(cell.key.draft.length for cell in lost)
        yield f"undecided: {k_text(leader)} looks best so far"
        yield f"no speedup: K = {shown}"
    else:
        of_tried = f"the highest estimate of K = {tried}"
        yield f"{k_text(leader)} has {of_tried}; none is shown to be faster"


def near_best(options: Collection[Option], value: Callable[[Option], float]) -> list[Option]:
    """Options whose value is within `TIE` of the highest."""
    highest = max(map(value, options))
    return [option for option in options if value(option) * (1 + TIE) >= highest]


def _simplicity(cell: CellSummary) -> tuple[int, int]:
    return cell.key.draft.order


def _is_only_judged(choice: LeadingCell, num_unmeasured: int) -> bool:
    """Whether every other K has too few prompts or passes for an interval."""
    competitors = [units_of(cell) for cell in choice.cells if cell is not choice.leader]
    are_few = all(units.are_too_few for units in competitors)
    return are_few and len(competitors) + num_unmeasured > 0


def _answer(
    verdict: SpeedupVerdict,
    cell: CellSummary,
    speedup: Interval,
    workload_prompts: int | None,
    *,
    is_cut_short: bool,
) -> str:
    within = f" requests within {cell.goodput.limits}" if cell.goodput else ""
    if verdict is SpeedupVerdict.FASTER:
        return f"{k_text(cell)}, {speedup_text(speedup, f' more{within}' if within else ' faster')}"
    if verdict is SpeedupVerdict.NO_SPEEDUP:
        return f"no speedup: {k_text(cell)} measured {speedup_text(speedup, within)}"
    shares = [number_of(cell.metrics, f"slo_attainment{of}") for of in ("", "_of_baseline")]
    if within and not any(shares):
        return f"undecided: no{within} at {k_text(cell)} and at K=0; raise the limits of --slo"
    text = f"undecided: {range_text(speedup)}{within} at {k_text(cell)}"
    if speedup.low is None:
        units = units_of(cell)
        text += f" from {units.count} {units.noun(units.count)}"
    advice = what_would_narrow(cell, workload_prompts, is_cut_short=is_cut_short)
    return "; ".join(filter(None, (text, advice)))


def _decision(
    choice: LeadingCell,
    verdict: SpeedupVerdict,
    text: str,
    speedup: Interval | None = None,
) -> Decision:
    key = (choice.leader or choice.cells[0]).key
    unused = replace(key.draft, method=NO_DRAFTER, length=Fixed(0))
    mark = "" if key.draft.lossy is None else f" [lossy: {key.draft.lossy}]"
    return Decision(
        leader=key,
        draft=key.draft if verdict is SpeedupVerdict.FASTER else unused,
        speedup=speedup,
        sentence=f"{key.condition.workload_label}: {text}{mark}",
        reasons=(),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class ContextDecisions:
    """The decisions of one pairing and setting, from the shortest context to the longest."""

    decisions: tuple[Decision, ...]
    key: CellKey | None  # the configuration of the longest context at which drafts help
    break_even: Interval | None  # of `key`, in tokens of context

    @property
    def condition(self) -> Condition:
        """The setting without the context."""
        return self.decisions[0].condition.without("context")

    @property
    def question(self) -> Question:
        """The setting without the context, and the drafter."""
        return self.decisions[0].leader.without("context").question

    @property
    def is_split(self) -> bool:
        """Whether the answer depends on the context."""
        return len(set(map(_k_or_verdict, self.decisions))) > 1

    @property
    def text(self) -> str:
        """`K=6 up to 8,192 tokens; undecided at 16,384; do not speculate from 32,768`."""
        answers = [(_k_or_verdict(d), d.condition.context or 0) for d in self.decisions]
        tiers = [
            (answer, [context for _, context in group])
            for answer, group in groupby(answers, lambda pair: pair[0])
        ]
        (first, lengths), *rest = tiers
        if not rest:
            return f"{first} from {lengths[0]:,} to {lengths[-1]:,} tokens"
        parts = [f"{first} up to {lengths[-1]:,} tokens"]
        for answer, (shortest, *longer) in rest[:-1]:
            parts.append(
                f"{answer} from {shortest:,} to {longer[-1]:,}"
                if longer
                else f"{answer} at {shortest:,}"
            )
        last, (shortest, *_) = rest[-1]
        return "; ".join([*parts, f"{last} from {shortest:,}"])

    @property
    def break_even_text(self) -> str:
        """`break-even with K=6: 14,000 tokens [9,200, 21,000]`; empty if drafts never help."""
        if self.key is None:
            return ""
        name, value = f"break-even with {self.key.draft.length.named}", self.break_even
        if value is None:
            longest = self.decisions[-1]
            if longest.draft.k:
                return f"{name}: none up to {longest.condition.context:,} tokens"
            return f"{name}: undecided"
        is_open = value.low is None or value.high is None
        return f"{name}: {'undecided, about ' if is_open else ''}{break_even_text(value)}"


def break_even_text(value: Interval) -> str:
    """`14,000 tokens [9,200, 21,000]`, with `?` for a bound that the run does not determine.

    It has two significant digits, because the interpolation is not more accurate.
    """
    center, low, high = (
        "?" if tokens is None else f"{float(f'{tokens:.2g}'):,.0f}"
        for tokens in (value.estimate, value.low, value.high)
    )
    return f"{center} tokens [{low}, {high}]"


def _k_or_verdict(decision: Decision) -> str:
    verdict = judge(decision.speedup)
    if verdict is SpeedupVerdict.FASTER:
        return decision.leader.draft.length.named
    return "do not speculate" if verdict is SpeedupVerdict.NO_SPEEDUP else "undecided"


def by_context(
    decisions: Sequence[Decision], curves: Sequence[ContextCurve]
) -> tuple[ContextDecisions, ...]:
    """One entry per pairing and setting that has decisions at two context lengths or more."""
    groups: dict[Question, dict[int, Decision]] = {}
    for decision in decisions:
        question, context = decision.leader.without("context").question, decision.condition.context
        if context is not None:
            groups.setdefault(question, {})[context] = decision
    return tuple(
        _context_decisions([group[context] for context in sorted(group)], curves)
        for group in groups.values()
        if len(group) > 1
    )


def _context_decisions(
    decisions: Sequence[Decision], curves: Sequence[ContextCurve]
) -> ContextDecisions:
    helping = [decision.leader.without("context") for decision in decisions if decision.draft.k]
    key = helping[-1] if helping else None
    return ContextDecisions(
        decisions=tuple(decisions),
        key=key,
        break_even=next((c.break_even for c in curves if c.key.without("context") == key), None),
    )
