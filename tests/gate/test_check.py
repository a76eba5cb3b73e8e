"""Every verdict, with numbers worked out by hand.

On a GPU the speedup of a single run is assumed to be known to 0.02 * sqrt(0.3 + 0.7 / 3) = 0.01461,
so the difference of two to 0.02066, with 4 degrees of freedom: quantiles of t, 2.132 for 5% and
0.941 for 80%.
"""

import math

import pytest

from specbench.errors import UsageError
from specbench.gate.check import Gate, Tolerance, check
from specbench.gate.figures import Figure
from specbench.gate.judging import Comparison, GateVerdict, Judgment
from specbench.gate.tolerances import MetricKind
from specbench.records import Kind
from specbench.stats.spread import Uncertainty
from tests.gate.gate_sides import cell, figure, key, side

SPEEDUP = (Tolerance(metric="decode_speedup", share=0.05),)
LENGTH = (Tolerance(metric="mean_acceptance_length", share=0.02),)


def judge(
    metric: str,
    before: float,
    after: float,
    error: float = 0.0,
    tolerance: float = 0.05,
    deviation: float | None = None,
    num_runs: int = 1,
) -> Judgment:
    """Judge one metric of one cell; `error` is the ratio's jackknife error."""
    baseline = side(cell({metric: figure(before, 0.0, deviation)}), num_runs=num_runs)
    candidate = side(cell({metric: figure(after, error)}), name="b")
    gate = check(baseline, candidate, [Tolerance(metric=metric, share=tolerance)])
    (judgment,) = gate.judgments
    return judgment


def test_a_loss_whose_interval_excludes_the_tolerance_is_a_regression():
    # ln(2 / 1.8) = 0.10536, 0.05407 beyond ln(1 / 0.95); / 0.02066 = 2.618.
    judgment = judge("decode_speedup", 2.0, 1.8)
    assert judgment.verdict is GateVerdict.REGRESSION
    assert judgment.p_value == pytest.approx(0.0295, abs=1e-4)
    assert judgment.change.estimate == pytest.approx(-0.10)
    # Two-sided 95%: 2.776 * 0.02066 = 0.05735.
    assert judgment.change.low == pytest.approx(math.exp(-0.10536 - 0.05735) - 1, abs=1e-4)
    assert judgment.change.high == pytest.approx(math.exp(-0.10536 + 0.05735) - 1, abs=1e-4)


def test_a_loss_beyond_the_tolerance_but_within_noise_is_inconclusive():
    # 6%: 0.01059 beyond, / 0.02066 = 0.513, p = 0.32. Detectable: 3.073 * 0.02066 = 0.06347 beyond
    # the limit, which makes 0.1148.
    judgment = judge("decode_speedup", 2.0, 1.88)
    assert judgment.verdict is GateVerdict.INCONCLUSIVE
    assert judgment.reason == Kind.BEYOND_LIMIT()
    assert judgment.p_value == pytest.approx(0.318, abs=0.001)
    assert judgment.minimum_detectable_effect == pytest.approx(1 - math.exp(-0.06347), abs=1e-4)
    assert judgment.minimum_detectable_loss == pytest.approx(1 - math.exp(-0.11476), abs=1e-4)


def test_noise_that_could_hide_the_tolerance_is_inconclusive():
    # Error 5%, 4 degrees: (2.132 + 0.941) * 0.05 = 0.154 is more than 0.0513, and the upper
    # bound of the loss, 2.132 * 0.05 = 0.107, also is.
    judgment = judge("decode_speedup", 2.0, 2.0, error=0.05)
    assert judgment.verdict is GateVerdict.INCONCLUSIVE
    assert judgment.minimum_detectable_effect == pytest.approx(1 - math.exp(-0.1536), abs=1e-3)
    assert judgment.reason == Kind.LOSS_HIDDEN()


