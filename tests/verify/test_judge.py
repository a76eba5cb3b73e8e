from dataclasses import replace

import jsonschema
import numpy as np
import pytest

from specbench.cli.schema import json_schema
from specbench.records import Kind, Reason
from specbench.verify.evidence import (
    BaselineSample,
    Divergence,
    Evidence,
    FailedEvidence,
    GreedyEvidence,
    SampledEvidence,
    ServedEvidence,
    Subject,
    SumMoments,
)
from specbench.verify.judge import FALSE_ALARM, Finding, judge
from specbench.verify.report import answers, document, exit_code, false_alarm_note, sentences
from specbench.verify.statistics import control_p_value, detectable

SOUND = {0.7: -1090.0, 0.8: -1060.0, 1.0: -1000.0, 1.25: -1030.0}
SHARP, BLUNT = SumMoments(40.0, 70.0), SumMoments(4.0, 7.0)  # the second of a tenth of the tokens


def subject(temperature: float, lossy: str | None = None, k: int = 4) -> Subject:
    return Subject(
        pairing="big/good" if k else "big",
        engine="builtin",
        method="ngram" if k else "none",
        num_speculative_tokens=k,
        temperature=temperature,
        lossy=lossy,
    )


def divergence(steps: float | None = 1.0, **changes: object) -> Divergence:
    values = {"prompt_id": "chat/p1", "position": 3, "expected": 5, "found": 7, "gap": 0.1}
    return Divergence(steps=steps, tie_steps=8.0, **{**values, **changes})


def greedy(*divergences: Divergence, lossy: str | None = None) -> GreedyEvidence:
    return GreedyEvidence(
        subject=subject(0.0, lossy), num_prompts=10, num_tokens=640, divergences=divergences
    )


def sampled(seed: int = 0, *, lossy: str | None = None, k: int = 4, **changes: object):
    rng = np.random.default_rng(seed)
    values = {
        "surprise_N": rng.random(4096),
        "identity_N": rng.random(4096),
        "log_likelihoods": SOUND,
        "colder": SHARP,
        "num_texts": 40,
        "num_outside": 0,
        "num_at_edge": 0,
    }
    return SampledEvidence(subject=subject(0.7, lossy, k), **{**values, **changes})


def single(evidence: Evidence) -> Finding:
    (finding,) = judge([evidence])
    return finding


def test_equal_texts_are_identical() -> None:
    finding = single(greedy())
    assert (finding.verdict, finding.lossless, finding.match_rate) == ("identical", True, 1.0)
    assert finding.first_divergence is None


def test_rounding_between_the_two_best_is_a_tie() -> None:
    finding = single(greedy(divergence(), divergence(position=5), divergence(prompt_id="chat/p2")))
    assert (finding.verdict, finding.lossless, finding.match_rate) == ("near_tie", True, 0.8)
    assert finding.reasons == (Kind.TIES(tokens=3, steps=1.0, below=None),)


PLACE = {"prompt": "chat/p1", "unit": "token", "position": 3}


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (
            divergence(steps=500),
            Kind.DIVERGES(**PLACE, found=7, expected=5, how_far=(500, 8.0, None)),
        ),
        (
            divergence(steps=500, below=0.5),
            Kind.DIVERGES(**PLACE, found=7, expected=5, how_far=(500, 8.0, 0.5)),
        ),
        (divergence(None, found=None), Kind.STOPS_EARLY(**PLACE)),
        (divergence(None, expected=None), Kind.RUNS_PAST(**PLACE)),
        (
            divergence(None, expected=None, found="more"),
            Kind.RUNS_PAST(**{**PLACE, "unit": "character"}),
        ),
    ],
)
def test_a_divergence_beyond_rounding_is_a_mismatch_and_listed_first(
    wrong: Divergence, reason: Reason
) -> None:
    finding = single(greedy(divergence(position=1), wrong))
    assert (finding.verdict, finding.lossless) == ("mismatch", False)
    assert finding.first_divergence == wrong
    assert finding.reasons == (reason,)


