"""The limits of the gate's verdicts, by hand: the detectable effect, the bound, Holm's steps.

Deviations as in tests/gate/test_check.py: 0.02066 on a GPU with 4 degrees, 2.132 and 0.941.
"""

import math
from dataclasses import replace

import pytest
from scipy.stats import t

from specbench.gate.attribution import attribute
from specbench.gate.check import Tolerance, check, default_tolerances
from specbench.gate.judging import GateVerdict
from specbench.gate.tolerances import MetricKind, deviation_floor
from specbench.records import Kind
from tests.gate.gate_sides import cell, figure, key, side


def verdict(loss: float, tolerance: float) -> GateVerdict:
    """The verdict on a speedup that lost this share."""
    before = side(cell({"decode_speedup": figure(2.0)}))
    after = side(cell({"decode_speedup": figure(2.0 * (1 - loss))}), name="b")
    return check(before, after, [Tolerance(metric="decode_speedup", share=tolerance)]).verdict


def test_a_cell_passes_only_if_twice_the_tolerance_would_be_detected():
    # Detectable: 3.073 * 0.02066 = 0.0635. A loss of 2% is at most 0.0202 + 0.0440, beyond both
    # limits, 0.0637 and 0.0632, so the detectable effect decides.
    assert verdict(0.02, 0.0617) is GateVerdict.PASS
    assert verdict(0.02, 0.0612) is GateVerdict.INCONCLUSIVE


def test_a_cell_passes_if_the_bound_of_the_loss_is_within_the_tolerance():
    # Nothing lost: at most 2.132 * 0.02066 = 0.0440, though 0.0635 could be missed.
    assert verdict(0.0, 0.044) is GateVerdict.PASS  # 0.0450
    assert verdict(0.0, 0.042) is GateVerdict.INCONCLUSIVE  # 0.0429


def test_a_loss_beyond_the_tolerance_never_passes_on_a_noisy_machine():
    # 51% lost and 40% tolerated, on a CPU: 0.713 - 0.511 = 0.202, within 2.132 * 0.1343.
    cpu = {"hardware": {"device": "cpu", "CPU": "one"}}
    before = side(cell({"decode_tokens_per_s": figure(100.0)}), **cpu)
    after = side(cell({"decode_tokens_per_s": figure(49.0)}), name="b", **cpu)
    limits = [Tolerance(metric="decode_tokens_per_s", share=0.40)]
    (judgment,) = check(before, after, limits).judgments
    assert judgment.verdict is GateVerdict.INCONCLUSIVE
    assert judgment.reason == Kind.BEYOND_LIMIT()
    slightly = side(cell({"decode_tokens_per_s": figure(65.0)}), name="b", **cpu)
    assert check(before, slightly, limits).verdict is GateVerdict.PASS  # 35%, within the tolerance


def test_a_figure_that_repeats_exactly_passes_at_a_tolerance_of_0():
    exact = Tolerance(metric="launches_per_round", share=0.0)
    for after, expected in ((40.0, GateVerdict.PASS), (40.1, GateVerdict.REGRESSION)):
        sides = [side(cell({exact.metric: figure(n, 0.0)}), name=str(n)) for n in (40.0, after)]
        assert check(*sides, [exact]).verdict is expected


def test_the_detectable_effect_is_that_of_the_whole_gate():
    # Two tests at 2.5% each: (2.776 + 0.941) * 0.02066 = 0.07679.
    keys = [key(workload=name) for name in ("code", "chat")]
    sides = [[cell({"decode_speedup": figure(2.0)}, of=k) for k in keys] for _ in "ab"]
    gate = check(
        side(*sides[0]), side(*sides[1], name="b"), [Tolerance(metric="decode_speedup", share=0.1)]
    )
    effects = [j.minimum_detectable_effect for j in gate.judgments]
    assert effects == pytest.approx([1 - math.exp(-0.07679)] * 2, abs=1e-4)


@pytest.mark.parametrize("changed", [{"dtype": "bfloat16"}, {"target": "other"}])
def test_text_of_another_dtype_or_target_need_not_be_the_same(changed):
    """docs/ci.md: a regression only if hardware, torch, dtype and target are the same."""
    figures = {"decode_speedup": figure(2.0)}
    before = side(cell(figures, texts={"p1": "aaa"}))
    after = side(cell(figures, of=key(**changed), texts={"p1": "bbb"}), name="b")
    words = {"dtype", "target"}
    first, *_ = check(
        before, after, [Tolerance(metric="decode_speedup", share=0.05)], words
    ).judgments
    assert (first.metric, first.verdict) == ("output_tokens", GateVerdict.PASS)
    assert first.reason.kind is Kind.TEXTS_MAY_DIFFER


