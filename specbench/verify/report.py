"""Findings as sentences and as a JSON document; no torch.

The built-in decoder and transformers have one sentence per pairing, and one about K = 0 of a
target that failed. Serving engines have one sentence per pairing and K.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Literal, get_type_hints

from specbench.doc import JsonObject, Key, Several, docs_of
from specbench.errors import ExitCode
from specbench.records import Kind
from specbench.records.keys import FlatKey
from specbench.settings import SERVED
from specbench.verify.evidence import Distance, Divergence, Subject
from specbench.verify.judge import FALSE_ALARM, Finding, Verdict, describe_divergence, is_tie
from specbench.words.answers import REASON, joined

SCHEMA_VERSION = 1
LEAST_P = 1e-99  # a smaller p-value is shown as less than this

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
        f"a fault; a sound engine triggers it in {FALSE_ALARM:.1%} of calls."
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
        "sentences": Key(
            list[str],
            "one per pairing; for a serving engine one per pairing and K, K = 0 included",
            lambda findings: sentences(findings),
        ),
    },
)


def document(findings: Sequence[Finding]) -> dict[str, Any]:
    """The JSON document of a call; docs/json.md explains every key."""
    return DOCUMENT.of(findings)


def result(finding: Finding) -> dict[str, Any]:
    """A finding as an entry of `results`."""
    return _RESULT.of(finding)


def sentences(findings: Sequence[Finding]) -> list[str]:
    """The sentences of serving engines, then of the engines in this process."""
    served = [finding for finding in findings if finding.subject.engine in SERVED]
    findings = [finding for finding in findings if finding.subject.engine not in SERVED]
    lines = _served_sentences(served)
    for pairing, grouped in itertools.groupby(findings, lambda f: f.subject.pairing):
        group = list(grouped)
        is_baseline = all(map(_is_baseline, group))
        if is_baseline and all(f.lossless for f in group) and len(group) < len(findings):
            continue
        lines.append(f"{pairing}{' at K=0' if is_baseline else ''}: {_sentence(group)}")
    return lines


def _worst(findings: Sequence[Finding]) -> Finding | None:
    """The first finding with the most severe verdict in _WORDS; None if all are lossless."""
    by_verdict = {finding.verdict: finding for finding in reversed(findings)}
    return next((by_verdict[verdict] for verdict in _WORDS if verdict in by_verdict), None)


def _sentence(findings: Sequence[Finding]) -> str:
    """The sentence about a pairing of an engine in this process, without the pairing's name."""
    worst = _worst(findings)
    if worst is None:
        return f"lossless: {'; '.join(filter(None, (_greedy(findings), _sampled(findings))))}."
    words = _WORDS[worst.verdict]
    if worst.verdict == "lossy":
        return f"{words}: {_at_every_temperature(findings)}."
    return f"{words}: {_setting(worst)}: {joined(worst.reasons)}{_in_brackets(worst)}."


def _at_every_temperature(findings: Sequence[Finding]) -> str:
    """The reason of a lossy pairing at each temperature, for the K that differs most."""
    texts: list[str] = []
    by_temperature: dict[float, list[Finding]] = {}
    for finding in findings:
        by_temperature.setdefault(finding.subject.temperature, []).append(finding)
    for group in by_temperature.values():
        worst = min(
            group, key=lambda f: (f.match_rate or 0.0, 1.0 if f.p_value is None else f.p_value)
        )
        told = joined(r for r in worst.reasons if not (texts and r.kind is Kind.LOSSY_RULE))
        texts.append(f"{_setting(worst)}: {told}{_share(worst)}{_in_brackets(worst)}")
    return "; ".join(texts)


def _share(finding: Finding) -> str:
    if finding.match_rate is None or finding.num_prompts is None:
        return ""
    return f" ({_num_matching(finding)} of {finding.num_prompts} answers are those of K=0)"


def _num_matching(finding: Finding) -> int:
    """The number of greedy texts that equal the expected ones."""
    return round((finding.match_rate or 0.0) * (finding.num_prompts or 0))


def _greedy(findings: Sequence[Finding]) -> str:
    greedy = [f for f in findings if f.match_rate is not None]
    if not greedy:
        return ""
    num_prompts = sum(f.num_prompts or 0 for f in greedy)
    matching = sum(map(_num_matching, greedy))
    ties = " (the others differ at ties)" if matching < num_prompts else ""
    return f"{_greedy_text(greedy[0])} in {matching} of {num_prompts} answers{ties}"


def _greedy_text(finding: Finding) -> str:
    right = "the target's best tokens" if _is_baseline(finding) else "that of K=0"
    return f"greedy text equals {right}"


def _sampled(findings: Sequence[Finding]) -> str:
    sampled = [f for f in findings if f.detectable is not None and f.p_value is not None]
    if not sampled:
        return ""
    least = min(sampled, key=lambda f: f.p_value or 0.0)
    weakest = max((f.detectable for f in sampled if f.detectable), key=lambda d: d.shift)
    num_tokens = sum(f.num_tokens for f in sampled)
    return (
        f"{num_tokens:,} sampled tokens follow the target's distribution{_in_brackets(least)}: "
        f"80% power to detect {weakest.shift:.1%} of tokens shifted, or {weakest.tail:.2%} "
        "moved to the least likely 0.1%"
    )


