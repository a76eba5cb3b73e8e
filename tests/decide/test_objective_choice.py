"""Where `recommend` and its reasons turn, by hand."""

from dataclasses import replace

import pytest

from specbench.decide.explanation import losses, why
from specbench.decide.objective import LIMITS, Objective, joint_recommendation, recommend_for
from specbench.decide.recommend import choose, decide
from specbench.records import Interval
from specbench.settings.words import parse_limits
from tests.cell_keys import with_axes
from tests.decide.conftest import summary

LATENCY, THROUGHPUT = Objective(), Objective(name="throughput")


def cells(rows, user, every, ks, *, drafter="draft", workload="code"):
    """K = 0 and other K at some rows: tokens a second of one user and of all, speedups."""
    found = []
    for k, (low, estimate, high) in {0: (None, 1.0, None), **ks}.items():
        metrics = {"tpot_s": 1 / (user * estimate), "ttft_s": 0.1, "busy_tokens_per_s": every}
        metrics |= {"aggregate_tokens_per_s": every / 2, "decode_tokens_per_s": every}
        cell = summary(k, low, estimate, high, workload=workload, metrics=metrics)
        key = with_axes(cell.key, concurrency=rows)
        if k:
            key = with_axes(key, drafter=drafter, pairing=f"demo/{drafter}")
        found.append(replace(cell, key=key))
    return found


def best(found, objective):
    groups = {}
    for cell in found:
        if cell.key.draft.k:
            groups.setdefault((cell.key.pairing, cell.key.condition.concurrency), []).append(cell)
    (one,) = recommend_for(found, [decide(choose(group)) for group in groups.values()], objective)
    key = one.best.key
    return key.draft.drafter, key.condition.concurrency, key.draft.k


def test_latency_is_compared_only_at_the_lowest_concurrency():
    """Two rows that came out faster for one user are an accident."""
    found = [*cells(1, 100, 100, {}), *cells(2, 120, 240, {4: (1.4, 1.5, 1.6)})]
    assert best(found, LATENCY) == ("none", 1, 0)


def test_the_lower_bound_wins_and_not_the_estimate():
    sure = cells(1, 100, 100, {4: (1.6, 1.7, 1.8)}, drafter="sure")
    bold = cells(1, 100, 100, {4: (1.2, 2.0, 3.3)}, drafter="bold")[1:]
    assert best([*sure, *bold], LATENCY) == ("sure", 1, 4)


def test_with_equal_rates_the_smaller_batch_precedes_the_smaller_k():
    few = cells(2, 50, 100, {8: (1.5, 1.6, 1.7)})
    many = cells(4, 25, 100, {2: (1.5, 1.6, 1.7)})
    assert best([*few, *many], THROUGHPUT) == ("draft", 2, 8)


def test_throughput_counts_the_time_with_all_requests_active():
    found = cells(4, 25, 100, {})
    (one,) = recommend_for(found, [], THROUGHPUT)
    assert one.best.value == 100


def test_a_limit_that_is_exactly_reached_is_met():
    found = cells(1, 100, 100, {})
    (one,) = recommend_for(found, [], replace(LATENCY, limits=parse_limits("ttft=100ms", LIMITS)))
    assert one.best is not None


def test_an_invalid_cell_is_no_candidate():
    found = cells(1, 100, 100, {4: (1.8, 2.0, 2.2)})
    bad = replace(found[1], valid=False, invalid_reasons=("throttled",))
    (one,) = recommend_for([found[0], bad], [], LATENCY)
    assert [way.key.draft.k for way in one.options] == [0]


def test_joint_recommendations_tied_within_1_percent_take_the_smaller_k():
    found = [
        cell
        for workload in ("chat", "code")
        for cell in cells(
            1, 100, 100, {2: (1.4, 1.495, 1.6), 8: (1.4, 1.5, 1.6)}, workload=workload
        )
    ]
    shared = joint_recommendation(recommend_for(found, [], LATENCY))
    assert shared.key.draft.k == 2


def test_a_verification_cheaper_than_a_step_loses_nothing():
    found = losses(
        {
            "mean_acceptance_length": 3.0,
            "break_even_length": 1.3,
            "draft_cost_ratio": 0.05,
            "verify_cost_ratio": 0.9,
        },
        4,
    )
    assert found.verify == 0


@pytest.mark.parametrize(("kept", "said"), [(0.49, True), (0.51, False)])
def test_a_draft_is_mismatched_below_one_half(kept, said):
    cell = summary(2, 1.1, 1.2, 1.3, metrics={"acceptance_rate_per_position": (kept, 0.1)})
    assert any("mismatched" in line for line in why(cell)) is said
    lookup = replace(cell, key=with_axes(cell.key, method="ngram"))
    assert not any("mismatched" in line for line in why(lookup))


@pytest.mark.parametrize(("cost", "said"), [(0.29, False), (0.31, True)])
def test_a_draft_cost_above_0_3_steps_reports_a_too_small_target(cost, said):
    cell = summary(2, 1.1, 1.2, 1.3, metrics={"draft_cost_ratio": cost})
    assert any("too small" in line for line in why(cell)) is said


def test_an_adaptive_k_has_no_bottleneck_line():
    metrics = {
        "mean_acceptance_length": 3.0,
        "break_even_length": 2.0,
        "draft_cost_ratio": 0.1,
        "verify_cost_ratio": 1.4,
        "alpha": 0.7,
    }
    cell = summary(4, 1.1, 1.2, 1.3, metrics=metrics)
    assert any("-bound" in line for line in why(cell))
    assert list(why(replace(cell, key=with_axes(cell.key, adaptive=True)))) == []


@pytest.mark.parametrize(("again", "broken"), [(2.0, True), (2.5, False)])
def test_a_limit_on_tpot_is_compared_with_the_confirmation_run(again, broken):
    """The first pass says 4.4 ms at 2.2x; the second one, which is quoted, another speedup."""
    found = cells(1, 100, 100, {4: (2.1, 2.2, 2.3)})
    found[1] = replace(found[1], metrics={**found[1].metrics, "tpot_s": 0.0044})
    winner = replace(found[1], speedup=Interval(estimate=again, low=again - 0.1, high=again + 0.1))
    limit = replace(LATENCY, limits=parse_limits("tpot=4.5ms", LIMITS))
    (one,) = recommend_for(found, [decide(choose(found[1:]), winner)], limit)
    (way,) = (c for c in one.candidates if c.key.draft.k)
    assert bool(way.broken) is broken


@pytest.mark.parametrize(("objective", "broken"), [(LATENCY, False), (THROUGHPUT, True)])
def test_a_limit_on_tpot_is_compared_with_the_shown_time(objective, broken):
    """Its own requests took 6 ms a token: of other prompts than those of K = 0, which took 10."""
    found = cells(1, 100, 100, {4: (2.4, 2.5, 2.6)})
    found[1] = replace(found[1], metrics={**found[1].metrics, "tpot_s": 0.006})
    limit = replace(objective, limits=parse_limits("tpot=4.5ms", LIMITS))
    (one,) = recommend_for(found, [decide(choose(found[1:]), found[1])], limit)
    (way,) = (c for c in one.candidates if c.key.draft.k)
    assert bool(way.broken) is broken
