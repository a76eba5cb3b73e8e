"""Findings as sentences and as a JSON document; no torch.

The built-in decoder and transformers have one sentence per pairing, and one about K = 0 of a
target that failed. Serving engines have one sentence per pairing and K.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Literal, NamedTuple, get_type_hints

from specbench.doc import JsonObject, Key, Several, docs_of
from specbench.errors import ExitCode
from specbench.records import Kind, Reason
from specbench.records.keys import FlatKey
from specbench.settings import SERVED
from specbench.verify.evidence import Distance, Divergence, Subject
from specbench.verify.judge import FALSE_ALARM, Finding, Verdict, describe_divergence, is_tie
from specbench.words.answers import REASON, joined

SCHEMA_VERSION = 1

# How the sentence of a verdict begins, the most severe first; all other verdicts are lossless.
_WORDS = {
    "mismatch": "NOT lossless",
    "lossy": "lossy by choice",
    "failed": "not verified",
    "inconclusive": "undecided",
    "matches_baseline": "lossless",
}
_WORDS_OF_SERVER_BASELINE = {
    **_WORDS,
    "mismatch": "NOT the target's",
    "matches_baseline": "the others are compared with it",
}


def exit_code(findings: Sequence[Finding]) -> int:
    """The exit code for the most severe finding."""
    if any(finding.lossless is False for finding in findings):
        return ExitCode.FAILED
    verdicts = {finding.verdict for finding in findings}
    if "failed" in verdicts:
        return ExitCode.INCOMPLETE
    return ExitCode.INCONCLUSIVE if "inconclusive" in verdicts else ExitCode.GOOD


def false_alarm_note(findings: Sequence[Finding]) -> str:
    """A note on how to read the p-values; empty if there are none."""
    num_tests = _num_tests(findings)
    if not num_tests:
        return ""
    return (
        f"p is adjusted for the {num_tests} tests of this call (Holm): below {FALSE_ALARM:g} is "
        f"a fault; a sound engine triggers it in at most {FALSE_ALARM:.1%} of calls."
    )


def _num_tests(findings: Sequence[Finding]) -> int:
    return sum(len(finding.p_values) for finding in findings)


_RESULT = JsonObject(
    "VerifyResult",
    "A result.",
    {
        **{
            name: Key(hint, docs_of(FlatKey)[name].meaning, attrgetter(f"subject.{name}"))
            for name, hint in get_type_hints(Subject).items()
            if name != "lossy"
        },
        "lossless": Key(bool | None, "`true`, `false`, or absent if undecided"),
        "verdict": Key(Verdict, "see below"),
        "reasons": Key(Several(REASON), "why"),
        "lossy": Key(
            str | None,
            "the option that changes the distribution on purpose; absent: none",
            lambda f: f.subject.lossy,
        ),
        "match_rate": Key(
            float | None, "share of prompts with the expected tokens; absent above temperature 0"
        ),
        "first_divergence": Key(
            Divergence | None,
            "the first divergence that is not a tie, or else the first one; absent: none",
        ),
        "p_value": Key(
            float | None,
            "the smallest of its tests, adjusted for all tests of the call; below `false_alarm` "
            "it is a fault",
        ),
        "p_values": Key(Mapping[str, float], "of each test, not adjusted"),
        "control_p_value": Key(
            float | None,
            "the p-value of tokens at a temperature 20% lower, which must be small: see below",
        ),
        "detectable_deviation": Key(
            float | None,
            "share of tokens that, moved across the middle of the target's distribution, is "
            "detected with 80% power",
            lambda f: f.detectable and f.detectable.shift,
        ),
        "detectable_tail": Key(
            float | None,
            "the same for tokens moved to its least likely 2^-10",
            lambda f: f.detectable and f.detectable.tail,
        ),
        "num_prompts": Key(
            int | None,
            "compared prompts, counting every turn of a conversation; absent above temperature 0",
        ),
        "num_tokens": Key(int, "tokens compared or tested"),
        "divergences": Key(tuple[Divergence, ...], "all divergences at temperature 0"),
        "distances": Key(
            tuple[Distance, ...], "of a serving engine's sampled tokens, one per position"
        ),
        "not_looked_at": Key(
            str | None,
            "why the target's logits were not computed; absent: they were",
            lambda f: f.not_scored_because or None,
        ),
        "acceptance_rule": Key(
            str | None,
            "the rule by which the serving engine accepts drafts, by its exporter; absent: "
            "unknown, or no drafts",
            lambda f: f.rule,
        ),
    },
)
_ANSWER = JsonObject(
    "VerifyAnswer",
    "The answer about a pairing.",
    {
        "subject": Key(str, "the pairing; for a serving engine with the engine and K"),
        "verdict": Key(Verdict, "the most severe one"),
        "reasons": Key(Several(REASON), "why"),
        "text": Key(str, "the answer in words"),
    },
)
DOCUMENT = JsonObject(
    "Verify",
    "The output of `specbench verify --json`.",
    {
        "schema_version": Key(Literal[1], "version of this document", lambda _: SCHEMA_VERSION),
        "lossless": Key(
            bool | None,
            "`true`: all results are; `false`: some result is not; absent: undecided, or something "
            "could not run",
            lambda findings: {0: True, 1: False}.get(exit_code(findings)),
        ),
        "false_alarm": Key(
            float,
            "upper bound of the probability that a call without faults reports one",
            lambda _: FALSE_ALARM,
        ),
        "num_tests": Key(int, "p-values that share it", lambda findings: _num_tests(findings)),
        "results": Key(
            Several(_RESULT),
            "one entry per pairing, engine, K and temperature; K = 0 of each engine first, with "
            "the target as `pairing`",
            list,
        ),
        "answers": Key(
            Several(_ANSWER),
            "one per pairing; for a serving engine one per pairing and K, K = 0 included",
            lambda findings: answers(findings),
        ),
    },
)


def document(findings: Sequence[Finding]) -> dict[str, Any]:
    """The JSON document of a call; `specbench schema verify` explains every key."""
    return DOCUMENT.of(findings)


def result(finding: Finding) -> dict[str, Any]:
    """A finding as an entry of `results`."""
    return _RESULT.of(finding)


class Answer(NamedTuple):
    """The answer about a pairing, or about a pairing and K of a server."""

    subject: str
    verdict: Verdict  # the most severe
    words: str  # the verdict's
    reasons: tuple[Reason, ...]

    @property
    def text(self) -> str:
        return f"{self.subject}: {self.words}: {joined(self.reasons)}"


def sentences(findings: Sequence[Finding]) -> list[str]:
    """The answers in words."""
    return [answer.text for answer in answers(findings)]


def answers(findings: Sequence[Finding]) -> list[Answer]:
    """The answers of serving engines, then of the engines in this process."""
    served = [finding for finding in findings if finding.subject.engine in SERVED]
    findings = [finding for finding in findings if finding.subject.engine not in SERVED]
    by_k: dict[str, list[Finding]] = {}
    for finding in served:
        by_k.setdefault(_served_subject(finding), []).append(finding)
    made = [_served_answer(name, group, served) for name, group in by_k.items()]
    for pairing, grouped in itertools.groupby(findings, lambda f: f.subject.pairing):
        group = list(grouped)
        is_baseline = all(map(_is_baseline, group))
        if is_baseline and all(f.lossless for f in group) and len(group) < len(findings):
            continue
        made.append(_answer(f"{pairing}{' at K=0' if is_baseline else ''}", group))
    return made


def _worst(findings: Sequence[Finding]) -> Finding | None:
    """The first finding with the most severe verdict in _WORDS; None if all are lossless."""
    by_verdict = {finding.verdict: finding for finding in reversed(findings)}
    return next((by_verdict[verdict] for verdict in _WORDS if verdict in by_verdict), None)


def _answer(name: str, findings: Sequence[Finding]) -> Answer:
    """The answer about a pairing of an engine in this process."""
    worst = _worst(findings)
    if worst is None:
        return Answer(
            name, findings[0].verdict, "lossless", (*_greedy(findings), *_sampled(findings))
        )
    reasons: tuple[Reason, ...] = (_in_setting(worst, worst.reasons),)
    if worst.verdict == "lossy":
        reasons = tuple(_at_every_temperature(findings))
    return Answer(name, worst.verdict, _WORDS[worst.verdict], reasons)


def _in_setting(finding: Finding, because: Iterable[Reason]) -> Reason:
    return Kind.IN_SETTING(
        setting=_setting(finding), because=tuple(because), p_value=finding.p_value
    )


def _at_every_temperature(findings: Sequence[Finding]) -> Iterator[Reason]:
    """The reason of a lossy pairing at each temperature, for the K that differs most."""
    by_temperature: dict[float, list[Finding]] = {}
    for finding in findings:
        by_temperature.setdefault(finding.subject.temperature, []).append(finding)
    for i, group in enumerate(by_temperature.values()):
        worst = min(
            group, key=lambda f: (f.match_rate or 0.0, 1.0 if f.p_value is None else f.p_value)
        )
        reasons = (r for r in worst.reasons if not (i and r.kind is Kind.LOSSY_RULE))
        yield _in_setting(worst, (*reasons, *_greedy([worst], ties=False)))


def _greedy(findings: Sequence[Finding], *, ties: bool = True) -> Iterator[Reason]:
    """How many greedy answers are the expected ones, and unless `ties` is false why not all."""
    greedy = [f for f in findings if f.match_rate is not None]
    if greedy:
        num_prompts = sum(f.num_prompts or 0 for f in greedy)
        matching = sum(round((f.match_rate or 0.0) * (f.num_prompts or 0)) for f in greedy)
        kind = Kind.GREEDY_IS_BEST if _is_baseline(greedy[0]) else Kind.GREEDY_EQUALS
        yield kind(matching=matching, answers=num_prompts)
        if ties and matching < num_prompts:
            yield Kind.OTHERS_TIE()


def _sampled(findings: Sequence[Finding]) -> Iterator[Reason]:
    sampled = [f for f in findings if f.detectable is not None and f.p_value is not None]
    if sampled:
        weakest = max((f.detectable for f in sampled if f.detectable), key=lambda d: d.shift)
        yield Kind.SAMPLED_FOLLOW(
            tokens=sum(f.num_tokens for f in sampled),
            p_value=min(f.p_value for f in sampled if f.p_value is not None),
            shift=weakest.shift,
            tail=weakest.tail,
        )


def _setting(finding: Finding) -> str:
    subject = finding.subject
    method = (
        "" if _is_baseline(finding) else f" {subject.method} K={subject.num_speculative_tokens}"
    )
    return f"{subject.engine}{method} at T={subject.temperature:g}"


def _is_baseline(finding: Finding) -> bool:
    return finding.subject.num_speculative_tokens == 0


def divergence_lines(findings: Sequence[Finding]) -> list[str]:
    """The divergences of a server's greedy texts from those at K = 0, each with its cause."""
    return [
        f"{_served_subject(finding)}: {joined((*described, *cause))}"
        for finding in findings
        if not _is_baseline(finding)
        for divergence in finding.divergences
        for described in [describe_divergence(divergence, finding.not_scored_because)]
        for cause in [() if finding.not_scored_because else (_cause(divergence),)]
    ]


