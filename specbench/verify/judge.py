"""Verdicts from evidence: one finding per pairing, K and temperature; no torch.

The false alarm rate holds for a whole call: all its p-values are adjusted together (Holm).

Speculation on a server is compared with the same server at K = 0, and only K = 0 with the target's
distribution: a fault at K = 0 is not caused by speculation.
"""

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from specbench.records import Kind, Reason
from specbench.records.reasons import Figure
from specbench.stats.multiple_testing import holm
from specbench.verify.evidence import (
    BaselineSample,
    Distance,
    Divergence,
    Evidence,
    FailedEvidence,
    GreedyEvidence,
    SampledEvidence,
    ServedEvidence,
    Subject,
)
from specbench.verify.statistics import (
    Detectable,
    control_p_value,
    detectable,
    joint_p_value,
    serial_p_value,
    tail_p_value,
    temperature_p_value,
    tokens_for_control,
    uniform_p_value,
)
from specbench.verify.two_samples import two_sample_p_value

Verdict = Literal[
    "identical",
    "near_tie",
    "matches_distribution",
    "matches_baseline",
    "mismatch",
    "lossy",
    "inconclusive",
    "failed",
]

FALSE_ALARM = 1e-3
EDGE_SHARE = 0.05  # if rounding decides the cut of a larger share of tokens, the test is undecided
NUM_TESTS = 4  # per cell, without `joint`, which is only for small vocabularies
MOST_TOKENS, _STEP = 10**8, 1024

