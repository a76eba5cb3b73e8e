"""K by context length: the decisions of a pairing at several lengths, and its break-even."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from specbench.decide.comparisons import ContextCurve
from specbench.decide.recommend import SpeedupVerdict, judge
from specbench.records import CellKey, Condition, Decision, Interval


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
    def question(self) -> tuple[Condition, tuple[str, str, str | None]]:
        """The setting without the context, and the draft configuration without its length."""
        return self.condition, self.decisions[0].leader.draft.way

    @property
    def is_split(self) -> bool:
        """Whether the answer depends on the context."""
        return len(set(map(_answer, self.decisions))) > 1

    @property
    def text(self) -> str:
        """`K=6 up to 8,192 tokens; undecided at 16,384; do not speculate from 32,768`."""
        answers = [(_answer(d), d.condition.context or 0) for d in self.decisions]
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
    estimate, low, high = (
        "?" if tokens is None else f"{float(f'{tokens:.2g}'):,.0f}"
        for tokens in (value.estimate, value.low, value.high)
    )
    return f"{estimate} tokens [{low}, {high}]"


def _answer(decision: Decision) -> str:
    verdict = judge(decision.speedup)
    if verdict is SpeedupVerdict.FASTER:
        return decision.leader.draft.length.named
    return "do not speculate" if verdict is SpeedupVerdict.NO_SPEEDUP else "undecided"


def by_context(
    decisions: Sequence[Decision], curves: Sequence[ContextCurve]
) -> tuple[ContextDecisions, ...]:
    """One entry per pairing and setting that has decisions at two context lengths or more."""
    groups: dict[object, dict[int, Decision]] = {}
    for decision in decisions:
        condition, context = decision.condition.without("context"), decision.condition.context
        if context is not None:
            groups.setdefault((condition, decision.leader.draft.way), {})[context] = decision
    return tuple(
        _combine([group[context] for context in sorted(group)], curves)
        for group in groups.values()
        if len(group) > 1
    )


def _combine(decisions: Sequence[Decision], curves: Sequence[ContextCurve]) -> ContextDecisions:
    helping = [decision.leader.without("context") for decision in decisions if decision.draft.k]
    key = helping[-1] if helping else None
    return ContextDecisions(
        decisions=tuple(decisions),
        key=key,
        break_even=next((c.break_even for c in curves if c.key.without("context") == key), None),
    )