def test_tokens_of_the_distribution_pass_with_the_detectable_deviation() -> None:
    finding = single(sampled())
    assert (finding.verdict, finding.lossless) == ("matches_distribution", True)
    assert finding.detectable is not None
    assert 0.01 < finding.detectable.shift < 0.06
    assert finding.p_value is not None
    assert finding.p_value > FALSE_ALARM > 1e3 * (finding.control_p_value or 0)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"surprise_N": np.random.default_rng(0).random(4096) ** 3}, Kind.OTHER_FREQUENCIES()),
        ({"identity_N": np.random.default_rng(0).random(4096) ** 2}, Kind.TOO_OFTEN()),
        ({"identity_N": np.linspace(0, 1, 4096)}, Kind.DEPENDENT()),
        ({"log_likelihoods": {**SOUND, 0.7: -900.0}}, Kind.OTHER_TEMPERATURE()),
        ({"num_outside": 2}, Kind.OUTSIDE(count=2)),
        ({"wrongly_ended": ("chat/p3",)}, Kind.WRONG_ENDS(count=1, prompt="chat/p3")),
    ],
)
def test_each_fault_is_a_mismatch_with_its_reason(
    changes: dict[str, object], reason: Reason
) -> None:
    finding = single(sampled(**changes))
    assert (finding.verdict, finding.lossless) == ("mismatch", False)
    assert finding.reasons == (reason,)


@pytest.mark.parametrize(
    ("num_at_edge", "verdict"), [(200, "matches_distribution"), (300, "inconclusive")]
)
def test_many_tokens_at_a_nucleus_edge_are_inconclusive(num_at_edge, verdict) -> None:
    finding = single(sampled(num_at_edge=num_at_edge))
    assert finding.verdict == verdict
    at_edge = Kind.AT_EDGE(at_edge=num_at_edge, tokens=4096 + num_at_edge)
    assert (finding.reasons == (at_edge,)) is (num_at_edge == 300)


def test_too_blunt_tokens_leave_the_temperature_inconclusive() -> None:
    finding = single(sampled(colder=BLUNT))
    assert (finding.verdict, finding.lossless) == ("inconclusive", None)
    # This many tokens like these would decide.
    (few,) = finding.reasons
    assert (few.kind, few.figures["tokens"]) == (Kind.TOO_FEW_TOKENS, 4096)
    more = SumMoments(*(value * few.figures["needed"] / 4096 for value in BLUNT))
    assert control_p_value(more, 3) < FALSE_ALARM / 4 <= control_p_value(BLUNT, 3)
    sure = single(sampled(colder=SumMoments(0.0, 0.0)))
    assert sure.reasons == (Kind.TOO_SURE(),)
    assert exit_code([finding]) == 3


def test_the_false_alarm_rate_is_that_of_all_tests_of_a_call() -> None:
    # A p-value that is a fault by itself, and not among others.
    tokens_N = np.random.default_rng(0).random(4096)
    tokens_N[:3] = 5e-6
    suspect = sampled(surprise_N=tokens_N)
    alone = single(suspect)
    among = judge([suspect, *(sampled(seed) for seed in range(1, 40))])[0]
    assert alone.p_values == among.p_values
    assert (alone.p_value or 0) < FALSE_ALARM < (among.p_value or 0)
    assert (alone.verdict, among.verdict) == ("mismatch", "matches_distribution")
    assert among.detectable == detectable(4096, FALSE_ALARM / (4 * 40))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_calls", "most"), [(200, 17), pytest.param(400, 30, marks=pytest.mark.long)]
)
def test_sound_calls_have_the_stated_false_alarm_rate(num_calls: int, most: int) -> None:
    """`most`: were the rate 5%, one seed in a hundred would have more."""
    seeds = range(0, 3 * num_calls, 3)
    calls = [judge([sampled(i), sampled(i + 1)], false_alarm=0.05) for i in seeds]
    alarms = sum(any(f.verdict == "mismatch" for f in call) for call in calls)
    print(f"{alarms} alarms in {num_calls} sound calls at 5%")
    assert alarms <= most


def test_the_sentence_of_a_lossy_pairing_has_every_temperature() -> None:
    wrong = greedy(divergence(steps=500, below=0.5), lossy="typical")
    (answer,) = answers(judge([wrong, sampled(lossy="typical")]))
    assert (answer.subject, answer.verdict) == ("big/good", "lossy")
    greedy_at, sampled_at = answer.reasons
    assert greedy_at.figures["setting"] == "builtin ngram K=4 at T=0"
    assert sampled_at.figures["setting"] == "builtin ngram K=4 at T=0.7"
    rule = Kind.LOSSY_RULE(rule="typical")
    assert greedy_at.figures["because"][0] == rule
    assert greedy_at.figures["because"][-1] == Kind.GREEDY_EQUALS(matching=9, answers=10)
    assert rule not in sampled_at.figures["because"]


@pytest.mark.parametrize("evidence", [greedy(lossy="typical"), sampled(lossy="typical")])
def test_a_lossy_rule_is_named_in_its_verdict(evidence: Evidence) -> None:
    finding = single(evidence)
    assert (finding.verdict, finding.lossless) == ("lossy", False)
    assert finding.reasons[0] == Kind.LOSSY_RULE(rule="typical")
    assert answers([finding])[0].verdict == "lossy"
    assert exit_code([finding]) == 1