@pytest.mark.parametrize("error", [0.0, 0.05])
def test_an_improvement_passes_even_if_noise_is_large(error):
    # 20% more: a loss of -0.182, at most -0.182 + 0.107 < 0.
    assert judge("decode_speedup", 2.0, 2.4, error=error).verdict is GateVerdict.PASS


def test_a_metric_declares_whether_less_is_better():
    tolerances = {"tolerance": 0.05}
    assert judge("round_s", 0.010, 0.013, **tolerances).verdict is GateVerdict.REGRESSION
    assert judge("round_s", 0.010, 0.007, **tolerances).verdict is GateVerdict.PASS


def test_exact_counts_are_judged_without_a_statistical_test():
    # No spread between prompts or runs: 2.1% is a regression, 1.9% is not.
    assert (
        judge("mean_acceptance_length", 1.0, 0.979, tolerance=0.02).verdict
        is GateVerdict.REGRESSION
    )
    assert judge("mean_acceptance_length", 1.0, 0.981, tolerance=0.02).verdict is GateVerdict.PASS
    gate = check(
        side(cell({"mean_acceptance_length": figure(3.0)})),
        side(cell({"mean_acceptance_length": figure(3.0)}), name="b"),
        LENGTH,
    )
    assert gate.num_tests == 0


def test_figures_that_vary_are_undecided_below_five_prompts():
    three = ("p1", "p2", "p3")
    varied = cell({"decode_speedup": Figure(value=2.0, without=(1.9, 2.0, 2.1))}, units=three)
    same = cell({"decode_speedup": Figure(value=2.0, without=(2.0,) * 3)}, units=three)
    (judgment,) = check(side(same), side(varied, name="b"), SPEEDUP).judgments
    assert judgment.verdict is GateVerdict.INCONCLUSIVE
    assert judgment.reason == Kind.TOO_FEW_UNITS(units=(3, "prompt"), needed=5)


def test_deviation_between_runs_widens_the_interval():
    # 10%: found when four runs agree to 1%, not when they are 5% apart. What is assumed counts as 4
    # degrees: sqrt((3 * 0.05^2 + 4 * 0.01461^2) / 7) = 0.03454; * sqrt(1 + 1 / 4) = 0.03862;
    # 0.05407 / 0.03862 = 1.400.
    steady = judge("decode_speedup", 2.0, 1.8, deviation=0.01, num_runs=4)
    shaky = judge("decode_speedup", 2.0, 1.8, deviation=0.05, num_runs=4)
    assert (steady.verdict, shaky.verdict) == (GateVerdict.REGRESSION, GateVerdict.INCONCLUSIVE)
    assert shaky.p_value == pytest.approx(0.102, abs=0.001)  # 3 + 4 degrees


def test_runs_on_both_sides_pool_their_deviations():
    # sqrt((3 * 0.03^2 + 1 * 0.05^2) / 4) = 0.0361; * sqrt(1 / 4 + 1 / 2) = 0.03125; 4 degrees.
    baseline = side(cell({"decode_speedup": figure(2.0, 0.0, 0.03)}), num_runs=4)
    candidate = side(cell({"decode_speedup": figure(1.7, 0.0, 0.05)}), name="b", num_runs=2)
    (judgment,) = check(baseline, candidate, SPEEDUP).judgments
    # ln(2 / 1.7) = 0.16252, 0.11123 beyond, / 0.03125 = 3.559.
    assert judgment.p_value == pytest.approx(0.0118, abs=0.0001)


def two_cells(loss: float) -> Gate:
    """Both cells lose equally."""
    keys = [key(workload=name) for name in ("code", "chat")]
    before = [cell({"decode_speedup": figure(2.0)}, of=k) for k in keys]
    after = [cell({"decode_speedup": figure(2.0 * (1 - loss))}, of=k) for k in keys]
    return check(side(*before), side(*after, name="b"), SPEEDUP)


