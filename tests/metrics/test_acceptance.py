"""Rounds of the cell: d = 3 3 0 | 3 2, a = 3 1 0 | 0 2, so N = 5, sum a = 6, sum d = 11."""

from dataclasses import replace

import pytest

from specbench.metrics.acceptance import (
    VllmCounts,
    acceptance_histogram,
    acceptance_rate,
    acceptance_rate_per_position,
    alpha,
    conditional_acceptance_rate,
    mean_acceptance_length,
    mean_acceptance_length_per_request,
    mean_acceptance_length_when_drafted,
    num_draft_nodes,
    vllm_counts,
)
from specbench.metrics.cell import CellData
from specbench.metrics.registry import measure
from specbench.records import RoundLog
from tests.cell_keys import with_axes


def with_rounds(
    cell: CellData,
    drafted: tuple[int, ...],
    accepted: tuple[int, ...],
    emitted: tuple[int, ...] = (),
) -> CellData:
    log = RoundLog(
        num_drafted=drafted,
        num_accepted=accepted,
        num_emitted=emitted or tuple(a + 1 for a in accepted),
        round_s=(0.1,) * len(drafted),
    )
    return replace(cell, requests=(replace(cell.requests[0], rounds=log),))


def test_mean_acceptance_length_counts_the_extra_token_and_every_round(cell):
    assert mean_acceptance_length(cell) == pytest.approx(1 + 6 / 5)


def test_acceptance_length_per_request_is_a_mean_over_requests(cell):
    assert mean_acceptance_length_per_request(cell) == pytest.approx(
        ((1 + 4 / 3) + (1 + 2 / 2)) / 2
    )


def test_rounds_without_a_draft_count_only_in_the_headline(cell):
    assert mean_acceptance_length_when_drafted(cell) == pytest.approx(1 + 6 / 4)


def test_acceptance_rate_is_over_what_was_drafted_and_not_over_k(cell):
    assert acceptance_rate(cell) == pytest.approx(6 / 11)


def test_joint_and_conditional_rates_are_reported_per_position(cell):
    assert acceptance_rate_per_position(cell) == pytest.approx((3 / 5, 2 / 5, 1 / 5))
    assert conditional_acceptance_rate(cell) == pytest.approx((3 / 5, 2 / 3, 1 / 2))


def test_conditional_rates_end_at_the_last_reached_position(cell):
    stuck = with_rounds(cell, drafted=(3, 3), accepted=(1, 0))
    assert conditional_acceptance_rate(stuck) == (0.5, 0.0)
    assert acceptance_rate_per_position(stuck) == (0.5, 0.0, 0.0)


def test_the_histogram_sums_to_the_rounds(cell):
    assert acceptance_histogram(cell) == (2, 1, 1, 1)


def test_the_draft_nodes_are_the_most_that_a_round_drafted(cell):
    # A tree of 21: unknown to its drafter in part, whole, cut by the budget, not drafted at all.
    tree = with_rounds(cell, drafted=(15, 21, 8, 0), accepted=(1, 3, 2, 0))
    assert num_draft_nodes(tree) == 21
    assert num_draft_nodes(with_rounds(cell, drafted=(15, 8), accepted=(1, 2))) == 15
    assert num_draft_nodes(cell) == 3
    assert num_draft_nodes(with_rounds(cell, drafted=(0, 0), accepted=(0, 0))) == 0


def test_alpha_is_absent_for_a_tree(cell):
    assert alpha(with_rounds(cell, drafted=(4, 3), accepted=(1, 3))) is None


def test_alpha_counts_a_fully_accepted_short_draft_as_no_rejection(cell):
    # Rejections: a < d in (1 of 3) and (0 of 3); not in (0 of 0) and (2 of 2).
    assert alpha(cell) == pytest.approx(6 / (6 + 2))


def test_alpha_counts_an_end_of_text_inside_drafts_as_no_rejection(cell):
    """Three drafts, the second ends the text: two are accepted, and no token replaces one."""
    rounds = with_rounds(cell, drafted=(3, 3), accepted=(1, 2), emitted=(2, 2))
    assert alpha(rounds) == pytest.approx(3 / (3 + 1))


def test_alpha_is_one_when_nothing_is_rejected_and_absent_when_nothing_is_drafted(cell):
    assert alpha(with_rounds(cell, drafted=(3,), accepted=(3,))) == 1.0
    never = with_rounds(cell, drafted=(0, 0), accepted=(0, 0))
    assert alpha(never) is None
    assert acceptance_rate(never) is None
    assert mean_acceptance_length_when_drafted(never) is None
    assert mean_acceptance_length(never) == 1.0


def test_the_length_is_one_plus_the_sum_of_the_joint_rates(cell):
    rates = acceptance_rate_per_position(cell)
    assert rates is not None
    assert mean_acceptance_length(cell) == pytest.approx(1 + sum(rates))


def test_the_baseline_has_no_acceptance(baseline_cell):
    given = measure(baseline_cell)
    assert not [name for name in given if "accept" in name or name == "alpha"]
    assert "num_draft_nodes" not in given
    assert vllm_counts(baseline_cell) is None


def test_failed_requests_are_counted_but_excluded_from_metrics(cell):
    failed = replace(cell.requests[0], prompt_id="c", finish_reason="failed", error="out of memory")
    both = replace(cell, requests=(*cell.requests, failed))
    assert {**measure(both), "num_failed": 0} == measure(cell)
    assert measure(both)["num_failed"] == 1


def test_counts_are_also_reported_under_vllms_names(cell):
    assert vllm_counts(cell) == VllmCounts(
        num_spec_steps=5,
        num_draft_tokens=11,
        num_accepted_draft_tokens=6,
        acceptance_histogram=(2, 1, 1, 1),
        num_spec_tokens=3,
        mean_acceptance_length=2.2,
        draft_acceptance_rate=6 / 11,
    )


@pytest.mark.parametrize("axes", [{"adaptive": True}, {"p_min": 0.6}])
def test_rounds_that_choose_to_draft_less_have_no_conditional_rates(cell, axes):
    """A position that they did not draft was not rejected there."""
    assert conditional_acceptance_rate(replace(cell, key=with_axes(cell.key, **axes))) is None