# The fault that a small p-value of each test means.
_FAULTS = {
    "temperature": Kind.OTHER_TEMPERATURE,
    "surprise": Kind.OTHER_FREQUENCIES,
    "identity": Kind.TOO_OFTEN,
    "sequence": Kind.DEPENDENT,
    "joint": Kind.OTHER_TEXTS,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """The verdict on one pairing at one K and temperature, and its evidence.

    `p_value` is adjusted for all tests of the call; `p_values` are not adjusted.
    """

    subject: Subject
    verdict: Verdict
    reasons: tuple[Reason, ...]
    num_tokens: int = 0
    num_prompts: int | None = None
    match_rate: float | None = None
    first_divergence: Divergence | None = None
    p_value: float | None = None
    p_values: Mapping[str, float] = field(default_factory=dict)
    control_p_value: float | None = None
    detectable: Detectable | None = None
    divergences: tuple[Divergence, ...] = ()
    distances: tuple[Distance, ...] = ()
    not_scored_because: str = ""  # why the target's logits were not computed
    rule: str | None = None  # by which a serving engine accepts draft tokens

    @property
    def lossless(self) -> bool | None:
        """Whether the output matches the target's; None if there is not enough evidence."""
        if self.verdict in ("inconclusive", "failed"):
            return None
        return self.verdict not in ("mismatch", "lossy")

    @property
    def farthest(self) -> Distance | None:
        """The largest distance from the expected distribution in excess of chance; None without
        distances."""
        return max(self.distances, key=lambda d: d.total_variation - d.floor, default=None)


class _Tests(NamedTuple):
    """The p-values of one piece of evidence, by the name of the test."""

    p_values: Mapping[str, float]
    adjusted: Mapping[str, float]  # for all tests of the call
    false_alarm: float
    level: float  # the bound on the smallest p-value of the call, not adjusted

    @property
    def worst(self) -> str:
        """The name of the test with the smallest p-value."""
        return min(self.p_values, key=lambda name: self.p_values[name])

    @property
    def p_value(self) -> float:
        """The smallest p-value, adjusted."""
        return self.adjusted[self.worst]

    @property
    def is_rejected(self) -> bool:
        return self.p_value < self.false_alarm


def judge(evidence: Sequence[Evidence], false_alarm: float = FALSE_ALARM) -> tuple[Finding, ...]:
    """One finding per piece of evidence, in the same order."""
    p_values = [_p_values(each) for each in evidence]
    all_p_values = [p for named in p_values for p in named.values()]
    adjusted = iter(holm(all_p_values))
    level = false_alarm / max(len(all_p_values), 1)  # required for the first rejection
    findings: list[Finding] = []
    for each, named in zip(evidence, p_values, strict=True):
        tests = _Tests(named, {name: next(adjusted) for name in named}, false_alarm, level)
        match each:
            case GreedyEvidence():
                findings.append(_judge_greedy(each))
            case SampledEvidence():
                findings.append(_judge_sampled(each, tests))
            case ServedEvidence():
                findings.append(_judge_served(each, tests))
            case FailedEvidence():
                failed = (Kind.COULD_NOT_RUN(error=each.reason),)
                findings.append(Finding(subject=each.subject, verdict="failed", reasons=failed))
    return tuple(findings)


def power_of_call(num_tokens: int, num_sampled: int) -> Detectable:
    """The deviation that a call over `num_sampled` sampled cells detects in each of them."""
    return detectable(num_tokens, level_of_call(num_sampled))


def level_of_call(num_sampled: int) -> float:
    """The bound on the smallest p-value of a call over `num_sampled` sampled cells."""
    return FALSE_ALARM / max(NUM_TESTS * num_sampled, 1)


def tokens_for(precision: float, num_sampled: int) -> int:
    """The fewest tokens per cell, in steps of 1,024 and at most MOST_TOKENS, that detect a fault in
    80% of calls. `precision` is the share of tokens that the fault displaces.
    """
    return _STEP * bisect_left(
        range(MOST_TOKENS // _STEP),
        True,
        lo=1,
        key=lambda n: power_of_call(_STEP * n, num_sampled).shift <= precision,
    )


def _p_values(evidence: Evidence) -> dict[str, float]:
    """Unadjusted p-values by test."""
    if isinstance(evidence, SampledEvidence):
        return _target_p_values(evidence)
    if isinstance(evidence, ServedEvidence):
        if (sample := evidence.sample) is not None:
            return {"two_sample": two_sample_p_value(sample.outputs, sample.baseline_outputs)}
        return _target_p_values(evidence.scored) if evidence.scored else {}
    return {}


def _target_p_values(evidence: SampledEvidence) -> dict[str, float]:
    """Tests of sampled tokens against the target's distribution."""
    if len(evidence.surprise_N) < 2:  # all others had probability 0, which the reason reports
        return {"surprise": 1.0}
    p_values = {
        "temperature": temperature_p_value(evidence.log_likelihoods),
        "surprise": tail_p_value(evidence.surprise_N),
        "identity": uniform_p_value(evidence.identity_N),
        "sequence": serial_p_value(evidence.identity_N),
    }
    if evidence.joint is not None:
        p_values["joint"] = joint_p_value(evidence.joint)
    return p_values


def _judge_greedy(evidence: GreedyEvidence) -> Finding:
    differing = {divergence.prompt_id for divergence in evidence.divergences}
    not_ties = [d for d in evidence.divergences if not is_tie(d)]
    first = next(iter([*not_ties, *evidence.divergences]), None)
    subject, not_scored_because = evidence.subject, evidence.not_scored_because
    verdict: Verdict
    reasons: tuple[Reason, ...]
    if evidence.is_baseline and (not_ties or not_scored_because):
        verdict, reasons = "matches_baseline", (Kind.DEPARTS_ALONE(),)
        if not_scored_because:
            reasons = (Kind.NOT_COMPARED(because=not_scored_because),)
    elif first is None:
        verdict, reasons = "identical", (Kind.EVERY_TOKEN(),)
    elif not_scored_because:
        verdict, reasons = "inconclusive", describe_divergence(first, not_scored_because)
    elif not not_ties:
        verdict = "near_tie"
        below = [d.below for d in evidence.divergences if d.below is not None]
        ties = Kind.TIES(
            tokens=len(evidence.divergences),
            steps=max(d.steps or 0.0 for d in evidence.divergences),
            below=max(below, default=None),
        )
        reasons = (ties,)
    else:
        verdict, reasons = "mismatch", describe_divergence(first)
    return Finding(
        subject=subject,
        verdict="lossy" if subject.lossy else verdict,
        reasons=(*_lossy(subject), *reasons),
        num_tokens=evidence.num_tokens,
        num_prompts=evidence.num_prompts,
        match_rate=1 - len(differing) / evidence.num_prompts,
        first_divergence=first,
        divergences=evidence.divergences,
        not_scored_because=not_scored_because,
        rule=evidence.rule,
    )


def _lossy(subject: Subject) -> Iterator[Reason]:
    if subject.lossy:
        yield Kind.LOSSY_RULE(rule=subject.lossy)


def is_tie(divergence: Divergence) -> bool:
    """Whether rounding may have decided between the two tokens."""
    steps, most = divergence.steps, divergence.tie_steps
    return steps is not None and most is not None and steps <= most


def _judge_sampled(evidence: SampledEvidence, tests: _Tests) -> Finding:
    """The verdict on sampled tokens, by the target's distribution."""
    subject, n = evidence.subject, len(evidence.surprise_N)
    num_others = len(evidence.log_likelihoods) - 1
    control = control_p_value(evidence.colder, num_others)
    verdict: Verdict = "mismatch"
    if evidence.wrongly_ended:
        reason = Kind.WRONG_ENDS(
            count=len(evidence.wrongly_ended), prompt=evidence.wrongly_ended[0]
        )
    elif evidence.num_outside:
        reason = Kind.OUTSIDE(count=evidence.num_outside)
    elif tests.is_rejected:
        reason = _FAULTS[tests.worst]()
    elif evidence.num_at_edge > EDGE_SHARE * (n + evidence.num_at_edge):
        verdict = "inconclusive"
        reason = Kind.AT_EDGE(at_edge=evidence.num_at_edge, tokens=n + evidence.num_at_edge)
    elif control >= tests.level:
        verdict = "inconclusive"
        needed = tokens_for_control(evidence.colder, n, num_others, tests.level)
        reason = Kind.TOO_SURE()
        if needed <= MOST_TOKENS:
            reason = Kind.TOO_FEW_TOKENS(tokens=n, needed=math.ceil(needed))
    else:
        verdict, reason = "matches_distribution", Kind.FOLLOWS()
    return Finding(
        subject=subject,
        verdict="lossy" if subject.lossy else verdict,
        reasons=(*_lossy(subject), reason),
        num_tokens=n,
        p_value=tests.p_value,
        p_values=dict(tests.p_values),
        control_p_value=control,
        detectable=detectable(n, tests.level),
    )


def _judge_served(evidence: ServedEvidence, tests: _Tests) -> Finding:
    """The verdict on a server's sampled outputs."""
    if evidence.sample is not None:
        finding = _judge_by_baseline(evidence.subject, evidence.sample, tests)
    elif evidence.scored is None:
        reasons = (Kind.NOT_TESTED(because=evidence.not_scored_because),)
        finding = Finding(subject=evidence.subject, verdict="matches_baseline", reasons=reasons)
    else:
        finding = _judge_sampled(evidence.scored, tests)
        if finding.verdict == "mismatch":
            finding = replace(finding, reasons=(*finding.reasons, Kind.NOT_SPECULATION()))
    return replace(
        finding,
        num_tokens=evidence.num_tokens,
        distances=evidence.distances,
        not_scored_because=evidence.not_scored_because,
        rule=evidence.rule,
    )


def _judge_by_baseline(subject: Subject, sample: BaselineSample, tests: _Tests) -> Finding:
    """The verdict by the same server at K = 0; the control is K = 0 at a lower temperature."""
    control = two_sample_p_value(sample.colder, sample.baseline_outputs)
    verdict: Verdict
    if tests.is_rejected:
        verdict, reason = "mismatch", Kind.FREQUENCY_DIFFERS()
    elif control < tests.level:
        verdict, reason = "matches_baseline", Kind.LIKE_BASELINE()
    else:
        verdict, reason = "inconclusive", Kind.CONTROL_FAILED()
    return Finding(
        subject=subject,
        verdict=verdict,
        reasons=(reason,),
        p_value=tests.p_value,
        p_values=dict(tests.p_values),
        control_p_value=control,
    )


def describe_divergence(divergence: Divergence, not_scored_because: str = "") -> tuple[Reason, ...]:
    """The position of a divergence, and the distance of its tokens from the target's best, or why
    the target's logits were not computed.
    """
    is_text = str in (type(divergence.expected), type(divergence.found))
    place: dict[str, Figure] = {
        "prompt": divergence.prompt_id,
        "unit": "character" if is_text else "token",
        "position": divergence.position,
    }
    if divergence.expected is None:
        reason = Kind.RUNS_PAST(**place)
    elif divergence.found is None:
        reason = Kind.STOPS_EARLY(**place)
    else:
        distance = (divergence.steps, divergence.tie_steps, divergence.below)
        reason = Kind.DIVERGES(
            **place,
            found=divergence.found,
            expected=divergence.expected,
            how_far=None if divergence.steps is None else distance,
        )
    return (reason, *([Kind.NOT_SCORED(because=not_scored_because)] if not_scored_because else []))
