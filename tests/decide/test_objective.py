"""What to run for latency, throughput and cost, by hand."""

from dataclasses import replace

import pytest

from specbench.decide.objective import LIMITS, Objective, joint_recommendation, recommend_for
from specbench.decide.recommend import choose, decide
from specbench.errors import UsageError
from specbench.records import Interval
from specbench.settings.words import parse_limits
from tests.cell_keys import with_axes

LATENCY, THROUGHPUT = Objective(), Objective(name="throughput")
COST = Objective(name="cost", price_per_hour=3.6)


@pytest.fixture
def measured(summarized):
    """Cells of one workload at some rows: tokens a second of one user, of all, a speedup."""

    def cells(rows, user, every, ks, *, workload="code", ttft_s=0.1):
        found = []
        for k, (low, estimate, high) in {0: (None, 1.0, None), **ks}.items():
            cell = summarized(
                k,
                low,
                estimate,
                high,
                workload=workload,
                metrics={
                    "tpot_s": 1 / (user * estimate),
                    "ttft_s": ttft_s,
                    "decode_tokens_per_s": every * estimate,
                    "busy_tokens_per_s": every * estimate,
                },
            )
            found.append(replace(cell, key=with_axes(cell.key, concurrency=rows)))
        return found

    return cells


def decided(cells):
    """The decisions of single K, which need no second measurement."""
    groups = {}
    for cell in cells:
        if cell.key.draft.k:
            groups.setdefault(
                (cell.key.condition.workload, cell.key.condition.concurrency), []
            ).append(cell)
    return [decide(choose(group)) for group in groups.values()]


def best(cells, objective):
    (one,) = recommend_for(cells, decided(cells), objective)
    return one.best and (one.best.key.condition.concurrency, one.best.key.draft.k)


def test_latency_takes_the_fewest_rows_and_throughput_the_most_tokens(measured):
    cells = [
        *measured(1, 100, 100, {4: (1.8, 2.0, 2.2)}),
        *measured(16, 50, 800, {4: (1.1, 1.2, 1.3)}),
    ]
    assert best(cells, LATENCY) == (1, 4)
    assert best(cells, THROUGHPUT) == (16, 4)
    assert best(cells, COST) == (16, 4)


def test_k_0_wins_if_speculation_gains_nothing_at_the_best_throughput(measured):
    cells = [
        *measured(1, 100, 100, {4: (1.8, 2.0, 2.2)}),
        *measured(64, 40, 2560, {4: (0.6, 0.7, 0.8)}),
    ]
    assert best(cells, THROUGHPUT) == (64, 0)


def test_an_undecided_speedup_is_no_candidate(measured):
    cells = measured(1, 100, 100, {4: (0.9, 1.5, 2.5)})
    assert best(cells, LATENCY) == (1, 0)


def test_configurations_beyond_a_limit_are_excluded_with_the_excess(measured):
    cells = [
        *measured(1, 100, 100, {4: (1.8, 2.0, 2.2)}),
        *measured(16, 20, 320, {4: (1.1, 1.2, 1.3)}),
    ]
    limited = replace(THROUGHPUT, limits=parse_limits("tpot=8ms", LIMITS))
    (one,) = recommend_for(cells, decided(cells), limited)
    assert (one.best.key.condition.concurrency, one.best.key.draft.k) == (1, 4)
    broken = {(c.key.condition.concurrency, c.key.draft.k): c.broken for c in one.candidates}
    assert broken[16, 4] == ("tpot 41.7 ms, above 8 ms",)
    assert broken[1, 0] == ("tpot 10 ms, above 8 ms",)
    assert best(cells, replace(THROUGHPUT, limits=parse_limits("tpot=1ms", LIMITS))) is None
    not_known = parse_limits("queue=1s", LIMITS)
    assert best(cells, replace(THROUGHPUT, limits=not_known)) is None


def test_cost_is_the_price_per_million_tokens(measured):
    cells = measured(1, 100, 100, {4: (1.9, 2.0, 2.1)})
    (one,) = recommend_for(cells, decided(cells), COST)
    # 3.6 an hour is 0.001 a second; 200 tokens a second: 5,000 seconds a million.
    assert one.best.value == pytest.approx(5.0)
    assert one.candidates[-1].value == pytest.approx(10.0)


def test_configurations_tied_within_1_percent_go_to_k_0(measured):
    cells = measured(1, 100, 100, {4: (1.0101, 1.05, 1.1)})
    assert best(cells, LATENCY) == (1, 4)
    equal = [*measured(1, 100, 100, {}), *measured(2, 60, 100.5, {})]
    assert best(equal, THROUGHPUT) == (1, 0)


def test_the_shared_configuration_minimizes_the_largest_regret(measured):
    cells = [
        *measured(1, 100, 100, {2: (1.4, 1.5, 1.6), 8: (1.1, 1.2, 1.3)}, workload="chat"),
        *measured(1, 100, 100, {2: (1.7, 1.8, 1.9), 8: (2.2, 2.4, 2.6)}, workload="code"),
    ]
    picks = recommend_for(cells, [], LATENCY)
    shared = joint_recommendation(picks)
    # K = 8 gives up 20 % on chat, K = 2 25 % on code.
    assert shared.key.draft.k == 8
    assert shared.regret == pytest.approx({"chat": 0.2, "code": 0.0})
    assert joint_recommendation(picks[:1]) is None


