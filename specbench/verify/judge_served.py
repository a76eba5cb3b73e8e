"""Is a server's output with speculation its own without? Judged by the target, or by its K = 0.

The target's distribution is the sharper measure, where it could be looked at and the server follows
it without speculation. What K = 0 does wrong is not caused by speculation.
"""

from collections.abc import Mapping
from dataclasses import replace

from specbench.verify.evidence import BaselineSample, Distance, ServedEvidence
from specbench.verify.finding import Finding
from specbench.verify.two_samples import frequency_p_value, rarity_p_value

WITHOUT_SPECULATION = (
    "speculation has no part in it: the server's model, dtype or quantisation is another than the "
    "target's here, or it samples with settings of its own (top-k, penalties, "
    "generation_config.json)"
)
_SEEN_BY = {
    "rarity": "likely and unlikely tokens do not come as often as in its answers at K = 0",
    "frequency": "some tokens come more often than in its answers at K = 0",
}


def beside_p_values(beside: BaselineSample) -> dict[str, float]:
    """Tests of the answers against those of K = 0."""
    return {
        "rarity": rarity_p_value(beside.answers, beside.own_answers),
        "frequency": frequency_p_value(beside.answers, beside.own_answers),
    }


def judge_served(
    evidence: ServedEvidence,
    along: Finding | None,
    own: Finding | None,
    tests: Mapping[str, float],
    adjusted: Mapping[str, float],
    *,
    level: float,
    false_alarm: float,
) -> Finding:
    """`along`: what the target says, where it was looked at; `own`: the finding about K = 0.

    Among the tests are those of `beside_p_values`.
    """
    beside = evidence.beside
    if beside is None or own is None:
        found = along or Finding(
            subject=evidence.subject,
            verdict="matches_baseline",
            reason=f"not held to the target's distribution: {evidence.unseen}",
        )
        if found.verdict == "mismatch":
            found = replace(found, reason=f"{found.reason}; {WITHOUT_SPECULATION}")
        return _complete(found, evidence, evidence.distances)
    named = {name: tests[name] for name in _SEEN_BY}
    worst = min(named, key=lambda name: named[name])
    is_apart = adjusted[worst] < false_alarm
    if along is not None and own.verdict == "matches_distribution":
        found = replace(
            along,
            p_value=min(along.p_value or 0.0, adjusted[worst]),
            p_values={**along.p_values, **named},
        )
        if is_apart and along.verdict != "mismatch":
            found = replace(found, verdict="mismatch", reason=_SEEN_BY[worst])
        return _complete(found, evidence, evidence.distances)
    control = rarity_p_value(beside.colder, beside.own_answers)
    found = Finding(
        subject=evidence.subject,
        verdict="mismatch"
        if is_apart
        else "matches_baseline"
        if control < level
        else "inconclusive",
        reason=_SEEN_BY[worst]
        if is_apart
        else "its answers are like those of its K = 0"
        if control < level
        else "answers of K = 0 at a 20 % lower temperature are not told apart either; use more "
        "--num-tokens",
        p_value=adjusted[worst],
        p_values=named,
        control_p_value=control,
    )
    return _complete(found, evidence, beside.distances)


def _complete(found: Finding, evidence: ServedEvidence, distances: tuple[Distance, ...]) -> Finding:
    return replace(
        found,
        num_tokens=evidence.num_tokens,
        distances=distances,
        unseen=evidence.unseen,
        rule=evidence.rule,
    )