def test_runs_of_different_drafts_are_not_pooled():
    """The draft model is under test: pooled with another one it would be averaged out."""
    from specbench.errors import UsageError
    from specbench.gate.baseline import pool

    first = side(cell({"mean_acceptance_length": figure(3.0)}), name="a")
    other = side(
        cell({"mean_acceptance_length": figure(2.0)}), name="b", drafters={"demo/draft": "e" * 64}
    )
    with pytest.raises(UsageError, match=r"weights of demo/draft.*--allow-different drafter"):
        pool([first, other])
    assert pool([first, other], {"drafter"}).num_runs == 2


def test_runs_with_other_drafter_parameters_are_not_pooled():
    """An n-gram drafter has no weights that could differ."""
    from specbench.errors import UsageError
    from specbench.gate.baseline import pool

    first, other = (
        side(cell({"mean_acceptance_length": figure(length)}), name=name, entries=entries)
        for name, length, entries in (
            ("a", 2.0, {"demo/ngram": "a" * 64}),
            ("b", 2.6, {"demo/ngram": "b" * 64}),
        )
    )
    with pytest.raises(UsageError, match="demo/ngram"):
        pool([first, other])
    assert pool([first, other], {"drafter"}).num_runs == 2


def judge(before, after, tolerance: float = 0.05, allowed=()):
    """The judgment on a speedup."""
    limits = [Tolerance(metric="decode_speedup", share=tolerance)]
    (judgment,) = check(side(before), side(after, name="b"), limits, allowed).judgments
    return judgment


def test_unequal_spreads_of_unpaired_prompts_have_welchs_degrees_of_freedom():
    # 4% and 1%: sqrt(0.0017) = 0.04123; 0.0017^2 / (0.0016^2 / 4 + 0.0001^2 / 4) = 4.498.
    names = ("q1", "q2", "q3", "q4", "q5")
    before = cell({"decode_speedup": figure(2.0, 0.04)})
    after = cell({"decode_speedup": figure(1.7, 0.01)}, units=names)
    # ln(2 / 1.7) - ln(1 / 0.95) = 0.11123.
    expected = t.sf(0.11123 / 0.04123, 4.498)
    assert judge(before, after, allowed={"prompts"}).p_value == pytest.approx(expected, rel=1e-3)


def test_a_dominant_prompt_on_either_side_lowers_the_degrees_of_freedom():
    # Tokens 1 1 1 1 1 and 5 1 1 1 1: shares 0.3778 and four times 0.1556; 1 / 0.2395 - 1 = 3.175.
    before = cell({"decode_speedup": figure(2.0)})
    after = cell({"decode_speedup": figure(1.7, 0.05)})
    after = replace(after, num_tokens=(500.0, 100.0, 100.0, 100.0, 100.0))
    expected = t.sf(0.11123 / 0.05, 3.175)
    assert judge(before, after).p_value == pytest.approx(expected, rel=1e-3)


def test_the_interval_of_a_lower_is_better_metric_is_ordered():
    before, after = (cell({"round_s": figure(0.01, error)}) for error in (0.0, 0.05))
    limits = [Tolerance(metric="round_s", share=0.05)]
    (judgment,) = check(side(before), side(after, name="b"), limits).judgments
    # t(4) = 2.776: exp(+-0.1388) - 1.
    assert (judgment.change.low, judgment.change.high) == pytest.approx((-0.1296, 0.1489), abs=1e-4)


def test_memory_that_rises_from_0_is_a_regression():
    before, after = (cell({"speculation_cost_bytes": figure(v)}) for v in (0.0, 1e6))
    limits = [Tolerance(metric="speculation_cost_bytes", share=0.03)]
    assert check(side(before), side(after, name="b"), limits).verdict is GateVerdict.REGRESSION


def test_an_invalid_baseline_cannot_cause_a_regression():
    figures = {"decode_speedup": figure(2.0)}
    judgment = judge(cell(figures, problems=("throttled",)), cell(figures))
    assert judgment.verdict is GateVerdict.MISSING
    assert judgment.reason == Kind.BASELINE_CELL_INVALID(because=("throttled",))


def test_the_noise_floor_is_that_of_the_noisier_device():
    # A GPU's 1.5% and a CPU's 9.5%, the same figures: a loss on a GPU is noise on a CPU.
    before, after = (cell({"decode_speedup": figure(v)}) for v in (2.0, 1.8))
    limits = [Tolerance(metric="decode_speedup", share=0.05)]
    other = side(after, name="b", hardware={"device": "cpu", "CPU": "one"})
    assert check(side(before), side(after, name="b"), limits).verdict is GateVerdict.REGRESSION
    assert check(side(before), other, limits).verdict is GateVerdict.INCONCLUSIVE


