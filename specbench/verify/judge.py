"""What follows from the evidence: one verdict a pairing, K and temperature; no torch.

The false alarm rate is that of a whole call: all its p-values are adjusted together (Holm).
"""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence

from specbench.stats.multiple_testing import holm
from specbench.verify.evidence import (
    Divergence,
    Evidence,
    FailedEvidence,
    GreedyEvidence,
    SampledEvidence,
    ServedEvidence,
)
from specbench.verify.finding import Finding, Verdict
from specbench.verify.judge_served import beside_p_values, judge_served
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

FALSE_ALARM = 1e-3
EDGE_SHARE = 0.05  # of the tokens: with more where rounding decides on a cut, nothing is shown
NUM_TESTS = 4  # of a cell's tokens; `joint` comes with small vocabularies alone
MOST_TOKENS, _STEP = 10**8, 1024


def judge(evidence: Sequence[Evidence], false_alarm: float = FALSE_ALARM) -> tuple[Finding, ...]:
    """One finding a piece of evidence, in its order."""
    tests = [_tests(each) for each in evidence]
    pooled = [p for named in tests for p in named.values()]
    adjusted = iter(holm(pooled))
    level = false_alarm / max(len(pooled), 1)  # what the first rejection needs
    findings: list[Finding] = []
    for each, named in zip(evidence, tests, strict=True):
        own = {name: next(adjusted) for name in named}
        match each:
            case GreedyEvidence():
                finding = _judge_greedy(each)
            case SampledEvidence():
                finding = _judge_sampled(each, named, own, level, false_alarm)
            case ServedEvidence():
                finding = judge_served(
                    each,
                    _judge_sampled(each.along, named, own, level, false_alarm)
                    if each.along
                    else None,
                    next(finding for finding in findings if finding.subject == each.beside.own)
                    if each.beside
                    else None,
                    named,
                    own,
                    level=level,
                    false_alarm=false_alarm,
                )
            case FailedEvidence():
                finding = Finding(subject=each.subject, verdict="failed", reason=each.reason)
        findings.append(finding)
    return tuple(findings)


def power_of_call(num_tokens: int, num_sampled: int) -> Detectable:
    """What a call over so many sampled cells will be able to find in each of them."""
    return detectable(num_tokens, level_of_call(num_sampled))


def level_of_call(num_sampled: int) -> float:
    """What the smallest p-value of a call over so many sampled cells must be below."""
    return FALSE_ALARM / max(NUM_TESTS * num_sampled, 1)