def test_a_workloads_own_configuration_has_no_regret(measured):
    # On chat K = 7 is the answer, by its lower bound; K = 8 has the higher estimate.
    cells = [
        *measured(1, 100, 100, {7: (1.30, 1.38, 1.46), 8: (1.05, 1.48, 2.08)}, workload="chat"),
        *measured(1, 100, 100, {7: (1.9, 2.0, 2.1), 8: (1.4, 1.5, 1.6)}, workload="code"),
    ]
    by_workload = (cells[:3], cells[3:])
    decisions = [decide(choose(own), choose(own).leader) for own in by_workload]
    shared = joint_recommendation(recommend_for(cells, decisions, LATENCY))
    assert shared.key.draft.k == 7
    assert shared.regret == {"chat": 0.0, "code": 0.0}
    assert shared.best_by_workload == {}


def test_no_joint_recommendation_if_a_limit_fails_in_one_workload(measured):
    cells = [
        *measured(1, 100, 100, {}, workload="chat", ttft_s=2.0),
        *measured(1, 100, 100, {}, workload="code"),
    ]
    limited = replace(LATENCY, limits=parse_limits("ttft=1s", LIMITS))
    assert joint_recommendation(recommend_for(cells, [], limited)) is None


def test_k_0_is_joint_only_if_every_answer_ran_in_every_workload(measured):
    chat = measured(1, 100, 100, {7: (1.9, 2.0, 2.1)}, workload="chat")
    code = measured(1, 100, 100, {5: (2.2, 2.4, 2.6)}, workload="code")
    decisions = [decide(choose(own), choose(own).leader) for own in (chat, code)]
    assert joint_recommendation(recommend_for([*chat, *code], decisions, LATENCY)) is None


def test_limits_are_read_with_their_units():
    read = parse_limits("tpot=30ms, ttft=0.5s,tpot_p95=900us", LIMITS)
    assert read == pytest.approx({"tpot_s": 0.03, "ttft_s": 0.5, "tpot_s_p95": 0.0009})


@pytest.mark.parametrize("text", ["tpot", "tpot=30", "speed=3ms", "tpot=-1ms", ""])
def test_a_malformed_limit_is_refused_with_the_allowed_names(text):
    with pytest.raises(UsageError, match="ttft, tpot, request_latency"):
        parse_limits(text, LIMITS)


def test_a_limit_given_twice_is_refused():
    with pytest.raises(UsageError, match="tpot twice"):
        parse_limits("tpot=30ms,ttft=1s,tpot=20ms", LIMITS)
    assert len(parse_limits("tpot=30ms,tpot_p95=50ms", LIMITS)) == 2


def test_the_arrival_rate_fixes_the_throughput_in_open_loop(measured):
    cells = [
        replace(cell, key=with_axes(cell.key, request_rate=2.0))
        for cell in measured(8, 50, 100, {4: (1.4, 1.5, 1.6)})
    ]
    (one,) = recommend_for(cells, decided(cells), THROUGHPUT)
    assert {candidate.rate for candidate in one.candidates} == {100.0}
    assert one.best.key.draft.k == 0
    (one,) = recommend_for(cells, decided(cells), LATENCY)
    assert one.best.key.draft.k == 4


def test_throughput_at_concurrency_1_includes_prefill(measured):
    """100 tokens a second while decoding are 60 over whole requests, of which the drafter's
    prefill takes a part, too."""
    one, two = measured(1, 100, 100, {4: (1.8, 2.0, 2.2)}), measured(2, 60, 80, {})
    base, spec = (
        replace(cell, metrics={**cell.metrics, "end_to_end_tokens_per_s": rate})
        for cell, rate in zip(one, (60.0, 75.0), strict=True)
    )
    spec = replace(spec, speedup_end_to_end=Interval(estimate=1.25, low=1.2, high=1.3))
    cells = [base, spec, *two]
    (found,) = recommend_for(cells, decided(cells), THROUGHPUT)
    rates = {(c.key.condition.concurrency, c.key.draft.k): c.rate for c in found.candidates}
    assert rates == pytest.approx({(1, 0): 60, (1, 4): 75, (2, 0): 80})
    assert found.best.key.condition.concurrency == 2
    (found,) = recommend_for(cells, decided(cells), LATENCY)  # one user's seconds a token have none
    assert 1 / found.best.value == pytest.approx(200)


def test_joint_latency_is_compared_at_the_lowest_concurrency(measured):
    cells = [
        cell
        for workload in ("chat", "code")
        for rows, user in ((1, 100), (4, 120))
        for cell in measured(rows, user, 100, {4: (1.4, 1.5, 1.6)}, workload=workload)
    ]
    shared = joint_recommendation(recommend_for(cells, decided(cells), LATENCY))
    assert (shared.key.condition.concurrency, shared.key.draft.k) == (1, 4)
    assert shared.regret == pytest.approx({"chat": 0.0, "code": 0.0})
