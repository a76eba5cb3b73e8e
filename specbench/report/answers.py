"""The answers of a run in plain sentences, one per question, for every format."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from specbench.decide.explanation import range_text
from specbench.decide.objective import (
    across_workloads,
    left_out_in_words,
    losses_in_words,
    other_ks,
)
from specbench.decide.recommend import SpeedupVerdict
from specbench.metrics.registry import number_of
from specbench.records import Condition, Decision
from specbench.report.document import Document
from specbench.report.forecasts import best_forecast, forecast_text
from specbench.report.memory import memory_left
from specbench.report.numbers import listed, measured
from specbench.report.sections import Section, sections, verdict_of

NOT_MEASURED = "not measured"


@dataclass(frozen=True, kw_only=True, slots=True)
class VerdictCard:
    """The verdict on one pairing and workload."""

    title: str
    verdict: str  # of a SpeedupVerdict, or NOT_MEASURED
    figure: str  # the speedup, or its range if undecided; empty without an interval
    text: str  # the sentence without the verdict
    facts: tuple[str, ...]  # why


@dataclass(frozen=True, kw_only=True, slots=True)
class SectionAnswer:
    title: str
    verdict: SpeedupVerdict
    headline: str  # the answer without the title
    reasons: tuple[str, ...]  # of the quoted decision
    unquoted: tuple[Decision, ...]  # on drafters that the headline does not quote
    cards: tuple[VerdictCard, ...]  # the best pairing first; one card without a pairing


def answer(section: Section) -> SectionAnswer:
    """The best drafter of a section, or why there is none."""
    quoted = section.best
    if quoted is not None:
        verdict = SpeedupVerdict.FASTER
    else:
        verdicts = {verdict_of(decision) for decision in section.decisions}
        is_no_speedup = verdicts == {SpeedupVerdict.NO_SPEEDUP}
        verdict = SpeedupVerdict.NO_SPEEDUP if is_no_speedup else SpeedupVerdict.UNDECIDED
        if len(section.decisions) == 1:
            (quoted,) = section.decisions
    unquoted = tuple(decision for decision in section.decisions if decision is not quoted)
    headline = _quote(section, quoted) if quoted else _no_winner(section, verdict) + section.mark
    decisions = (quoted, *unquoted) if quoted else unquoted
    return SectionAnswer(
        title=section.title,
        verdict=verdict,
        headline=headline,
        reasons=quoted.reasons if quoted else (),
        unquoted=unquoted,
        cards=tuple(_card(section, decision) for decision in decisions)
        or (_card_without_pairing(section, headline),),
    )


def _card(section: Section, decision: Decision) -> VerdictCard:
    verdict, speedup = verdict_of(decision), decision.speedup
    figure, word = "", verdict.value
    if speedup is not None and speedup.low is not None:
        is_open = verdict is SpeedupVerdict.UNDECIDED
        figure = range_text(speedup) if is_open else f"{speedup.estimate:.2f}x"
    return VerdictCard(
        title=f"{decision.leader.source}, {section.title}",
        verdict=word,
        figure=figure,
        text=without_workload(decision).removeprefix(f"{word}: "),
        facts=decision.reasons,
    )


def _card_without_pairing(section: Section, headline: str) -> VerdictCard:
    word, _, rest = headline.partition(": ")
    is_verdict = word in (*(v.value for v in SpeedupVerdict), NOT_MEASURED)
    return VerdictCard(
        title=section.title,
        verdict=word if is_verdict else NOT_MEASURED,
        figure="",
        text=rest if is_verdict else headline,
        facts=(),
    )


def has_undecided(document: Document) -> bool:
    """Whether an answer is undecided, or the K = 0 of a section without a decision is not valid."""
    return any(
        answer(section).verdict is SpeedupVerdict.UNDECIDED
        if section.decisions
        else section.baseline is not None and not section.baseline.valid
        for section in sections(document)
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
        lines += (f"  {d.leader.source}: {without_workload(d)}" for d in section_answer.unquoted)
    return lines


def shared_k_lines(document: Document) -> list[str]:
    """One K for all workloads and what it loses, for each pairing that helps on some workload."""
    helping = {
        across_workloads(d.leader)
        for d in document.decisions
        if verdict_of(d) is SpeedupVerdict.FASTER
    }
    settings = {shared.key.condition.without("target") for shared in document.shared_k}
    lines = []
    for shared in document.shared_k:
        if across_workloads(shared.key) not in helping:
            continue
        setting = shared.key.condition.without("target")
        at = "".join(f", {part}" for part in setting.distinct_parts(settings))
        k = shared.num_speculative_tokens
        choice = f"K={k}" if k else "K=0 (do not speculate)"
        losses = losses_in_words(shared.regret, other_ks(shared.best_k, k))
        without = left_out_in_words([f"K={other_k}" for other_k in shared.left_out])
        lines.append(
            f"{shared.key.source}{at}, one K for all workloads: {choice}; "
            f"loses {listed(losses)}{without}{document.mark}"
        )
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
        text = "; ".join(filter(None, (entry.text, entry.break_even_text, *memory)))
        source = entry.decisions[0].leader.source
        yield f"{source}{at}, by context: {text}{document.mark}"


def without_workload(decision: Decision) -> str:
    """A decision's sentence after its `workload: `."""
    return decision.sentence.removeprefix(f"{decision.condition.workload_label}: ")


def _quote(section: Section, decision: Decision) -> str:
    text = without_workload(decision)
    return f"{decision.leader.source}, {text}" if section.names_pairings else text


def _no_winner(section: Section, verdict: SpeedupVerdict) -> str:
    if section.decisions:
        is_no_speedup = verdict is SpeedupVerdict.NO_SPEEDUP
        return (
            "no speedup with any drafter"
            if is_no_speedup
            else "undecided: no drafter is shown to be faster"
        )
    if section.cells and not section.forecasts:
        return "not compared: the imported file has no K=0; see the tables"
    if section.baseline is None:
        best = best_forecast(section.forecasts)
        return forecast_text(best, names_pairing=section.names_pairings) if best else NOT_MEASURED
    if not section.baseline.valid:
        return "undecided: no valid measurement of K=0"
    speed = number_of(section.baseline.metrics, "decode_tokens_per_s")
    text = "only K=0 was run" + (f" ({measured(speed, 'tokens/s')})" if speed is not None else "")
    return f"{NOT_MEASURED}: {text}" if section.has_drafts else f"{text}; add K, such as -k 0..8"