def _cause(divergence: Divergence) -> Reason:
    return Kind.ROUNDING() if is_tie(divergence) else Kind.NOT_ROUNDING()


def _served_answer(name: str, group: Sequence[Finding], findings: Sequence[Finding]) -> Answer:
    verdict = (_worst(group) or group[0]).verdict
    words, sound = (
        (_WORDS_OF_SERVER_BASELINE, "sound") if _is_baseline(group[0]) else (_WORDS, "lossless")
    )
    ordered = sorted(group, key=lambda finding: finding.verdict != verdict)
    reasons = tuple(
        Kind.IN_SETTING(
            setting=f"at T={finding.subject.temperature:g}",
            because=tuple(_served_reasons(finding, _baseline_of(finding, findings))),
            p_value=finding.p_value if finding.verdict == "mismatch" else None,
        )
        for finding in ordered
    )
    return Answer(name, verdict, words.get(verdict, sound), reasons)


def _served_subject(finding: Finding) -> str:
    subject = finding.subject
    return f"{subject.pairing} on {subject.engine} at K={subject.num_speculative_tokens}"


def _baseline_of(finding: Finding, findings: Sequence[Finding]) -> Finding | None:
    """The finding for K = 0 of the same engine; None at K = 0."""
    if _is_baseline(finding):
        return None
    subject = finding.subject
    return next(
        f
        for f in findings
        if _is_baseline(f)
        and f.subject.engine == subject.engine
        and f.subject.temperature == subject.temperature
        and subject.pairing.startswith(f"{f.subject.pairing}/")
    )


