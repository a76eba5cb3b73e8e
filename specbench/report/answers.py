"""The answer in plain sentences, one for each question; every format begins or ends with it."""

from dataclasses import dataclass

from specbench.decide.objective import (
    across_workloads,
    left_out_in_words,
    losses_in_words,
    other_ks,
)
from specbench.decide.recommend import SpeedupVerdict
from specbench.records import Decision
from specbench.report.document import Document
from specbench.report.forecasts import best_forecast, forecast_text
from specbench.report.numbers import listed, measured, scalar
from specbench.report.sections import Section, sections, verdict_of


@dataclass(frozen=True, kw_only=True, slots=True)
class SectionAnswer:
    """The answer of one section; `others` are the drafters that the headline does not quote."""

    title: str
    verdict: SpeedupVerdict
    headline: str  # without the title
    reasons: tuple[str, ...]  # of the quoted decision
    others: tuple[Decision, ...]

    @property
    def explained(self) -> bool:
        """Whether there are reasons for it, or for one of the others."""
        return bool(self.reasons) or any(other.reasons for other in self.others)


def answer(section: Section) -> SectionAnswer:
    """The best drafter of a section, or why there is none."""
    quoted = section.best
    if quoted is not None:
        verdict = SpeedupVerdict.HELPS
    else:
        verdicts = {verdict_of(decision) for decision in section.decisions}
        nothing = verdicts == {SpeedupVerdict.GAINS_NOTHING}
        verdict = SpeedupVerdict.GAINS_NOTHING if nothing else SpeedupVerdict.NOT_SHOWN
        if len(section.decisions) == 1:
            (quoted,) = section.decisions
    return SectionAnswer(
        title=section.title,
        verdict=verdict,
        headline=(
            _quote(section, quoted) if quoted else _no_winner(section, verdict) + section.mark
        ),
        reasons=quoted.reasons if quoted else (),
        others=tuple(decision for decision in section.decisions if decision is not quoted),
    )


def has_undecided(document: Document) -> bool:
    """Whether an answer is undecided or has no valid K = 0; sections with only K = 0 ask for
    none."""
    return any(
        answer(section).verdict is SpeedupVerdict.NOT_SHOWN
        if section.decisions
        else section.baseline is not None and not section.baseline.valid
        for section in sections(document)
    )


def answer_lines(document: Document) -> list[str]:
    """A sentence for each question, and indented below it the drafters it does not quote.

    `code: K=6, 1.90x faster [1.80, 2.00]` with one drafter; with several the sentence names
    the best of them: `code: demo/draft, K=6, 1.90x faster [1.80, 2.00]`.
    """
    lines: list[str] = []
    for section in sections(document):
        found = answer(section)
        lines.append(f"{found.title}: {found.headline}")
        lines += (f"  {other.leader.source}: {without_workload(other)}" for other in found.others)
    return lines


def compromise_lines(document: Document) -> list[str]:
    """For each pairing that helps somewhere the one K for all workloads, and what it gives up."""
    helping = {
        across_workloads(d.leader)
        for d in document.decisions
        if verdict_of(d) is SpeedupVerdict.HELPS
    }
    settings = {shared.key.condition.without("target") for shared in document.compromises}
    lines = []
    for shared in document.compromises:
        if across_workloads(shared.key) not in helping:
            continue
        setting = shared.key.condition.without("target")
        at = "".join(f", {part}" for part in setting.distinct_parts(settings))
        k = shared.num_speculative_tokens
        what = f"K={k}" if k else "K=0 (do not speculate)"
        losses = losses_in_words(shared.regret, other_ks(shared.own, k))
        without = left_out_in_words([f"K={own}" for own in shared.left_out])
        given_up = listed(losses) + without + document.mark
        lines.append(f"{shared.key.source}{at}, one K for all workloads: {what}; loses {given_up}")
    return lines


def without_workload(decision: Decision) -> str:
    """A decision's sentence after its `workload: `."""
    return decision.sentence.removeprefix(f"{decision.condition.workload}: ")


def _quote(section: Section, decision: Decision) -> str:
    text = without_workload(decision)
    return f"{decision.leader.source}, {text}" if section.names_pairings else text


def _no_winner(section: Section, verdict: SpeedupVerdict) -> str:
    if section.decisions:
        nothing = verdict is SpeedupVerdict.GAINS_NOTHING
        return (
            "no speedup with any drafter"
            if nothing
            else "undecided: no drafter is shown to be faster"
        )
    if section.cells:
        return "not compared: the imported file has no K=0; see the tables"
    if section.baseline is None:
        best = best_forecast(section.forecasts)
        return forecast_text(best, names_pairing=section.names_pairings) if best else "not measured"
    if not section.baseline.valid:
        return "undecided: no valid measurement of K=0"
    speed = scalar(section.baseline.metrics.get("decode_tokens_per_s"))
    at = "" if speed is None else f" at {measured(speed, 'tokens/s')}"
    return f"not measured: only K=0 was run{at}"
