"""Verdicts from evidence: one finding per pairing, K and temperature; no torch.

The false alarm rate holds for a whole call: all its p-values are adjusted together (Holm).

Speculation on a server is compared with the same server at K = 0. It is also compared with the
target's distribution, if the target's logits were computed and K = 0 follows that distribution: a
fault at K = 0 is not caused by speculation.
"""

import math
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

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
from specbench.verify.two_samples import frequency_p_value, rarity_p_value

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
WITHOUT_SPECULATION = (
    "speculation is not the cause: the server's model, dtype or quantization differs from the "
    "target's here, or it samples with other settings (top-k, penalties, "
    "generation_config.json)"
)

# The fault that a small p-value of each test means.
_TARGET_FAULTS = {
    "temperature": "another temperature fits them better",
    "surprise": "likely and unlikely tokens do not occur as often as they should",
    "identity": "some tokens occur too often",
    "sequence": "a token depends on the previous one in a way the target's does not",
    "joint": "whole texts do not occur as often as they should",
}
_BASELINE_FAULTS = {
    "rarity": "likely and unlikely tokens do not occur as often as in its answers at K = 0",
    "frequency": "some tokens occur more often than in its answers at K = 0",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """The verdict on one pairing at one K and temperature, and its evidence.

    `p_value` is adjusted for all tests of the call; `p_values` are not adjusted.
    """

    subject: Subject
    verdict: Verdict
    reason: str
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

    def only(self, names: Collection[str]) -> "_Tests":
        return self._replace(p_values={n: p for n, p in self.p_values.items() if n in names})

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
                findings.append(_judge_served(each, tests, findings))
            case FailedEvidence():
                findings.append(Finding(subject=each.subject, verdict="failed", reason=each.reason))
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
        by_target = _target_p_values(evidence.scored) if evidence.scored else {}
        return by_target | (_baseline_p_values(evidence.sample) if evidence.sample else {})
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


def _baseline_p_values(sample: BaselineSample) -> dict[str, float]:
    """Tests of a server's outputs against those at K = 0."""
    return {
        "rarity": rarity_p_value(sample.outputs, sample.baseline_outputs),
        "frequency": frequency_p_value(sample.outputs, sample.baseline_outputs),
    }


def _judge_greedy(evidence: GreedyEvidence) -> Finding:
    differing = {divergence.prompt_id for divergence in evidence.divergences}
    not_ties = [d for d in evidence.divergences if not is_tie(d)]
    first = next(iter([*not_ties, *evidence.divergences]), None)
    subject, not_scored_because = evidence.subject, evidence.not_scored_because
    verdict: Verdict
    if evidence.is_baseline and (not_ties or not_scored_because):
        verdict = "matches_baseline"
        reason = "without speculation it departs from the target's best tokens beyond rounding"
        if not_scored_because:
            reason = f"not compared with the target: {not_scored_because}"
    elif first is None:
        verdict, reason = "identical", "every token is the expected one"
    elif not_scored_because:
        verdict, reason = "inconclusive", describe_divergence(first, not_scored_because)
    elif not not_ties:
        verdict = "near_tie"
        most = max(d.steps or 0.0 for d in evidence.divergences)
        reason = (
            f"{len(evidence.divergences)} tokens differ by rounding: they are at most "
            f"{most:.0f} steps{_in_logits(evidence.divergences)} below the target's best"
        )
    else:
        verdict, reason = "mismatch", describe_divergence(first)
    return Finding(
        subject=subject,
        verdict="lossy" if subject.lossy else verdict,
        reason=subject.lossy_words + reason,
        num_tokens=evidence.num_tokens,
        num_prompts=evidence.num_prompts,
        match_rate=1 - len(differing) / evidence.num_prompts,
        first_divergence=first,
        divergences=evidence.divergences,
        not_scored_because=not_scored_because,
        rule=evidence.rule,
    )


def is_tie(divergence: Divergence) -> bool:
    """Whether rounding may have decided between the two tokens."""
    steps, most = divergence.steps, divergence.tie_steps
    return steps is not None and most is not None and steps <= most


def _judge_sampled(evidence: SampledEvidence, tests: _Tests) -> Finding:
    """The verdict on sampled tokens, by the target's distribution."""
    subject, n = evidence.subject, len(evidence.surprise_N)
    tests = tests.only(_TARGET_FAULTS)
    num_others = len(evidence.log_likelihoods) - 1
    control = control_p_value(evidence.colder, num_others)
    verdict: Verdict = "mismatch"
    if evidence.wrongly_ended:
        reason = (
            f"{len(evidence.wrongly_ended)} texts run past their end or stop early, first for "
            f"{evidence.wrongly_ended[0]}"
        )
    elif evidence.num_outside:
        reason = f"{evidence.num_outside} tokens are excluded by top-k and top-p"
    elif tests.is_rejected:
        reason = (
            f"the tokens do not follow the target's distribution: {_TARGET_FAULTS[tests.worst]}"
        )
    elif evidence.num_at_edge > EDGE_SHARE * (n + evidence.num_at_edge):
        verdict = "inconclusive"
        reason = (
            f"{evidence.num_at_edge} of {n + evidence.num_at_edge} tokens are at the cutoff of "
            "top-k or top-p, which rounding decides; verify with --dtype float32, or without them"
        )
    elif control >= tests.level:
        verdict = "inconclusive"
        needed = tokens_for_control(evidence.colder, n, num_others, tests.level)
        reason = (
            f"{n:,} tokens are too few to detect a 20% lower temperature reliably: raise "
            f"--time-budget, or set --num-tokens {math.ceil(needed)}"
            if needed <= MOST_TOKENS
            else "the target is too sure of its tokens for any number of them to show a 20% lower "
            "temperature; raise --temperature"
        )
    else:
        verdict, reason = "matches_distribution", "the tokens follow the target's distribution"
    return Finding(
        subject=subject,
        verdict="lossy" if subject.lossy else verdict,
        reason=subject.lossy_words + reason,
        num_tokens=n,
        p_value=tests.p_value,
        p_values=dict(tests.p_values),
        control_p_value=control,
        detectable=detectable(n, tests.level),
    )


def _judge_served(evidence: ServedEvidence, tests: _Tests, earlier: Sequence[Finding]) -> Finding:
    """The verdict on a server's sampled outputs; `earlier` has the finding for its K = 0."""
    scored = _judge_sampled(evidence.scored, tests) if evidence.scored else None
    sample, distances = evidence.sample, evidence.distances
    if sample is None:
        finding = _judge_served_baseline(evidence, scored)
    else:
        baseline = next(f for f in earlier if f.subject == sample.baseline)
        baseline_tests = tests.only(_BASELINE_FAULTS)
        if scored is not None and baseline.verdict == "matches_distribution":
            finding = _with_baseline_tests(scored, baseline_tests)
        else:
            finding = _judge_by_baseline(evidence.subject, sample, baseline_tests)
            distances = sample.distances
    return replace(
        finding,
        num_tokens=evidence.num_tokens,
        distances=distances,
        not_scored_because=evidence.not_scored_because,
        rule=evidence.rule,
    )


def _judge_served_baseline(evidence: ServedEvidence, scored: Finding | None) -> Finding:
    """The verdict on a server's K = 0, which only the target's distribution can judge."""
    if scored is None:
        reason = f"not tested against the target's distribution: {evidence.not_scored_because}"
        return Finding(subject=evidence.subject, verdict="matches_baseline", reason=reason)
    if scored.verdict == "mismatch":
        return replace(scored, reason=f"{scored.reason}; {WITHOUT_SPECULATION}")
    return scored


def _with_baseline_tests(scored: Finding, tests: _Tests) -> Finding:
    """The verdict by the target's distribution, or a mismatch if outputs differ from K = 0."""
    finding = replace(
        scored,
        p_value=min(scored.p_value or 0.0, tests.p_value),
        p_values={**scored.p_values, **tests.p_values},
    )
    if tests.is_rejected and scored.verdict != "mismatch":
        return replace(finding, verdict="mismatch", reason=_BASELINE_FAULTS[tests.worst])
    return finding


def _judge_by_baseline(subject: Subject, sample: BaselineSample, tests: _Tests) -> Finding:
    """The verdict by the same server at K = 0; the control is K = 0 at a lower temperature."""
    control = rarity_p_value(sample.colder, sample.baseline_outputs)
    verdict: Verdict
    if tests.is_rejected:
        verdict, reason = "mismatch", _BASELINE_FAULTS[tests.worst]
    elif control < tests.level:
        verdict, reason = "matches_baseline", "its answers are like those of its K = 0"
    else:
        verdict = "inconclusive"
        reason = (
            "answers of K = 0 at a 20% lower temperature are not distinguished either; use more "
            "--num-tokens"
        )
    return Finding(
        subject=subject,
        verdict=verdict,
        reason=reason,
        p_value=tests.p_value,
        p_values=dict(tests.p_values),
        control_p_value=control,
    )


def describe_divergence(divergence: Divergence, not_scored_because: str = "") -> str:
    """The position of a divergence, and the distance of its tokens from the target's best, or why
    the target's logits were not computed.
    """
    if not_scored_because:
        return f"{describe_divergence(divergence)}; not scored, because {not_scored_because}"
    is_text = isinstance(divergence.expected, str)
    unit = "character" if is_text else "token"
    position = f"{divergence.prompt_id}, {unit} {divergence.position}"
    if divergence.expected is None:
        return f"{position}: the text runs past its end"
    if divergence.found is None:
        return f"{position}: the text stops early"
    if divergence.steps is None:
        return f"{position}: {divergence.found!r} instead of {divergence.expected!r}"
    return (
        f"{position}: {divergence.found} instead of {divergence.expected}, the worse of them "
        f"{_distance(divergence)} below the target's best"
    )


def _distance(divergence: Divergence) -> str:
    """`0.53 in logits (a token 0.59 times as likely; 500 rounding steps, 8 make a tie)`."""
    steps = f"{divergence.steps:.0f} rounding steps"
    tie = f"{divergence.tie_steps:.0f} make a tie"
    if divergence.below is None:
        return f"{steps} ({tie})"
    ratio = math.exp(-divergence.below)
    return f"{divergence.below:.2g} in logits ({ratio:.2g} times as likely; {steps}, {tie})"


def _in_logits(divergences: Sequence[Divergence]) -> str:
    """The largest distance of a token from the target's best, in logits."""
    below = max((d.below for d in divergences if d.below is not None), default=None)
    return "" if below is None else f" ({below:.2g} in logits)"