def test_two_cells_share_the_false_alarms_of_one_gate():
    # 9.6%: 0.04963 / 0.02066 = 2.403, p = 0.037 by itself, 0.074 for the first of two (Holm).
    assert judge("decode_speedup", 2.0, 1.808).verdict is GateVerdict.REGRESSION
    gate = two_cells(0.096)
    assert [j.p_value for j in gate.judgments] == pytest.approx([0.0741, 0.0741], abs=0.0005)
    assert gate.verdict is not GateVerdict.REGRESSION
    assert gate.num_tests == 2


def test_figures_that_do_not_vary_are_not_counted_as_tests():
    figures = {"decode_speedup": figure(2.0), "mean_acceptance_length": figure(3.0)}
    after = {**figures, "decode_speedup": figure(1.808)}
    gate = check(side(cell(figures)), side(cell(after), name="b"), (*LENGTH, *SPEEDUP))
    assert gate.num_tests == 1
    assert gate.verdict is GateVerdict.REGRESSION


def test_the_gate_has_the_worst_verdict_and_lists_counts_first():
    figures = {"decode_speedup": figure(2.0), "mean_acceptance_length": figure(3.0)}
    after = {"decode_speedup": figure(1.0), "mean_acceptance_length": figure(3.0)}
    gate = check(side(cell(figures)), side(cell(after), name="b"), (*SPEEDUP, *LENGTH))
    assert [j.metric for j in gate.judgments] == ["mean_acceptance_length", "decode_speedup"]
    assert gate.verdict is GateVerdict.REGRESSION


def test_a_relative_change_from_0_is_judged_by_its_sign():
    assert judge("num_failed", 0.0, 0.0).verdict is GateVerdict.PASS
    assert judge("num_failed", 0.0, 3.0).verdict is GateVerdict.REGRESSION
    assert judge("acceptance_rate", 0.0, 0.5).verdict is GateVerdict.PASS


def test_negative_values_are_compared_as_shares_of_the_baselines():
    # A cost of -100 bytes that rose by half of that.
    assert judge("speculation_cost_bytes", -100.0, -50.0).verdict is GateVerdict.REGRESSION
    assert judge("speculation_cost_bytes", -100.0, -150.0).verdict is GateVerdict.PASS


def test_a_list_metric_is_judged_as_a_whole_or_by_one_entry():
    before = {f"acceptance_rate_per_position[{i}]": figure(0.9 / i) for i in (1, 2)}
    after = {**before, "acceptance_rate_per_position[2]": figure(0.4)}
    sides = side(cell(before)), side(cell(after), name="b")
    whole = check(*sides, [Tolerance(metric="acceptance_rate_per_position", share=0.05)])
    first = check(*sides, [Tolerance(metric="acceptance_rate_per_position[1]", share=0.05)])
    assert [j.verdict for j in whole.judgments] == [GateVerdict.PASS, GateVerdict.REGRESSION]
    assert [j.verdict for j in first.judgments] == [GateVerdict.PASS]


@pytest.mark.parametrize(
    ("metric", "says"),
    [
        ("speed", "no metric 'speed'"),
        ("num_rounds", "neither more nor less"),
        ("peak_allocated_bytes", "missing on both sides"),
    ],
)
def test_a_metric_that_cannot_be_judged_is_an_error(metric, says):
    single = side(cell({"decode_speedup": figure(2.0)}))
    with pytest.raises(UsageError, match=says):
        check(single, single, [Tolerance(metric=metric, share=0.05)])


def test_counts_of_an_adaptive_k_cannot_be_judged():
    adaptive = side(cell({"mean_acceptance_length": figure(2.0)}, of=key(adaptive=True)))
    with pytest.raises(UsageError, match=r"--fail-on: .*mean_acceptance_length"):
        check(adaptive, adaptive, [Tolerance(metric="mean_acceptance_length", share=0.05)])