def tokens_for(precision: float, num_sampled: int) -> int:
    """The fewest tokens of each cell, in steps of 1,024, for which a fault that displaces so large
    a share of them is found in 80 % of calls; MOST_TOKENS where more would be needed.
    """
    return _STEP * bisect_left(
        range(MOST_TOKENS // _STEP),
        True,
        lo=1,
        key=lambda n: power_of_call(_STEP * n, num_sampled).shift <= precision,
    )


def _tests(evidence: Evidence) -> dict[str, float]:
    """p-values by test, as they come."""
    if isinstance(evidence, SampledEvidence):
        return _p_values(evidence)
    if isinstance(evidence, ServedEvidence):
        along = _p_values(evidence.along) if evidence.along else {}
        return along | (beside_p_values(evidence.beside) if evidence.beside else {})
    return {}


def _p_values(evidence: SampledEvidence) -> dict[str, float]:
    if len(evidence.surprise_N) < 2:  # all others had probability 0, which is said instead
        return {"surprise": 1.0}
    found = {
        "temperature": temperature_p_value(evidence.log_likelihoods),
        "surprise": tail_p_value(evidence.surprise_N),
        "identity": uniform_p_value(evidence.identity_N),
        "sequence": serial_p_value(evidence.identity_N),
    }
    if evidence.joint is not None:
        found["joint"] = joint_p_value(evidence.joint)
    return found


def _judge_greedy(evidence: GreedyEvidence) -> Finding:
    differing = {divergence.prompt_id for divergence in evidence.divergences}
    wrong = [d for d in evidence.divergences if not is_tie(d)]
    first = next(iter([*wrong, *evidence.divergences]), None)
    subject = evidence.subject
    verdict: Verdict
    if evidence.is_own and (wrong or evidence.unseen):
        verdict = "matches_baseline"
        reason = "without speculation it departs from the target's best tokens beyond rounding"
        reason = f"not held to the target: {evidence.unseen}" if evidence.unseen else reason
    elif first is None:
        verdict, reason = "identical", "every token is the expected one"
    elif evidence.unseen:
        verdict = "inconclusive"
        reason = f"{told(first)}; not looked at, because {evidence.unseen}"
    elif not wrong:
        verdict = "near_tie"
        worst = max(d.steps or 0.0 for d in evidence.divergences)
        reason = (
            f"{len(evidence.divergences)} tokens differ where rounding decides: they are at most "
            f"{worst:.0f} steps{_in_logits(evidence.divergences)} below the target's best"
        )
    else:
        verdict, reason = "mismatch", told(first)
    return Finding(
        subject=subject,
        verdict="lossy" if subject.lossy else verdict,
        reason=subject.lossy_words + reason,
        num_tokens=evidence.num_tokens,
        num_prompts=evidence.num_prompts,
        match_rate=1 - len(differing) / evidence.num_prompts,
        first_divergence=first,
        divergences=evidence.divergences,
        unseen=evidence.unseen,
        rule=evidence.rule,
    )


def is_tie(divergence: Divergence) -> bool:
    """True where rounding may have decided between the two tokens."""
    steps, most = divergence.steps, divergence.tie_steps
    return steps is not None and most is not None and steps <= most


def _judge_sampled(
    evidence: SampledEvidence,
    tests: Mapping[str, float],
    adjusted: Mapping[str, float],
    level: float,
    false_alarm: float,
) -> Finding:
    """`tests` may hold those of other evidence, too."""
    subject, n = evidence.subject, len(evidence.surprise_N)
    named = {name: p for name, p in tests.items() if name in _SEEN_BY}
    p_value = min(adjusted[name] for name in named)
    num_others = len(evidence.log_likelihoods) - 1
    control = control_p_value(evidence.colder, num_others)
    verdict: Verdict = "mismatch"
    if evidence.misshapen:
        reason = (
            f"{len(evidence.misshapen)} texts run past their end or stop early, first for "
            f"{evidence.misshapen[0]}"
        )
    elif evidence.num_outside:
        reason = f"{evidence.num_outside} tokens are excluded by top-k and top-p"
    elif p_value < false_alarm:
        worst = min(named, key=lambda name: named[name])
        reason = f"the tokens do not follow the target's distribution: {_SEEN_BY[worst]}"
    elif evidence.num_at_edge > EDGE_SHARE * (n + evidence.num_at_edge):
        verdict = "inconclusive"
        reason = (
            f"{evidence.num_at_edge} of {n + evidence.num_at_edge} tokens lie where rounding "
            "decides what top-k and top-p exclude; verify with --dtype float32, or without them"
        )
    elif control >= level:
        verdict = "inconclusive"
        needed = tokens_for_control(evidence.colder, n, num_others, level)
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
        p_value=p_value,
        p_values=dict(named),
        control_p_value=control,
        detectable=detectable(n, level),
    )


_SEEN_BY = {
    "temperature": "another temperature fits them better",
    "surprise": "likely and unlikely tokens do not occur as often as they should",
    "identity": "some tokens occur too often",
    "sequence": "a token depends on the previous one in a way the target's does not",
    "joint": "whole texts do not occur as often as they should",
}


def _in_logits(divergences: Sequence[Divergence]) -> str:
    """The largest distance of a token from the target's best, in logits."""
    below = max((d.below for d in divergences if d.below is not None), default=None)
    return "" if below is None else f" ({below:.2g} in logits)"


def told(divergence: Divergence) -> str:
    """Where it is, and how far the tokens are from the target's best."""
    is_text = isinstance(divergence.expected, str)
    unit = "character" if is_text else "token"
    place = f"{divergence.prompt_id}, {unit} {divergence.position}"
    if divergence.expected is None:
        return f"{place}: the text runs past its end"
    if divergence.found is None:
        return f"{place}: the text stops early"
    if divergence.steps is None:
        return f"{place}: {divergence.found!r} instead of {divergence.expected!r}"
    return (
        f"{place}: {divergence.found} instead of {divergence.expected}, the worse of them "
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