def test_the_worst_finding_sets_the_exit_code() -> None:
    good, bad = single(greedy()), single(greedy(divergence(steps=500)))
    failed = single(FailedEvidence(subject=subject(0.0), reason="no memory"))
    open_end = single(sampled(colder=BLUNT))
    assert (failed.verdict, failed.lossless) == ("failed", None)
    assert exit_code([good]) == 0
    assert exit_code([good, open_end]) == 3
    assert exit_code([good, open_end, failed]) == 4
    assert exit_code([good, open_end, failed, bad]) == 1


def test_each_pairing_has_one_verdict_sentence() -> None:
    findings = judge([sampled(k=0), greedy(), sampled(1)])
    (answer,) = answers(findings)
    assert (answer.subject, answer.verdict, answer.words) == (
        "big/good",
        findings[1].verdict,
        "lossless",
    )
    equal, follow = answer.reasons
    assert equal == Kind.GREEDY_EQUALS(matching=10, answers=10)
    assert (follow.kind, follow.figures["tokens"]) == (Kind.SAMPLED_FOLLOW, 4096)
    assert sentences(findings)[0].startswith("big/good: lossless: greedy text equals ")
    assert "8 tests" in false_alarm_note(findings)
    broken = judge([sampled(k=0, num_outside=3), greedy()])
    (setting,) = answers(broken)[0].reasons
    assert answers(broken)[0].verdict == "mismatch"
    assert setting.figures["setting"] == "builtin at T=0.7"
    assert setting.figures["because"] == (Kind.OUTSIDE(count=3),)


def test_the_verify_document_matches_its_schema() -> None:
    json_document = document(judge([greedy(divergence()), sampled()]))
    jsonschema.validate(json_document, json_schema("verify"))
    assert (json_document["lossless"], json_document["num_tests"]) == (True, 4)
    first, second = json_document["results"]
    assert (first["verdict"], first["match_rate"], first["p_value"]) == ("near_tie", 0.9, None)
    assert first["first_divergence"]["prompt_id"] == "chat/p1"
    assert (second["verdict"], second["match_rate"]) == ("matches_distribution", None)


def served_pair(
    scored: SampledEvidence, *, are_alike: bool
) -> tuple[ServedEvidence, ServedEvidence]:
    """A server at K=0, scored, and with drafts; its tokens are those of K=0, or rare ones there."""
    rng = np.random.default_rng(0)
    common, rare = (
        tuple(("p", (int(rng.random() < share),)) for _ in range(200)) for share in (0.1, 0.9)
    )
    plain, drafting = (replace(subject(0.7, k=k), engine="vllm") for k in (0, 4))
    baseline = ServedEvidence(
        subject=plain,
        num_texts=200,
        num_tokens=4096,
        scored=replace(scored, subject=plain),
        sample=None,
    )
    outputs = common if are_alike else rare
    sample = BaselineSample(outputs=outputs, baseline_outputs=common, colder=rare)
    return baseline, replace(baseline, subject=drafting, scored=None, sample=sample)


def test_a_server_that_differs_from_its_own_k_0_is_wrong() -> None:
    found = judge(served_pair(sampled(k=0), are_alike=False))
    assert [f.verdict for f in found] == ["matches_distribution", "mismatch"]
    assert found[1].reasons == (Kind.FREQUENCY_DIFFERS(),)
    assert found[1].p_values.keys() == {"two_sample"}


def test_without_a_control_that_the_test_detects_a_server_is_undecided() -> None:
    baseline, drafted = served_pair(sampled(k=0), are_alike=True)
    assert drafted.sample is not None
    blunt = replace(drafted.sample, colder=drafted.sample.baseline_outputs)
    (_, found) = judge([baseline, replace(drafted, sample=blunt)])
    assert (found.verdict, found.reasons) == ("inconclusive", (Kind.CONTROL_FAILED(),))


@pytest.mark.parametrize(
    ("scored", "reason"),
    [
        (sampled(k=0), Kind.BASELINE_FOLLOWS),
        (sampled(k=0, num_outside=3), Kind.BASELINE_DEPARTS),
        (sampled(k=0, colder=BLUNT), Kind.BASELINE_OPEN),
    ],
)
def test_a_server_like_its_own_k_0_names_the_verdict_on_k_0(
    scored: SampledEvidence, reason: Kind
) -> None:
    found = judge(served_pair(scored, are_alike=True))
    assert found[1].verdict == "matches_baseline"
    _, answer = answers(found)
    assert [r.kind for r in answer.reasons[0].figures["because"]] == [
        Kind.SAMPLED_LIKE_BASELINE,
        reason,
    ]