def test_a_metric_that_the_candidate_lost_is_missing():
    both = {"decode_speedup": figure(2.0), "round_s": figure(0.01)}
    gate = check(
        side(cell(both)),
        side(cell({"decode_speedup": figure(2.0)}), name="b"),
        [Tolerance(metric="round_s", share=0.05)],
    )
    assert [j.verdict for j in gate.judgments] == [GateVerdict.MISSING]


def test_figures_of_another_tool_need_several_runs():
    """They have no prompts; only whole runs show their scatter."""

    def imported(value, deviation=None):
        only = Figure(value=value, deviation=deviation)
        return cell({"decode_tokens_per_s": only}, units=())

    tolerances = [Tolerance(metric="decode_tokens_per_s", share=0.10)]
    (alone,) = check(side(imported(100.0)), side(imported(50.0), name="b"), tolerances).judgments
    assert alone.verdict is GateVerdict.INCONCLUSIVE
    assert alone.reason == Kind.WITHOUT_PROMPTS()
    several = side(imported(100.0, 0.02), num_runs=4)
    verdicts = [
        check(several, side(imported(value), name="b"), tolerances).verdict
        for value in (50.0, 101.0)
    ]
    assert verdicts == [GateVerdict.REGRESSION, GateVerdict.PASS]


def test_counts_of_an_adaptive_k_are_not_judged():
    both = {"mean_acceptance_length": figure(3.0), "decode_speedup": figure(2.0)}
    auto = cell(both, of=key(8, adaptive=True))
    gate = check(side(auto), side(auto, name="b"), (*LENGTH, *SPEEDUP))
    assert [j.metric for j in gate.judgments] == ["decode_speedup"]
    assert Kind.AUTO_COUNTS() in gate.notes


def test_unpaired_prompts_add_their_spreads():
    # Errors of 1% on either side, unpaired: sqrt(2) %, and 4 + 4 degrees of freedom.
    names = ("q1", "q2", "q3", "q4", "q5")
    before = side(cell({"decode_speedup": figure(2.0, 0.02)}))
    after = cell({"decode_speedup": figure(1.7, 0.02)}, units=names)
    (judgment,) = check(before, side(after, name="b"), SPEEDUP, {"prompts"}).judgments
    # 0.11123 / 0.02828 = 3.933; t(8).
    assert judgment.p_value == pytest.approx(0.00217, abs=0.00003)


@pytest.mark.parametrize(
    ("speed", "verdict"), [(130.0, GateVerdict.PASS), (101.0, GateVerdict.REGRESSION)]
)
def test_a_lower_speedup_passes_if_k_0_and_the_cell_got_faster(speed, verdict):
    # The cell's own speed is known to 2.9% * sqrt(2): 30% more is faster for sure, 1% is not.
    before = {"decode_speedup": figure(4.0), "decode_tokens_per_s": figure(100.0)}
    after = {"decode_speedup": figure(2.0), "decode_tokens_per_s": figure(speed)}
    (judgment,) = check(side(cell(before)), side(cell(after), name="b"), SPEEDUP).judgments
    assert judgment.verdict is verdict
    assert judgment.reason == (Kind.PLAIN_GOT_FASTER() if verdict is GateVerdict.PASS else None)


@pytest.mark.parametrize(
    ("speed", "verdict"), [(200.0, GateVerdict.PASS), (101.0, GateVerdict.INCONCLUSIVE)]
)
def test_an_uncertain_loss_of_speedup_does_not_block_an_improvement(speed, verdict):
    before = {"decode_speedup": figure(4.0, 0.2), "decode_tokens_per_s": figure(100.0)}
    after = {"decode_speedup": figure(2.6, 0.2), "decode_tokens_per_s": figure(speed)}
    moved = cell(after, units=("q1", "q2", "q3", "q4", "q5"))
    (judgment,) = check(side(cell(before)), side(moved, name="b"), SPEEDUP, {"prompts"}).judgments
    assert judgment.verdict is verdict
    assert judgment.minimum_detectable_effect > judgment.tolerance
    is_faster = judgment.reason == Kind.PLAIN_MAY_BE_FASTER()
    assert is_faster is (verdict is GateVerdict.PASS)