def test_the_spread_with_the_larger_margin_is_used():
    # Over prompts 0.0135 with 4 degrees, 0.0288 at 95%. Over runs 0.0133 * sqrt(1 / 8 + 1) = 0.0141
    # with 7, 0.0267.
    before = side(cell({"decode_speedup": figure(2.0, deviation=0.0133)}), num_runs=8)
    after = side(cell({"decode_speedup": figure(1.8, 0.0135)}), name="b")
    (judgment,) = check(before, after, [Tolerance(metric="decode_speedup", share=0.05)]).judgments
    assert judgment.p_value == pytest.approx(t.sf(0.05407 / 0.0135, 4), rel=1e-3)


def test_a_5_percent_tolerance_allows_1_05_times_the_time():
    before, after = (cell({"round_s": figure(v)}) for v in (0.010, 0.011))
    limits = [Tolerance(metric="round_s", share=0.05)]
    (judgment,) = check(side(before), side(after, name="b"), limits).judgments
    # ln(1.1 / 1.05) / (2 * 0.02066) = 1.1261; detectable: 1.05 * exp(3.073 * 2 * 0.02066) = 1.1921.
    assert judgment.p_value == pytest.approx(t.sf(1.1261, 4), rel=1e-3)
    assert judgment.minimum_detectable_loss == pytest.approx(0.1921, abs=1e-4)


def test_tolerances_and_assumed_deviations_are_those_of_the_docs():
    shares = {d: [tolerance.share for tolerance in default_tolerances(d)] for d in ("cuda", "cpu")}
    assert shares == {"cuda": [0.02, 0.03, 0.08, 0.15], "cpu": [0.02, 0.03, 0.40, 0.40]}
    assert deviation_floor(MetricKind.COUNT, "cpu") == 0
    assert (
        deviation_floor(MetricKind.MEMORY, "cpu")
        == deviation_floor(MetricKind.MEMORY, "cuda")
        == 0.005
    )
    of_seconds = (MetricKind.RATIO, MetricKind.TIME)
    floors = {d: [deviation_floor(kind, d) for kind in of_seconds] for d in ("cuda", "cpu")}
    # 0.02 and 0.13 between states of the machine, * sqrt(0.3 + 0.7 / 3) of a run of three.
    assert floors["cuda"] == pytest.approx([0.01461, 0.02921], abs=1e-5)
    assert floors["cpu"] == pytest.approx([0.09494, 0.09494], abs=1e-5)


@pytest.mark.parametrize(
    ("length", "causes"), [(2.70, ["acceptance", "round time"]), (2.85, ["round time"])]
)
def test_a_cause_is_reported_from_a_quarter_of_the_loss(length, causes):
    # Rounds of 10 ms take 12.5: 0.2231. Acceptance lost 0.1054, 32% of both, or 0.0513, 19%.
    before = {"mean_acceptance_length": figure(3.0), "round_s": figure(0.010)}
    after = {"mean_acceptance_length": figure(length), "round_s": figure(0.0125)}
    attribution = attribute(cell(before), cell(after), ["decode_tokens_per_s"], same_hardware=True)
    assert [cause.value for cause in attribution.causes] == causes


def test_on_other_hardware_all_drafts_of_a_round_are_counted():
    # K = 4: each draft 0.15 steps more is 0.6 per round, as much as the verification.
    before = {"draft_cost_ratio": 0.08, "verify_cost_ratio": 1.2, "break_even_length": 1.6}
    after = {"draft_cost_ratio": 0.23, "verify_cost_ratio": 1.8, "break_even_length": 2.8}
    sides = [cell({n: figure(v) for n, v in figures.items()}) for figures in (before, after)]
    attribution = attribute(*sides, ["decode_speedup"], same_hardware=False)
    assert [shift.name for shift in attribution.slower] == ["draft", "verify"]


def test_a_gate_of_two_cells_needs_a_larger_margin_to_pass():
    # 2% lost, 6.17% tolerated, 0.0637: 0.0635 could be found for one metric, 0.0768 for two.
    keys = [key(workload=name) for name in ("code", "chat")]
    before = [cell({"decode_speedup": figure(2.0)}, of=k) for k in keys]
    after = [cell({"decode_speedup": figure(1.96)}, of=k) for k in keys]
    limits = [Tolerance(metric="decode_speedup", share=0.0617)]
    assert check(side(*before), side(*after, name="b"), limits).verdict is GateVerdict.INCONCLUSIVE


def test_missing_takes_precedence_over_inconclusive():
    figures, other = {"decode_speedup": figure(2.0)}, key(workload="chat")
    before = side(cell(figures), cell(figures, of=other))
    after = side(cell({"decode_speedup": figure(2.0, 0.05)}), name="b", unmeasured=(other,))
    gate = check(before, after, [Tolerance(metric="decode_speedup", share=0.05)])
    assert {j.verdict for j in gate.judgments} == {GateVerdict.MISSING, GateVerdict.INCONCLUSIVE}
    assert gate.verdict is GateVerdict.MISSING
