"""The decision rule: which K to use, or none, and up to which context length.

It has two stages because the best of many is biased upward: `choose` picks a leader from the
exploration phase, and `decide` quotes only the leader's confirmation run.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal, TypeVar

from specbench.decide.comparisons import (
    BEATS_BASELINE,
    TIE,
    ContextCurve,
    best_fixed,
    is_comparable,
    judge,
)
from specbench.decide.explanation import (
    k_of,
    ks_of,
    named_k,
    reasons_for,
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
    Kind,
    Reason,
    SpeedupVerdict,
    by_importance,
)
from specbench.records.keys import Question
from specbench.stats.spread import MIN_UNITS

DIFFERS = 1.05  # whole requests against decoding: from here on an answer is about both
Option = TypeVar("Option")
ConfirmedOn = Literal["same", "other", "halves"]  # prompts: those that chose K, others, cross-fit


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
    # The best estimate leads: a narrow interval does not make a K better.
    leader = min(near_best((promising or judged), estimate), key=_simplicity)
    return LeadingCell(
        cells=candidates,
        leader=leader,
        to_confirm=leader.key if wins and sum(map(_is_usable, candidates)) > 1 else None,
    )


def winners(cells: Sequence[CellSummary], *, also_open: bool = False) -> Iterator[str]:
    """Ids of the cells to confirm, since the best of many estimates is biased upward.

    They are the winner of each setting, or if `also_open` the leader of each that may be faster,
    and, if K = auto was measured, also K = auto and the best fixed K.
    """
    groups = by_question(cells)
    for group in groups:
        choice = choose(group)
        leader, winner = choice.leader, choice.to_confirm
        if also_open and leader and judge(leader.speedup) is not SpeedupVerdict.NO_SPEEDUP:
            winner = leader.key
        if winner is not None:
            yield winner.id
        for key in (cell.key for cell in group if cell.key.draft.is_adaptive):
            yield key.id
            drafting = (c for each_group in groups for c in each_group if is_comparable(c.key, key))
            best = best_fixed([*drafting])
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
    confirmed_on: ConfirmedOn = "same",
    *,
    workload_prompts: int | None = None,
    is_synthetic: bool = False,
    is_imported: bool = False,
    is_cut_short: bool = False,
    num_unmeasured: int = 0,
) -> Decision:
    """The decision, which quotes `confirmed`, the confirmation run of `choice.to_confirm`.

    A winner that needs a confirmation run and has none is undecided. Raises ValueError if
    `confirmed` is another cell than the leader. `confirmed_on`: its prompts. `workload_prompts`:
    the number of prompts that fit the target, None if unknown; `is_synthetic` as in `why`;
    `is_imported`: measured by another tool; `is_cut_short`: a time budget ended before the leader
    had all its prompts;
    `num_unmeasured`: the number of K for which a time budget had no prompt.
    """
    confirmed = confirmed and confirmed.as_decided
    leader = choice.leader
    key = (leader or choice.cells[0]).key
    if leader is not None and confirmed is not None and confirmed.key != leader.key:
        raise ValueError(f"the confirmation run is of {confirmed.key.id}, not {leader.key.id}")
    evidence = confirmed or leader
    answer = tuple(_why_nothing_is_quoted(choice, confirmed))
    if is_cut_short and any(reason.kind is Kind.NOT_CONFIRMED for reason in answer):
        answer += (Kind.LONGER_BUDGET(),)
    speedup = evidence.speedup if evidence and not answer else None
    verdict = verdict_of(evidence) if evidence and speedup else judge(speedup)
    rivals = []
    if confirmed is not None and verdict is SpeedupVerdict.NO_SPEEDUP:
        others = [cell for cell in deciding(choice.cells) if cell is not leader]
        rivals = [c for c in others if judge(c.speedup) is not SpeedupVerdict.NO_SPEEDUP]
        verdict = SpeedupVerdict.UNDECIDED if rivals else verdict
    if evidence is not None and speedup is not None:
        if is_imported and speedup.low is None:
            needed = (MIN_UNITS, "prompt")
            k = k_of(key.draft.length)
            answer = (Kind.IMPORTED_ALONE(speedup=speedup, k=k, needed=needed),)
        else:
            answer = tuple(_findings(verdict, evidence, speedup))
        if rivals:
            answer += (Kind.OTHER_K_OPEN(ks=ks_of(rivals)),)
        elif verdict is not SpeedupVerdict.UNDECIDED and _is_only_judged(choice, num_unmeasured):
            answer += (Kind.ONLY_K(needed=units_of(evidence).needed),)
        elif verdict is SpeedupVerdict.UNDECIDED and answer[0].kind in _NARROWED:
            answer += tuple(
                what_would_narrow(evidence, workload_prompts, is_cut_short=is_cut_short)
            )
    reasons = (
        *reasons_for(choice.cells, leader, confirmed, is_synthetic=is_synthetic),
        *_confirmation(confirmed, confirmed_on),
        *_standing(choice),
    )
    unused = replace(key.draft, method=NO_DRAFTER, length=Fixed(0))
    return Decision(
        leader=key,
        draft=key.draft if verdict is SpeedupVerdict.FASTER else unused,
        verdict=verdict,
        speedup=speedup,
        end_to_end=evidence.speedup_end_to_end
        if evidence and speedup and not evidence.goodput
        else None,
        answer=answer,
        reasons=by_importance(reasons),
        warnings=evidence.warnings if evidence else (),
        is_synthetic=is_synthetic,
    )


def _why_nothing_is_quoted(choice: LeadingCell, confirmed: CellSummary | None) -> Iterator[Reason]:
    """Why no speedup may be quoted; empty if one may."""
    leader, evidence = choice.leader, confirmed or choice.leader
    invalid = [cell for cell in choice.cells if not cell.valid]
    if leader is None and invalid:
        first, *rest = invalid
        never = [r for r in first.invalid_reasons if r.kind is Kind.NEVER_DRAFTED]
        k = k_of(first.key.draft.length)
        yield never[0] if never else Kind.ALL_INVALID(k=k, because=first.invalid_reasons)
        if rest:
            yield Kind.MORE_INVALID(count=len(rest))
    elif leader is None:
        yield Kind.NOTHING_VALID()
    elif choice.to_confirm is not None and confirmed is None:
        yield Kind.NOT_CONFIRMED(**named_k(leader))
    elif evidence is None or not evidence.valid or evidence.speedup is None:
        yield Kind.CONFIRMATION_INVALID(k=k_of(leader.key.draft.length))


def _confirmation(confirmed: CellSummary | None, on: ConfirmedOn) -> Iterator[Reason]:
    """What confirms the winner."""
    if confirmed is None:
        return
    if on == "halves":
        yield Kind.CROSS_FITTED()
    elif not confirmed.valid:
        yield Kind.CONFIRMATION_EXCLUDED(because=confirmed.invalid_reasons)
    elif confirmed.speedup is not None:
        yield Kind.CONFIRMED(speedup=confirmed.speedup, over=units_of(confirmed).amount)
    if on == "other":
        yield Kind.OTHER_PROMPTS()


# The findings for which more measurements may decide.
_NARROWED = (Kind.RANGE, Kind.RANGE_REQUESTS, Kind.TOO_FEW, Kind.OPEN_WHOLE)


def _findings(verdict: SpeedupVerdict, cell: CellSummary, speedup: Interval) -> Iterator[Reason]:
    """What was found about one K, and about whole requests where they differ from decoding."""
    whole, out, of_decoding = cell.speedup_end_to_end, cell.screening, judge(speedup)
    if not _differs(cell):
        whole = None
    if (
        out is not None
        and cell.goodput is None
        and out.num_kept
        and judge(out.without_any) != of_decoding
    ):
        kept, without = (out.num_kept, "request"), out.without_any
        yield Kind.STALLS_DECIDE(**named_k(cell), speedup=speedup, kept=kept, without=without)
    elif whole is not None and verdict is not of_decoding:
        kind = Kind.OPEN_WHOLE if verdict is SpeedupVerdict.UNDECIDED else Kind.ONLY_DECODING
        yield kind(**named_k(cell), speedup=speedup, whole=whole)
    else:
        yield _finding(verdict, cell, speedup)
        if whole is not None:
            yield Kind.ALSO_WHOLE(whole=whole)
    if cell.key.condition.is_stream and verdict is not SpeedupVerdict.UNDECIDED:
        yield Kind.THESE_PROMPTS()


def _differs(cell: CellSummary) -> bool:
    """Whether whole requests gain another speedup than decoding. Never with an SLO, whose requests
    are whole."""
    whole, decode = cell.speedup_end_to_end, cell.speedup
    if whole is None or decode is None or cell.goodput is not None:
        return False
    ratio = whole.estimate / decode.estimate
    return max(ratio, 1 / ratio) > DIFFERS


def verdict_of(cell: CellSummary) -> SpeedupVerdict:
    """The verdict that a cell supports: by its speedup, but not faster unless whole requests are,
    and not decided if requests decide it that may have stalled."""
    verdict, out = judge(cell.speedup), cell.screening
    if out is not None and out.num_kept and cell.goodput is None:
        verdict = verdict if judge(out.without_any) is verdict else SpeedupVerdict.UNDECIDED
    whole = cell.speedup_end_to_end
    if verdict is not SpeedupVerdict.FASTER or whole is None or not _differs(cell):
        return verdict
    return verdict if whole.low is None else judge(whole)


def _finding(verdict: SpeedupVerdict, cell: CellSummary, speedup: Interval) -> Reason:
    """What was found about one K, by its speedup or the ratio of goodput."""
    figures, goodput = named_k(cell), cell.goodput
    if verdict is SpeedupVerdict.UNDECIDED and goodput is not None:
        shares = [number_of(cell.metrics, f"slo_attainment{of}") for of in ("", "_of_baseline")]
        if not any(shares):
            return Kind.NO_REQUESTS(k=figures["k"], limits=goodput.limits)
    if speedup.low is None:
        return Kind.TOO_FEW(**figures, measured=units_of(cell).amount)
    if goodput is not None:
        return _WITHIN_LIMITS[verdict](**figures, speedup=speedup, limits=goodput.limits)
    return finding(speedup, **figures)


_WITHIN_LIMITS = {
    SpeedupVerdict.FASTER: Kind.MORE_REQUESTS,
    SpeedupVerdict.NO_SPEEDUP: Kind.MEASURED_REQUESTS,
    SpeedupVerdict.UNDECIDED: Kind.RANGE_REQUESTS,
}
_FINDINGS = {
    SpeedupVerdict.FASTER: Kind.FASTER,
    SpeedupVerdict.NO_SPEEDUP: Kind.MEASURED,
    SpeedupVerdict.UNDECIDED: Kind.RANGE,
}


def finding(speedup: Interval | None, k: int | str, mean_k: float | None = None) -> Reason:
    """What a speedup says about one K."""
    return _FINDINGS[judge(speedup)](k=k, mean_k=mean_k, speedup=speedup)


def lower_bound(of: CellSummary | Decision) -> float:
    """The lower bound of the speedup; 0, the lowest ratio, without an interval."""
    return of.speedup.low or 0.0 if of.speedup else 0.0


def estimate(cell: CellSummary) -> float:
    """The estimate of the speedup; 0, the lowest ratio, without one."""
    return cell.speedup.estimate if cell.speedup else 0.0


def _standing(choice: LeadingCell) -> Iterator[Reason]:
    """Why the leader was chosen, if there was a choice, and the K that could not be chosen."""
    leader, judged = choice.leader, deciding(choice.cells)
    if leader is None:
        return
    lost = [c for c in judged if judge(c.speedup) is SpeedupVerdict.NO_SPEEDUP and c is not leader]
    is_open = judge(leader.speedup) is not SpeedupVerdict.NO_SPEEDUP
    if len(judged) > 1 and choice.to_confirm is not None:
        yield Kind.LED(**named_k(leader), tried=ks_of(judged))
    elif is_open and any(estimate(cell) > estimate(leader) for cell in lost):
        yield Kind.LOOKS_BEST(**named_k(leader))
        yield Kind.OTHERS_LOSE(ks=ks_of(lost))
    elif len(judged) > 1:
        yield Kind.HIGHEST_ESTIMATE(**named_k(leader), tried=ks_of(judged))
    if pruned := [cell for cell in choice.cells if _is_usable(cell) and cell not in judged]:
        yield Kind.DROPPED(ks=ks_of(pruned))


def near_best(options: Collection[Option], value: Callable[[Option], float]) -> list[Option]:
    """Options whose value is within `TIE` of the highest."""
    highest = max(map(value, options))
    return [option for option in options if value(option) * (1 + TIE) >= highest]


def _simplicity(cell: CellSummary) -> tuple[int, int]:
    return cell.key.draft.order


def _is_only_judged(choice: LeadingCell, num_unmeasured: int) -> bool:
    """Whether every other K has too few prompts, passes or cycles for an interval."""
    competitors = [units_of(cell) for cell in choice.cells if cell is not choice.leader]
    are_few = all(units.are_too_few for units in competitors)
    return are_few and len(competitors) + num_unmeasured > 0


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
        return len(self._tiers) > 1

    @property
    def _tiers(self) -> list[tuple[int | str, list[int]]]:
        """Each K, or the verdict if it is not faster, with its neighboring contexts."""
        answers = [(_k_or_verdict(d), d.condition.context or 0) for d in self.decisions]
        return [
            (answer, [context for _, context in group])
            for answer, group in groupby(answers, lambda pair: pair[0])
        ]

    @property
    def answer(self) -> Iterator[Reason]:
        """K by context, from the shortest."""
        (first, lengths), *rest = self._tiers
        if not rest:
            yield Kind.AT_ALL_LENGTHS(k=first, shortest=lengths[0], longest=lengths[-1])
            return
        yield Kind.UP_TO_LENGTH(k=first, longest=lengths[-1])
        for k, (shortest, *longer) in rest[:-1]:
            if longer:
                yield Kind.BETWEEN_LENGTHS(k=k, shortest=shortest, longest=longer[-1])
            else:
                yield Kind.AT_LENGTH(k=k, context=shortest)
        last, (shortest, *_) = rest[-1]
        yield Kind.FROM_LENGTH(k=last, shortest=shortest)

    @property
    def where_it_ends(self) -> Iterator[Reason]:
        """The break-even of the last K that helps; empty if drafts never help."""
        if self.key is None:
            return
        k, value, longest = k_of(self.key.draft.length), self.break_even, self.decisions[-1]
        if value is None and longest.draft.k:
            yield Kind.NO_BREAK_EVEN(k=k, longest=longest.condition.context)
        elif value is None:
            yield Kind.BREAK_EVEN_OPEN(k=k)
        elif value.low is None or value.high is None:
            yield Kind.BREAK_EVEN_ABOUT(k=k, tokens=value)
        else:
            yield Kind.BREAK_EVEN(k=k, tokens=value)


def _k_or_verdict(decision: Decision) -> int | str:
    if decision.verdict is SpeedupVerdict.FASTER:
        return k_of(decision.leader.draft.length)
    return decision.verdict.value


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