def test_a_lower_speedup_on_faster_hardware_is_a_regression():
    before = {"decode_speedup": figure(4.0), "decode_tokens_per_s": figure(100.0)}
    after = {"decode_speedup": figure(2.0), "decode_tokens_per_s": figure(900.0)}
    other = side(cell(after), name="b", hardware={"device": "cuda", "GPU": "faster"})
    assert check(side(cell(before)), other, SPEEDUP).verdict is GateVerdict.REGRESSION


@pytest.mark.parametrize("metric", ["draft_cost_ratio", "overhead_ratio", "end_to_end_speedup"])
def test_only_a_decode_speedup_is_excused_by_a_faster_k_0(metric):
    worse = 1.5 if metric.endswith("ratio") else 1 / 1.5
    before = {metric: figure(1.0), "decode_tokens_per_s": figure(100.0)}
    after = {metric: figure(worse), "decode_tokens_per_s": figure(130.0)}
    tolerance = (Tolerance(metric=metric, share=0.1),)
    (judgment,) = check(side(cell(before)), side(cell(after), name="b"), tolerance).judgments
    assert (judgment.verdict, judgment.reason) == (GateVerdict.REGRESSION, None)


def test_num_checked_at_once_is_gated_as_a_count():
    figures = {"num_checked_at_once": Figure(value=12.0, without=(12.0,) * 5)}
    fewer = {"num_checked_at_once": Figure(value=10.0, without=(10.0,) * 5)}
    tolerance = (Tolerance(metric="num_checked_at_once", share=0.05),)
    gate = check(side(cell(figures)), side(cell(fewer), name="b"), tolerance)
    (judgment,) = gate.judgments
    assert (judgment.verdict, judgment.kind, gate.num_tests) == (
        GateVerdict.REGRESSION,
        MetricKind.COUNT,
        0,
    )


@pytest.mark.parametrize("is_baseline", [False, True])
def test_the_side_with_too_few_prompts_is_named(is_baseline):
    three = ("p1", "p2", "p3")
    few = cell({"decode_speedup": Figure(value=2.0, without=(1.9, 2.0, 2.1))}, units=three)
    sides = [side(cell({"decode_speedup": figure(2.0)})), side(few, name="b")]
    gate = check(*(reversed(sides) if is_baseline else sides), SPEEDUP, {"prompts"})
    assert gate.judgments[-1].reason == Kind.TOO_FEW_UNITS(units=(3, "prompt"), needed=5)


def test_counts_of_an_adaptive_k_are_not_reported_as_missing():
    both = {"mean_acceptance_length": figure(3.0), "decode_speedup": figure(2.0)}
    auto = key(8, adaptive=True)
    gate = check(side(cell(both, of=auto)), side(cell(both, of=auto), name="b"))
    assert Kind.NOT_IN_BASELINE not in {note.kind for note in gate.notes}


def test_a_metric_of_only_one_prompt_is_compared_relatively():
    """A position that only one prompt's drafts reach: without that prompt it is 0."""
    name = "acceptance_rate_per_position[4]"
    before, after = (
        side(cell({name: Figure(value=v, without=(0.0, v, v, v, v))}), name=run)
        for run, v in (("a", 0.2), ("b", 0.1))
    )
    tolerances = [Tolerance(metric="acceptance_rate_per_position", share=0.05)]
    (judgment,) = check(before, after, tolerances).judgments
    assert judgment.change.estimate == pytest.approx(-0.5)


def test_the_bound_of_a_very_uncertain_loss_is_finite():
    wide = Uncertainty(standard_error=1e3, degrees_of_freedom=1.0)
    worse = Comparison(loss=0.1, limit=0.05, spread=wide)
    assert math.isfinite(worse.as_change(worse.bound(0.975), higher_is_better=False))
