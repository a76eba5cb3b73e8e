"""The bottleneck of a cell, by hand."""

import math
from dataclasses import replace

import pytest

from specbench.decide.explanation import losses, why
from specbench.decide.recommend import choose, decide
from specbench.records import Kind
from tests.cell_keys import with_axes


def metrics(length=3.0, break_even=2.0, draft=0.1, verify=1.4, **more):
    return {
        "mean_acceptance_length": length,
        "break_even_length": break_even,
        "draft_cost_ratio": draft,
        "verify_cost_ratio": verify,
        **more,
    }


def kinds(cell):
    return {reason.kind for reason in why(cell)}


def test_losses_sum_to_the_gain_of_a_perfect_free_draft():
    by_cause = losses(metrics(), 4)
    assert sum(by_cause.values()) == pytest.approx(math.log(5) - math.log(3.0 / 2.0))
    # B = 2: 0.4 for drafting, 0.4 above a step for verifying, 0.2 for the rest.
    assert by_cause["draft"] == pytest.approx(math.log(2) * 0.4)
    assert by_cause["verify"] == pytest.approx(math.log(2) * 0.4)
    assert by_cause["overhead"] == pytest.approx(math.log(2) * 0.2)
    assert by_cause["acceptance"] == pytest.approx(math.log(5 / 3))


@pytest.mark.parametrize(
    ("given", "bound"),
    [
        (metrics(length=1.5), "acceptance"),
        (metrics(length=4.9, break_even=3.4, draft=0.5), "draft"),
        (metrics(length=4.9, break_even=3.0, verify=2.6), "verify"),
        (metrics(length=4.9, break_even=3.0, verify=1.0), "overhead"),
        # Forwards take a third of the round, however it was split.
        (metrics(length=4.9, break_even=3.0, verify=2.6, overhead_ratio=3.0), "overhead"),
    ],
)
def test_the_largest_loss_bounds_the_cell(given, bound):
    by_cause = losses(given, 4)
    assert max(by_cause, key=by_cause.get) == bound


def test_a_round_measured_a_little_faster_than_its_forwards_has_no_overhead():
    """The parts of a round are scaled to it, never beyond: no loss counts twice."""
    below, at = (losses(metrics(overhead_ratio=ratio), 4) for ratio in (0.96, 1.0))
    assert below == at
    assert at["overhead"] == pytest.approx(0.0, abs=1e-12)
    # B = 2 of drafts at 0.4 and a verification of 1.4: 4 / 9 and 14 / 9.
    drafting, verifying = 4 / 9, 14 / 9 - 1
    assert at["draft"] == pytest.approx(math.log(2) * drafting / (drafting + verifying))
    assert at["verify"] == pytest.approx(math.log(2) * verifying / (drafting + verifying))


def test_losses_are_unknown_without_draft_counts():
    assert losses({"mean_acceptance_length": 3.0}, 4) is None
    assert losses(metrics(), 0) is None


def test_the_cost_of_rolling_back_recurrent_states_is_reported(summarized):
    states = metrics(state_bytes_per_row=3 * 2**20)
    told = Kind.RECURRENT_STATES(states=3 * 2**20)
    assert told in why(summarized(4, 1.4, 1.3, 1.5, metrics=states))
    assert Kind.RECURRENT_STATES not in kinds(summarized(4, 1.4, 1.3, 1.5, metrics=metrics()))


def test_a_draft_model_of_low_acceptance_is_reported_as_mismatched(summarized):
    poor = metrics(length=1.3, alpha=0.3, acceptance_rate_per_position=(0.3, 0.05))
    bound, mismatch, needed = why(summarized(2, 0.8, 0.9, 1.0, metrics=poor))
    assert bound == Kind.ACCEPTANCE_BOUND()
    assert mismatch == Kind.MISMATCHED(first=0.3)
    # 1 + alpha + alpha^2 = 2 steps.
    expected = pytest.approx((math.sqrt(5) - 1) / 2, abs=1e-6)
    assert needed == Kind.ACCEPTANCE_PER_TOKEN(alpha=0.3, needed=expected)


