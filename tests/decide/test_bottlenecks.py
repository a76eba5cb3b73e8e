"""The bottleneck of a cell, by hand."""

import math
import re
from dataclasses import replace

import pytest

from specbench.decide.explanation import losses, why
from specbench.decide.recommend import choose, decide
from tests.cell_keys import with_axes


def metrics(length=3.0, break_even=2.0, draft=0.1, verify=1.4, **more):
    return {
        "mean_acceptance_length": length,
        "break_even_length": break_even,
        "draft_cost_ratio": draft,
        "verify_cost_ratio": verify,
        **more,
    }


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
    (line,) = [x for x in why(summarized(4, 1.4, 1.3, 1.5, metrics=states)) if "states" in x]
    assert re.match(r"recurrent layers: 3\.0 MiB .*1\.40 steps$", line)
    assert not any("states" in x for x in why(summarized(4, 1.4, 1.3, 1.5, metrics=metrics())))


def test_a_draft_model_of_low_acceptance_is_reported_as_mismatched(summarized):
    poor = metrics(length=1.3, alpha=0.3, acceptance_rate_per_position=(0.3, 0.05))
    bound, mismatch, needed = why(summarized(2, 0.8, 0.9, 1.0, metrics=poor))
    assert bound.startswith("acceptance-bound: ")
    assert re.search(r"30% .*62%\)$", needed)
    assert re.search("^mismatched.*30% ", mismatch)


def test_synthetic_acceptance_does_not_report_mismatched_models(summarized):
    poor = metrics(length=1.3, alpha=0.3, acceptance_rate_per_position=(0.3, 0.05))
    cell = summarized(2, 0.8, 0.9, 1.0, metrics=poor)
    for is_synthetic in (False, True):
        reasons = decide(choose([cell]), is_synthetic=is_synthetic).reasons
        assert any("mismatched" in reason for reason in reasons) is not is_synthetic
        assert any("acceptance-bound" in reason for reason in reasons)


def test_the_reason_states_the_steps_if_a_round_costs_more_than_k_plus_1(summarized):
    lines = list(why(summarized(2, 0.5, 0.6, 0.7, metrics=metrics(break_even=3.2, draft=0.9))))
    assert any(re.search(r"3\.20 steps; K=2 ", line) for line in lines)


def test_greedy_drafts_of_an_open_text_are_not_called_mismatched(summarized):
    """Above temperature 0 drafts are kept with the target's own p, however good the head is."""
    poor = metrics(length=1.3, alpha=0.3, acceptance_rate_per_position=(0.3, 0.05))
    cell = summarized(2, 0.8, 0.9, 1.0, metrics=poor)
    warm = replace(cell, key=with_axes(cell.key, temperature=1.0, method="medusa"))
    assert not any("mismatched" in sentence for sentence in why(warm))
    drawn = replace(cell, key=with_axes(cell.key, temperature=1.0))
    assert any("mismatched" in sentence for sentence in why(drawn))


def test_a_verification_cheaper_than_a_step_loses_nothing():
    assert losses(metrics(break_even=1.3, draft=0.05, verify=0.9), 4)["verify"] == 0


@pytest.mark.parametrize(("kept", "expected"), [(0.49, True), (0.51, False)])
def test_a_draft_is_mismatched_below_one_half(summarized, kept, expected):
    cell = summarized(2, 1.1, 1.2, 1.3, metrics={"acceptance_rate_per_position": (kept, 0.1)})
    assert any("mismatched" in line for line in why(cell)) is expected
    lookup = replace(cell, key=with_axes(cell.key, method="ngram"))
    assert not any("mismatched" in line for line in why(lookup))


@pytest.mark.parametrize(("cost", "expected"), [(0.29, False), (0.31, True)])
def test_a_draft_cost_above_0_3_steps_reports_a_too_small_target(summarized, cost, expected):
    cell = summarized(2, 1.1, 1.2, 1.3, metrics={"draft_cost_ratio": cost})
    assert any("too small" in line for line in why(cell)) is expected


def test_an_adaptive_k_has_no_bottleneck_line(summarized):
    cell = summarized(4, 1.1, 1.2, 1.3, metrics=metrics(alpha=0.7))
    assert any("-bound" in line for line in why(cell))
    assert list(why(replace(cell, key=with_axes(cell.key, adaptive=True)))) == []