def _served_reasons(finding: Finding, baseline: Finding | None) -> Iterator[Reason]:
    """What was found about a server in one setting."""
    is_greedy, verdict = finding.match_rate is not None, finding.verdict
    if is_greedy and verdict == "matches_baseline":
        yield Kind.COMPARED_WITH_IT()
    elif is_greedy:
        yield from _greedy([finding], ties=False)
    elif verdict == "matches_distribution":
        yield from _sampled([finding])
        return
    elif verdict == "matches_baseline" and baseline is not None:
        yield Kind.SAMPLED_LIKE_BASELINE(tokens=finding.num_tokens, p_value=finding.p_value)
        if baseline.verdict == "mismatch":
            yield Kind.BASELINE_DEPARTS()
        elif baseline.verdict == "inconclusive":
            yield Kind.BASELINE_OPEN()
        elif baseline.verdict == "matches_distribution":
            yield Kind.BASELINE_FOLLOWS(p_value=baseline.p_value)
        else:
            yield from baseline.reasons
        return
    if verdict != "identical":
        yield from finding.reasons
    if verdict == "mismatch" and not is_greedy:
        yield from _gap(finding)
        if baseline is not None and baseline.verdict == "matches_distribution":
            yield Kind.BASELINE_FOLLOWS(p_value=baseline.p_value)
            yield from _gap(baseline)
        if finding.rule:
            yield Kind.SHOULD_KEEP(rule=finding.rule)


def _gap(finding: Finding) -> Iterator[Reason]:
    """The largest distance and its position; nothing without distances."""
    if (distance := finding.farthest) is not None:
        yield Kind.FARTHEST(
            position=distance.position + 1,
            distance=distance.total_variation,
            floor=distance.floor,
        )
