"""What was found of serving engines, in words: a sentence a pairing, engine and K; no torch."""

from collections.abc import Iterator, Sequence

from specbench.verify.finding import Finding
from specbench.verify.judge import is_tie, told

LEAST_P = 1e-99  # below it only that it is below
_SAYS = (  # the gravest first
    ("mismatch", "NOT lossless", "NOT the target's"),
    ("lossy", "lossy by choice", ""),
    ("failed", "not verified", "not verified"),
    ("inconclusive", "undecided", "undecided"),
    ("matches_baseline", "lossless", "the others are held to it"),
    ("", "lossless", "sound"),
)


def served_sentences(findings: Sequence[Finding]) -> list[str]:
    """Every K of a pairing has one, K = 0 of its target too."""
    groups: dict[tuple[str, str, int], list[Finding]] = {}
    for finding in findings:
        who = finding.subject
        key = (who.pairing, who.engine, who.num_speculative_tokens)
        groups.setdefault(key, []).append(finding)
    return [_sentence(group, findings) for group in groups.values()]


def divergence_lines(findings: Sequence[Finding]) -> list[str]:
    """Where greedy texts of servers leave those of K = 0, each with what the target says of it."""
    return [
        f"{_place(finding)}: {told(divergence)}{_why(finding, is_near=is_tie(divergence))}"
        for finding in findings
        if finding.subject.num_speculative_tokens
        for divergence in finding.divergences
    ]


def _why(finding: Finding, *, is_near: bool) -> str:
    if finding.unseen:
        return f"; not looked at, because {finding.unseen}"
    return ": a near-tie" if is_near else ": rounding does not explain it"


def _sentence(group: Sequence[Finding], findings: Sequence[Finding]) -> str:
    verdicts = {finding.verdict for finding in group}
    worst, of_drafts, of_own = next(row for row in _SAYS if row[0] in verdicts or not row[0])
    says = of_drafts if group[0].subject.num_speculative_tokens else of_own
    ordered = sorted(group, key=lambda finding: finding.verdict != worst)
    clauses = (_clause(finding, _own(finding, findings)) for finding in ordered)
    return f"{_place(group[0])}: {says}: {'; '.join(clauses)}."


def _place(finding: Finding) -> str:
    who = finding.subject
    return f"{who.pairing} on {who.engine} at K = {who.num_speculative_tokens}"


def _own(finding: Finding, findings: Sequence[Finding]) -> Finding | None:
    """The finding about K = 0 of the same engine; None: this is it."""
    who = finding.subject
    if not who.num_speculative_tokens:
        return None
    return next(
        f
        for f in findings
        if f.subject.num_speculative_tokens == 0
        and f.subject.engine == who.engine
        and f.subject.temperature == who.temperature
        and who.pairing.startswith(f"{f.subject.pairing}/")
    )


def _clause(finding: Finding, own: Finding | None) -> str:
    if finding.verdict == "failed":
        return f"at T={finding.subject.temperature:g} {finding.reason}"
    if finding.match_rate is not None:
        return _greedy(finding, own)
    return f"at T={finding.subject.temperature:g} {_sampled(finding, own)}"


def _greedy(finding: Finding, own: Finding | None) -> str:
    if finding.verdict == "matches_baseline":
        return f"its greedy text is what the others are held to ({finding.reason})"
    num = finding.num_prompts or 0
    same = round((finding.match_rate or 0.0) * num)
    right = "the target's best" if own is None else "that of K = 0"
    text = f"greedy text is {right} in {same} of {num} answers"
    if finding.verdict == "near_tie":
        return f"{text}, and in the others {finding.reason}"
    return text if finding.verdict == "identical" else f"{text}; {finding.reason}"


def _sampled(finding: Finding, own: Finding | None) -> str:
    num = f"{finding.num_tokens:,} sampled tokens"
    if finding.verdict == "matches_distribution":
        power = finding.detectable
        seen = f"; 80 % power to detect {power.shift:.1%} of them shifted" if power else ""
        return f"{num} follow the target's distribution ({_p(finding)}{seen})"
    if finding.verdict == "matches_baseline" and own is not None:
        law = f"not held to the target's distribution: {finding.unseen}"
        if own.verdict == "mismatch":
            law = "which does not follow the target's distribution, with or without speculation"
        return f"{num} are like those of K = 0 ({_p(finding)}), {law}"
    if finding.verdict == "mismatch":
        return "; ".join(
            [f"{finding.reason} ({_p(finding)}{_far(finding)})", *_context(finding, own)]
        )
    return finding.reason


def _context(finding: Finding, own: Finding | None) -> Iterator[str]:
    """What a reader of a fault should know besides."""
    if own is not None and own.verdict == "matches_distribution":
        yield f"K = 0 of the same server follows it ({_p(own)}{_far(own)})"
    if finding.rule:
        yield f"the rule by which it should accept drafts keeps the distribution: {finding.rule}"


def _far(finding: Finding) -> str:
    """Where, and how far."""
    where = finding.farthest
    if where is None:
        return ""
    return (
        f"; farthest at token {where.position + 1}: total variation "
        f"{where.total_variation:.3f}, and {where.floor:.3f} by chance alone"
    )


def _p(finding: Finding) -> str:
    p = finding.p_value
    assert p is not None
    return f"p < {LEAST_P:.0g}" if p < LEAST_P else f"p = {p:.2g}"