def _setting(finding: Finding) -> str:
    subject = finding.subject
    method = (
        "" if _is_baseline(finding) else f" {subject.method} K={subject.num_speculative_tokens}"
    )
    return f"{subject.engine}{method} at T={subject.temperature:g}"


def _is_baseline(finding: Finding) -> bool:
    return finding.subject.num_speculative_tokens == 0


def _in_brackets(finding: Finding) -> str:
    return "" if finding.p_value is None else f" ({_p(finding)})"


def _p(finding: Finding) -> str:
    p = finding.p_value
    assert p is not None
    return f"p < {LEAST_P:.0g}" if p < LEAST_P else f"p = {p:.2g}"


def divergence_lines(findings: Sequence[Finding]) -> list[str]:
    """The divergences of a server's greedy texts from those at K = 0, each with its cause."""
    return [
        f"{_served_subject(finding)}: "
        f"{joined(describe_divergence(divergence, finding.not_scored_because))}"
        f"{'' if finding.not_scored_because else _cause(divergence)}"
        for finding in findings
        if not _is_baseline(finding)
        for divergence in finding.divergences
    ]


def _cause(divergence: Divergence) -> str:
    return ": a near-tie" if is_tie(divergence) else ": rounding does not explain it"


def _served_sentences(findings: Sequence[Finding]) -> list[str]:
    groups: dict[tuple[str, str, int], list[Finding]] = {}
    for finding in findings:
        subject = finding.subject
        key = (subject.pairing, subject.engine, subject.num_speculative_tokens)
        groups.setdefault(key, []).append(finding)
    return [_served_sentence(group, findings) for group in groups.values()]


def _served_sentence(group: Sequence[Finding], findings: Sequence[Finding]) -> str:
    worst = _worst(group)
    verdict = worst.verdict if worst else ""
    if _is_baseline(group[0]):
        words = _WORDS_OF_SERVER_BASELINE.get(verdict, "sound")
    else:
        words = _WORDS.get(verdict, "lossless")
    ordered = sorted(group, key=lambda finding: finding.verdict != verdict)
    clauses = (_clause(finding, _baseline_of(finding, findings)) for finding in ordered)
    return f"{_served_subject(group[0])}: {words}: {'; '.join(clauses)}."


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


def _clause(finding: Finding, baseline: Finding | None) -> str:
    temperature = f"at T={finding.subject.temperature:g}"
    if finding.verdict == "failed":
        return f"{temperature} {joined(finding.reasons)}"
    if finding.match_rate is not None:
        return _served_greedy(finding)
    return f"{temperature} {_served_sampled(finding, baseline)}"


def _served_greedy(finding: Finding) -> str:
    if finding.verdict == "matches_baseline":
        return f"its greedy text is what the others are compared with ({joined(finding.reasons)})"
    matching, num = _num_matching(finding), finding.num_prompts or 0
    text = f"{_greedy_text(finding)} in {matching} of {num} answers"
    if finding.verdict == "near_tie":
        return f"{text}, and in the others {joined(finding.reasons)}"
    return text if finding.verdict == "identical" else f"{text}; {joined(finding.reasons)}"


def _served_sampled(finding: Finding, baseline: Finding | None) -> str:
    num = f"{finding.num_tokens:,} sampled tokens"
    if finding.verdict == "matches_distribution":
        power = finding.detectable
        detects = f"; 80% power to detect {power.shift:.1%} of them shifted" if power else ""
        return f"{num} follow the target's distribution ({_p(finding)}{detects})"
    if finding.verdict == "matches_baseline" and baseline is not None:
        remark = joined(baseline.reasons)
        if baseline.verdict == "mismatch":
            remark = "which does not follow the target's distribution, with or without speculation"
        elif baseline.verdict == "inconclusive":
            remark = "and K=0 is undecided"
        return f"{num} are like those of K=0 ({_p(finding)}), {remark}"
    if finding.verdict == "mismatch":
        found = f"{joined(finding.reasons)} ({_p(finding)}{_gap(finding)})"
        return joined((found, *_context(finding, baseline)))
    return joined(finding.reasons)


def _context(finding: Finding, baseline: Finding | None) -> Iterator[str]:
    """Facts that help to find the cause of a mismatch."""
    if baseline is not None and baseline.verdict == "matches_distribution":
        yield f"K=0 of the same server follows it ({_p(baseline)}{_gap(baseline)})"
    if finding.rule:
        yield f"the rule by which it should accept drafts keeps the distribution: {finding.rule}"


def _gap(finding: Finding) -> str:
    """The largest distance and its position; empty without distances."""
    distance = finding.farthest
    if distance is None:
        return ""
    return (
        f"; farthest at token {distance.position + 1}: total variation "
        f"{distance.total_variation:.3f}, and {distance.floor:.3f} by chance"
    )
