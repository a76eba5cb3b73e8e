"""Findings in words and as a document; no torch."""

import itertools
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from specbench.exit_code import ExitCode
from specbench.settings import SERVED
from specbench.verify.answer_served import served_sentences
from specbench.verify.finding import Finding
from specbench.verify.judge import FALSE_ALARM

SCHEMA_VERSION = 1


def exit_code(findings: Sequence[Finding]) -> int:
    """The gravest of all findings, as everywhere in specbench."""
    if any(finding.lossless is False for finding in findings):
        return ExitCode.FAILED
    verdicts = {finding.verdict for finding in findings}
    if "failed" in verdicts:
        return ExitCode.INCOMPLETE
    return ExitCode.INCONCLUSIVE if "inconclusive" in verdicts else ExitCode.GOOD


def document(findings: Sequence[Finding]) -> dict[str, Any]:
    """All of a call; docs/json.md explains every key."""
    return {
        "schema_version": SCHEMA_VERSION,
        "lossless": {0: True, 1: False}.get(exit_code(findings)),
        "false_alarm": FALSE_ALARM,
        "num_tests": _num_tests(findings),
        "results": [result(finding) for finding in findings],
        "sentences": sentences(findings),
    }


def false_alarm_note(findings: Sequence[Finding]) -> str:
    """What the p-values mean; empty where there are none."""
    num_tests = _num_tests(findings)
    if not num_tests:
        return ""
    return (
        f"p is adjusted for the {num_tests} tests of this call (Holm): below {FALSE_ALARM:g} is "
        f"a fault; a sound engine triggers it in {FALSE_ALARM:.1%} of calls."
    )


def _num_tests(findings: Sequence[Finding]) -> int:
    return sum(len(finding.p_values) for finding in findings)


def result(finding: Finding) -> dict[str, Any]:
    """A finding as an entry of `results`."""
    subject, first, power = finding.subject, finding.first_divergence, finding.detectable
    return {
        "pairing": subject.pairing,
        "engine": subject.engine,
        "method": subject.method,
        "num_speculative_tokens": subject.num_speculative_tokens,
        "temperature": subject.temperature,
        "lossless": finding.lossless,
        "verdict": finding.verdict,
        "reason": finding.reason,
        "lossy": subject.lossy,
        "match_rate": finding.match_rate,
        "first_divergence": None if first is None else asdict(first),
        "p_value": finding.p_value,
        "p_values": dict(finding.p_values),
        "control_p_value": finding.control_p_value,
        "detectable_deviation": None if power is None else power.shift,
        "detectable_tail": None if power is None else power.tail,
        "num_prompts": finding.num_prompts,
        "num_tokens": finding.num_tokens,
        "divergences": [asdict(each) for each in finding.divergences],
        "distances": [asdict(each) for each in finding.distances],
        "not_looked_at": finding.unseen or None,
        "acceptance_rule": finding.rule,
    }


def sentences(findings: Sequence[Finding]) -> list[str]:
    """One a pairing, and one for K = 0 of its target where that is not sound; of serving engines
    one for each K."""
    served = [finding for finding in findings if finding.subject.engine in SERVED]
    findings = [finding for finding in findings if finding.subject.engine not in SERVED]
    told = served_sentences(served)
    for pairing, group in itertools.groupby(findings, lambda f: f.subject.pairing):
        own = list(group)
        is_baseline = all(f.subject.num_speculative_tokens == 0 for f in own)
        if is_baseline and all(f.lossless for f in own) and len(own) < len(findings):
            continue
        told.append(f"{pairing}{' at K = 0' if is_baseline else ''}: {_sentence(own)}")
    return told


def _sentence(findings: Sequence[Finding]) -> str:
    for verdict, says in (
        ("mismatch", "NOT lossless"),
        ("lossy", "lossy by choice"),
        ("failed", "not verified"),
        ("inconclusive", "undecided"),
    ):
        worst = next((f for f in findings if f.verdict == verdict), None)
        if worst is not None and verdict == "lossy":
            return f"{says}: {_at_every_temperature(findings)}."
        if worst is not None:
            return f"{says}: {_setting(worst)}: {worst.reason}{_p(worst)}."
    return f"lossless: {'; '.join(filter(None, (_greedy(findings), _sampled(findings))))}."


def _at_every_temperature(findings: Sequence[Finding]) -> str:
    """What was found of a lossy pairing; of several K the plainest at each temperature."""
    told: list[str] = []
    by_temperature: dict[float, list[Finding]] = {}
    for finding in findings:
        by_temperature.setdefault(finding.subject.temperature, []).append(finding)
    for found in by_temperature.values():
        worst = min(
            found, key=lambda f: (f.match_rate or 0.0, 1.0 if f.p_value is None else f.p_value)
        )
        reason = worst.reason.removeprefix(worst.subject.lossy_words) if told else worst.reason
        told.append(f"{_setting(worst)}: {reason}{_share(worst)}{_p(worst)}")
    return "; ".join(told)


def _share(finding: Finding) -> str:
    if finding.match_rate is None or finding.num_prompts is None:
        return ""
    same = round(finding.match_rate * finding.num_prompts)
    return f" ({same} of {finding.num_prompts} answers are those of K = 0)"


def _greedy(findings: Sequence[Finding]) -> str:
    greedy = [f for f in findings if f.match_rate is not None]
    if not greedy:
        return ""
    num_prompts = sum(f.num_prompts or 0 for f in greedy)
    matching = sum(round((f.match_rate or 0) * (f.num_prompts or 0)) for f in greedy)
    ties = " (the others differ at ties)" if matching < num_prompts else ""
    right = "the target's best" if _is_baseline(greedy[0]) else "that of K = 0"
    return f"greedy text is {right} in {matching} of {num_prompts} answers{ties}"


def _sampled(findings: Sequence[Finding]) -> str:
    sampled = [f for f in findings if f.detectable is not None and f.p_value is not None]
    if not sampled:
        return ""
    least = min(sampled, key=lambda f: f.p_value or 0.0)
    weakest = max((f.detectable for f in sampled if f.detectable), key=lambda d: d.shift)
    num_tokens = sum(f.num_tokens for f in sampled)
    return (
        f"{num_tokens:,} sampled tokens follow the target's distribution{_p(least)}: "
        f"80 % power to detect {weakest.shift:.1%} of tokens shifted, or {weakest.tail:.2%} "
        "moved to "
        "the least likely 0.1 %"
    )


def _p(finding: Finding) -> str:
    return "" if finding.p_value is None else f" (p = {finding.p_value:.2g})"


def _setting(finding: Finding) -> str:
    subject = finding.subject
    method = (
        "" if _is_baseline(finding) else f" {subject.method} K={subject.num_speculative_tokens}"
    )
    return f"{subject.engine}{method} at T={subject.temperature:g}"


def _is_baseline(finding: Finding) -> bool:
    return finding.subject.num_speculative_tokens == 0