def test_a_lookup_pays_for_its_rounds_with_those_that_draft(summarized):
    """A quarter of the rounds drafts, and a round costs 1.25 steps: those must emit 2 tokens."""
    rare = metrics(length=1.2, break_even=1.25, alpha=0.4, mean_acceptance_length_when_drafted=1.8)
    cell = summarized(2, 0.8, 0.9, 1.0, metrics=rare)
    lookup = replace(cell, key=with_axes(cell.key, method="ngram"))
    expected = pytest.approx((math.sqrt(5) - 1) / 2, abs=1e-6)
    assert Kind.ACCEPTANCE_PER_TOKEN(alpha=0.4, needed=expected) in why(lookup)
    never = replace(lookup, metrics={**rare, "break_even_length": 1.51})
    assert Kind.NEVER_PAYS(k=2, break_even=1.51) in why(never)


def test_without_an_accepted_token_the_acceptance_that_would_pay_is_unknown(summarized):
    """Nothing shows how many rounds drafted."""
    none = metrics(length=1.0, break_even=1.25, alpha=0.0, mean_acceptance_length_when_drafted=1.0)
    assert Kind.ACCEPTANCE_PER_TOKEN not in kinds(summarized(2, 0.8, 0.9, 1.0, metrics=none))


def test_synthetic_acceptance_does_not_report_mismatched_models(summarized):
    poor = metrics(length=1.3, alpha=0.3, acceptance_rate_per_position=(0.3, 0.05))
    cell = summarized(2, 0.8, 0.9, 1.0, metrics=poor)
    for is_synthetic in (False, True):
        reasons = decide(choose([cell]), is_synthetic=is_synthetic).reasons
        assert (Kind.MISMATCHED(first=0.3) in reasons) is not is_synthetic
        assert Kind.ACCEPTANCE_BOUND() in reasons


def test_the_reason_states_the_steps_if_a_round_costs_more_than_k_plus_1(summarized):
    reasons = why(summarized(2, 0.5, 0.6, 0.7, metrics=metrics(break_even=3.2, draft=0.9)))
    assert Kind.NEVER_PAYS(k=2, break_even=3.2) in reasons


def test_greedy_drafts_of_an_open_text_are_not_called_mismatched(summarized):
    """Above temperature 0 drafts are kept with the target's own p, however good the head is."""
    poor = metrics(length=1.3, alpha=0.3, acceptance_rate_per_position=(0.3, 0.05))
    cell = summarized(2, 0.8, 0.9, 1.0, metrics=poor)
    warm = replace(cell, key=with_axes(cell.key, temperature=1.0, method="medusa"))
    assert Kind.MISMATCHED not in kinds(warm)
    drawn = replace(cell, key=with_axes(cell.key, temperature=1.0))
    assert Kind.MISMATCHED in kinds(drawn)


def test_a_verification_cheaper_than_a_step_loses_nothing():
    assert losses(metrics(break_even=1.3, draft=0.05, verify=0.9), 4)["verify"] == 0


@pytest.mark.parametrize(("kept", "expected"), [(0.49, True), (0.51, False)])
def test_a_draft_is_mismatched_below_one_half(summarized, kept, expected):
    cell = summarized(2, 1.1, 1.2, 1.3, metrics={"acceptance_rate_per_position": (kept, 0.1)})
    assert (Kind.MISMATCHED in kinds(cell)) is expected
    lookup = replace(cell, key=with_axes(cell.key, method="ngram"))
    assert Kind.MISMATCHED not in kinds(lookup)


@pytest.mark.parametrize(("cost", "expected"), [(0.29, False), (0.31, True)])
def test_a_draft_cost_above_0_3_steps_reports_a_too_small_target(summarized, cost, expected):
    cell = summarized(2, 1.1, 1.2, 1.3, metrics={"draft_cost_ratio": cost})
    assert (Kind.TARGET_TOO_SMALL in kinds(cell)) is expected


def test_an_adaptive_k_has_no_bottleneck_line(summarized):
    cell = summarized(4, 1.1, 1.2, 1.3, metrics=metrics(alpha=0.7))
    assert Kind.ACCEPTANCE_PER_TOKEN in kinds(cell)
    assert list(why(replace(cell, key=with_axes(cell.key, adaptive=True)))) == []


def test_drafts_that_stop_early_are_not_judged_as_k_of_them(summarized):
    """With p_min a first draft that was not made counts in the rate, and K is not what is paid."""
    poor = metrics(length=1.3, alpha=0.9, acceptance_rate_per_position=(0.3, 0.05))
    cell = summarized(2, 0.8, 0.9, 1.0, metrics=poor)
    stopping = replace(cell, key=with_axes(cell.key, p_min=0.8))
    assert {Kind.MISMATCHED, Kind.ACCEPTANCE_BOUND, Kind.ACCEPTANCE_PER_TOKEN} <= kinds(cell)
    assert kinds(stopping) == set()
