"""The configuration for latency, throughput and cost, and where the answer changes, by hand."""

import math
from dataclasses import replace

import pytest

from specbench.decide.objective import LIMITS, Objective, joint_recommendation, recommend_for
from specbench.decide.recommend import choose, decide
from specbench.errors import UsageError
from specbench.records import Interval, Kind
from specbench.settings.words import parse_limits
from tests.cell_keys import with_axes
from tests.decide.conftest import decided, rated

LATENCY, THROUGHPUT = Objective(), Objective(name="throughput")
COST = Objective(name="cost", price_per_hour=3.6)


def best(cells, objective):
    (pick,) = recommend_for(cells, decided(cells), objective)
    return pick.best and (pick.best.key.condition.concurrency, pick.best.key.draft.k)


def test_latency_takes_the_fewest_rows_and_throughput_the_most_tokens():
    cells = [
        *rated(1, 100, 100, {4: (1.8, 2.0, 2.2)}),
        *rated(16, 50, 800, {4: (1.1, 1.2, 1.3)}),
    ]
    assert best(cells, LATENCY) == (1, 4)
    assert best(cells, THROUGHPUT) == (16, 4)
    assert best(cells, COST) == (16, 4)


def test_k_0_wins_if_speculation_gains_nothing_at_the_best_throughput():
    cells = [
        *rated(1, 100, 100, {4: (1.8, 2.0, 2.2)}),
        *rated(64, 40, 2560, {4: (0.6, 0.7, 0.8)}),
    ]
    assert best(cells, THROUGHPUT) == (64, 0)


def test_an_undecided_speedup_is_no_candidate():
    cells = rated(1, 100, 100, {4: (0.9, 1.5, 2.5)})
    assert best(cells, LATENCY) == (1, 0)


def test_configurations_beyond_a_limit_are_excluded_with_the_excess():
    cells = [
        *rated(1, 100, 100, {4: (1.8, 2.0, 2.2)}),
        *rated(16, 20, 320, {4: (1.1, 1.2, 1.3)}),
    ]
    limited = replace(THROUGHPUT, limits=parse_limits("tpot=8ms", LIMITS))
    (pick,) = recommend_for(cells, decided(cells), limited)
    assert (pick.best.key.condition.concurrency, pick.best.key.draft.k) == (1, 4)
    broken = {(c.key.condition.concurrency, c.key.draft.k): c.broken for c in pick.candidates}
    slow = Kind.OVER_LIMIT(limit="tpot", seconds=pytest.approx(1 / 24), most=0.008)
    assert broken[16, 4] == (slow,)
    plain = Kind.OVER_LIMIT(limit="tpot", seconds=pytest.approx(0.01), most=0.008)
    assert broken[1, 0] == (plain,)
    assert best(cells, replace(THROUGHPUT, limits=parse_limits("tpot=1ms", LIMITS))) is None
    not_known = parse_limits("queue=1s", LIMITS)
    assert best(cells, replace(THROUGHPUT, limits=not_known)) is None


def test_if_none_meets_the_limits_the_closest_is_first():
    """`rough` is the faster one, but its lower bound is below that of `even`."""
    cells = [
        *rated(1, 100, 100, {4: (1.1, 3.0, 8.0)}, drafter="rough"),
        *rated(1, 100, 100, {4: (1.25, 1.3, 1.35)}, drafter="even")[1:],
    ]
    limits = parse_limits("tpot=1ms,ttft=1s", LIMITS)
    (pick,) = recommend_for(cells, decided(cells), replace(LATENCY, limits=limits))
    assert pick.best is None
    assert [c.key.draft.drafter for c in pick.candidates] == ["rough", "even", "none"]
    (limit,) = pick.candidates[0].broken
    seconds = pytest.approx(pick.candidates[0].value)
    assert limit == Kind.OVER_LIMIT(limit="tpot", seconds=seconds, most=0.001)
    assert pick.candidates[0].excess == pytest.approx(10 / 3)


def test_cost_is_the_price_per_million_tokens():
    cells = rated(1, 100, 100, {4: (1.9, 2.0, 2.1)})
    (pick,) = recommend_for(cells, decided(cells), COST)
    # 3.6 per hour is 0.001 per second; 200 tokens per second: 5,000 seconds per million.
    assert pick.best.value == pytest.approx(5.0)
    assert pick.candidates[-1].value == pytest.approx(10.0)


def test_configurations_tied_within_1_percent_go_to_k_0():
    cells = rated(1, 100, 100, {4: (1.0101, 1.05, 1.1)})
    assert best(cells, LATENCY) == (1, 4)
    equal = [*rated(1, 100, 100, {}), *rated(2, 60, 100.5, {})]
    assert best(equal, THROUGHPUT) == (1, 0)


def test_the_shared_configuration_minimizes_the_largest_regret():
    cells = [
        *rated(1, 100, 100, {2: (1.4, 1.5, 1.6), 8: (1.1, 1.2, 1.3)}, workload="chat"),
        *rated(1, 100, 100, {2: (1.7, 1.8, 1.9), 8: (2.2, 2.4, 2.6)}, workload="code"),
    ]
    picks = recommend_for(cells, [], LATENCY)
    shared = joint_recommendation(picks)
    # K = 8 loses 20% on chat, K = 2 loses 25% on code.
    assert shared.key.draft.k == 8
    assert shared.regret == pytest.approx({"chat": 0.2, "code": 0.0})
    assert joint_recommendation(picks[:1]) is None


def test_a_workloads_own_configuration_has_no_regret():
    # On chat K = 7 is the answer, which ties with K = 8 within 1%.
    cells = [
        *rated(1, 100, 100, {7: (1.05, 1.47, 2.06), 8: (1.40, 1.48, 1.56)}, workload="chat"),
        *rated(1, 100, 100, {7: (1.9, 2.0, 2.1), 8: (1.4, 1.5, 1.6)}, workload="code"),
    ]
    by_workload = (cells[:3], cells[3:])
    decisions = [decide(choose(part), choose(part).leader) for part in by_workload]
    shared = joint_recommendation(recommend_for(cells, decisions, LATENCY))
    assert shared.key.draft.k == 7
    assert shared.regret == {"chat": 0.0, "code": 0.0}
    assert shared.best_by_workload == {}


def test_a_k_that_was_decided_against_is_compared_by_its_decision():
    """On code K = 4 looks best, but the confirmation run has it at 0.87x."""
    chat = rated(1, 100, 100, {2: (1.2, 1.3, 1.4), 4: (1.7, 1.8, 1.9)}, workload="chat")
    code = rated(1, 100, 100, {2: (0.7, 0.8, 0.9), 4: (1.4, 1.5, 1.6)}, workload="code")
    confirmed = replace(code[2], speedup=Interval(estimate=0.87, low=0.85, high=0.9))
    decisions = [decide(choose(chat), chat[2]), decide(choose(code), confirmed)]
    shared = joint_recommendation(recommend_for([*chat, *code], decisions, LATENCY))
    assert shared.key.draft.k == 4
    assert shared.regret == pytest.approx({"chat": 0.0, "code": 0.13})


def test_no_joint_recommendation_if_a_limit_fails_in_one_workload():
    cells = [
        *rated(1, 100, 100, {}, workload="chat", ttft_s=2.0),
        *rated(1, 100, 100, {}, workload="code"),
    ]
    limited = replace(LATENCY, limits=parse_limits("ttft=1s", LIMITS))
    assert joint_recommendation(recommend_for(cells, [], limited)) is None


def test_k_0_is_joint_only_if_every_answer_ran_in_every_workload():
    chat = rated(1, 100, 100, {7: (1.9, 2.0, 2.1)}, workload="chat")
    code = rated(1, 100, 100, {5: (2.2, 2.4, 2.6)}, workload="code")
    decisions = [decide(choose(part), choose(part).leader) for part in (chat, code)]
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


def test_the_arrival_rate_fixes_the_throughput_in_open_loop():
    cells = [
        replace(cell, key=with_axes(cell.key, request_rate=2.0))
        for cell in rated(8, 50, 100, {4: (1.4, 1.5, 1.6)})
    ]
    (pick,) = recommend_for(cells, decided(cells), THROUGHPUT)
    assert {candidate.rate for candidate in pick.candidates} == {100.0}
    assert pick.best.key.draft.k == 0
    (pick,) = recommend_for(cells, decided(cells), LATENCY)
    assert pick.best.key.draft.k == 4


def test_throughput_at_concurrency_1_includes_prefill():
    """100 tokens per second while decoding are 60 over whole requests, which also include the
    drafter's prefill."""
    first, second = rated(1, 100, 100, {4: (1.8, 2.0, 2.2)}), rated(2, 60, 80, {})
    base, spec = (
        replace(cell, metrics={**cell.metrics, "end_to_end_tokens_per_s": rate})
        for cell, rate in zip(first, (60.0, 75.0), strict=True)
    )
    spec = replace(spec, speedup_end_to_end=Interval(estimate=1.25, low=1.2, high=1.3))
    cells = [base, spec, *second]
    (pick,) = recommend_for(cells, decided(cells), THROUGHPUT)
    rates = {(c.key.condition.concurrency, c.key.draft.k): c.rate for c in pick.candidates}
    assert rates == pytest.approx({(1, 0): 60, (1, 4): 75, (2, 0): 80})
    assert pick.best.key.condition.concurrency == 2
    (pick,) = recommend_for(cells, decided(cells), LATENCY)  # seconds per token exclude it
    assert 1 / pick.best.value == pytest.approx(200)


def test_joint_latency_is_compared_at_the_lowest_concurrency():
    cells = [
        cell
        for workload in ("chat", "code")
        for rows, user in ((1, 100), (4, 120))
        for cell in rated(rows, user, 100, {4: (1.4, 1.5, 1.6)}, workload=workload)
    ]
    shared = joint_recommendation(recommend_for(cells, decided(cells), LATENCY))
    assert (shared.key.condition.concurrency, shared.key.draft.k) == (1, 4)
    assert shared.regret == pytest.approx({"chat": 0.0, "code": 0.0})


def test_latency_is_compared_only_at_the_lowest_concurrency():
    """Two rows that are faster for one user by chance."""
    cells = [*rated(1, 100, 100, {}), *rated(2, 120, 240, {4: (1.4, 1.5, 1.6)})]
    assert best(cells, LATENCY) == (1, 0)


def test_the_best_estimate_wins_and_names_what_it_is_not_shown_to_beat():
    sure = rated(1, 100, 100, {4: (1.6, 1.7, 1.8)}, drafter="sure")
    bold = rated(1, 100, 100, {4: (1.2, 2.0, 3.3)}, drafter="bold")[1:]
    worse = rated(1, 100, 100, {4: (1.05, 1.1, 1.15)}, drafter="worse")[1:]
    cells = [*sure, *bold, *worse]
    (pick,) = recommend_for(cells, decided(cells), LATENCY)
    assert pick.best.key.draft.drafter == "bold"
    assert [key.draft.drafter for key in pick.tied] == ["sure"]


def test_levels_of_concurrency_within_their_margins_are_tied():
    rates = {1: 100.0, 4: 110.0, 8: 90.0, 16: 60.0}
    cells = [
        replace(cell, speed_margin=0.1)
        for concurrency, rate in rates.items()
        for cell in rated(concurrency, rate, rate, {})
    ]
    (pick,) = recommend_for(cells, [], THROUGHPUT)
    # log(1.1) and log(110 / 90) against hypot(log 1.1, log 1.1) = 0.135.
    assert pick.best.key.condition.concurrency == 4
    assert [key.condition.concurrency for key in pick.tied] == [1]
    assert pick.best.cautious_rate == pytest.approx(110 / 1.1)
    assert pick.best.highest_rate == pytest.approx(110 * 1.1)


@pytest.mark.parametrize(
    ("margins", "gap", "is_tied"),
    [((0.3, 0.4), 0.45, True), ((0.3, 0.4), 0.55, False), ((0.0, 0.0), 0.0, True)],
)
def test_a_tie_is_a_gap_within_the_margins_of_both_rates(margins, gap, is_tied):
    """Log rates that differ by `gap`; together, margins of 0.3 and 0.4 are 0.5."""
    cells = [
        replace(rated(rows, rate, rate, {})[0], speed_margin=math.expm1(margin))
        for rows, rate, margin in zip((1, 2), (100, 100 * math.exp(-gap)), margins, strict=True)
    ]
    (pick,) = recommend_for(cells, [], THROUGHPUT)
    assert pick.best.key.condition.concurrency == 1
    assert bool(pick.tied) is is_tied


@pytest.mark.parametrize(("of_plain", "whole"), [(None, 0.3), (math.expm1(0.4), 0.5)])
def test_the_margin_of_drafting_is_that_of_its_speedup_and_of_k_0(of_plain, whole):
    plain, drafting = rated(1, 100, 100, {4: (2 * math.exp(-0.3), 2.0, 2 * math.exp(0.3))})
    cells = [replace(plain, speed_margin=of_plain), drafting]
    (pick,) = recommend_for(cells, decided(cells), LATENCY)
    assert pick.best.rate == pytest.approx(200)
    assert pick.best.cautious_rate == pytest.approx(200 * math.exp(-whole))
    assert pick.best.highest_rate == pytest.approx(200 * math.exp(whole))


def test_with_equal_rates_the_smaller_batch_precedes_the_smaller_k():
    few = rated(2, 50, 100, {8: (1.5, 1.6, 1.7)})
    many = rated(4, 25, 100, {2: (1.5, 1.6, 1.7)})
    assert best([*few, *many], THROUGHPUT) == (2, 8)


def test_throughput_counts_the_time_with_all_requests_active():
    cells = rated(4, 25, 100, {})
    (pick,) = recommend_for(cells, [], THROUGHPUT)
    assert pick.best.value == 100


def test_a_limit_that_is_exactly_reached_is_met():
    cells = rated(1, 100, 100, {})
    (pick,) = recommend_for(cells, [], replace(LATENCY, limits=parse_limits("ttft=100ms", LIMITS)))
    assert pick.best is not None


def test_an_invalid_cell_is_no_candidate():
    cells = rated(1, 100, 100, {4: (1.8, 2.0, 2.2)})
    bad = replace(cells[1], valid=False, invalid_reasons=(Kind.GPU_SHARED(shared=1, requests=1),))
    (pick,) = recommend_for([cells[0], bad], [], LATENCY)
    assert [way.key.draft.k for way in pick.options] == [0]


def test_joint_recommendations_tied_within_1_percent_take_the_smaller_k():
    cells = [
        cell
        for workload in ("chat", "code")
        for cell in rated(
            1, 100, 100, {2: (1.4, 1.495, 1.6), 8: (1.4, 1.5, 1.6)}, workload=workload
        )
    ]
    shared = joint_recommendation(recommend_for(cells, [], LATENCY))
    assert shared.key.draft.k == 2


@pytest.mark.parametrize(("again", "broken"), [(2.0, True), (2.5, False)])
def test_a_limit_on_tpot_is_compared_with_the_confirmation_run(again, broken):
    """The first pass has 4.4 ms at 2.2x; the confirmation run, which is quoted, another speedup."""
    cells = rated(1, 100, 100, {4: (2.1, 2.2, 2.3)})
    cells[1] = replace(cells[1], metrics={**cells[1].metrics, "tpot_s": 0.0044})
    winner = replace(cells[1], speedup=Interval(estimate=again, low=again - 0.1, high=again + 0.1))
    limit = replace(LATENCY, limits=parse_limits("tpot=4.5ms", LIMITS))
    (pick,) = recommend_for(cells, [decide(choose(cells[1:]), winner)], limit)
    (way,) = (c for c in pick.candidates if c.key.draft.k)
    assert bool(way.broken) is broken


@pytest.mark.parametrize(("objective", "broken"), [(LATENCY, False), (THROUGHPUT, True)])
def test_a_limit_on_tpot_is_compared_with_the_shown_time(objective, broken):
    """The cell's requests took 6 ms per token over other prompts than K = 0, which took 10."""
    cells = rated(1, 100, 100, {4: (2.4, 2.5, 2.6)})
    cells[1] = replace(cells[1], metrics={**cells[1].metrics, "tpot_s": 0.006})
    limit = replace(objective, limits=parse_limits("tpot=4.5ms", LIMITS))
    (pick,) = recommend_for(cells, [decide(choose(cells[1:]), cells[1])], limit)
    (way,) = (c for c in pick.candidates if c.key.draft.k)
    assert bool(way.broken) is broken


@pytest.mark.parametrize(
    ("objective", "limit", "seconds"),
    [(THROUGHPUT, "tpot", 0.005), (LATENCY, "tpot_p95", 0.005), (THROUGHPUT, "ttft", 0.004)],
)
def test_times_per_token_are_at_the_pace_of_the_confirmation_run(objective, limit, seconds):
    """The first pass has 4 ms at 2.5x; the confirmation run has 2x. Prefill keeps its time."""
    cells = rated(1, 100, 100, {4: (2.4, 2.5, 2.6)})
    times = dict.fromkeys(("tpot_s", "tpot_s_p95", "ttft_s"), 0.004)
    cells[1] = replace(cells[1], metrics={**cells[1].metrics, **times})
    winner = replace(cells[1], speedup=Interval(estimate=2.0, low=1.9, high=2.1))
    limited = replace(objective, limits=parse_limits(f"{limit}=1ms", LIMITS))
    (pick,) = recommend_for(cells, [decide(choose(cells[1:]), winner)], limited)
    (way,) = (c for c in pick.candidates if c.key.draft.k)
    expected = Kind.OVER_LIMIT(limit=limit, seconds=pytest.approx(seconds), most=0.001)
    assert way.broken == (expected,)


def with_lossy(lossless, lossy, workload="code"):
    """Two drafters with these speedups; `bold` changes the text."""
    first, other = (
        rated(1, 100, 100, {4: (x - 0.05, x, x + 0.05)}, drafter=name, workload=workload)
        for name, x in (("draft", lossless), ("bold", lossy))
    )
    return [*first, replace(other[1], key=with_axes(other[1].key, lossy="typical"))]


@pytest.mark.parametrize(
    ("lossless", "lossy", "chosen"), [(1.5, 2.5, "draft"), (0.9, 2.5, "bold"), (0.9, 0.8, "none")]
)
def test_a_lossy_drafter_is_recommended_only_if_no_lossless_one_helps(lossless, lossy, chosen):
    cells = with_lossy(lossless, lossy)
    (pick,) = recommend_for(cells, decided(cells), LATENCY)
    assert pick.best.key.draft.drafter == chosen


def test_a_lossy_drafter_is_never_the_joint_recommendation():
    cells = [*with_lossy(1.5, 2.5, "chat"), *with_lossy(1.5, 2.5)]
    shared = joint_recommendation(recommend_for(cells, decided(cells), LATENCY))
    assert shared.key.draft.drafter == "draft"
    assert shared.regret == pytest.approx({"chat": 0.0, "code": 0.0})


@pytest.mark.parametrize("name", ["latency", "throughput", "cost"])
def test_a_pruned_k_is_no_candidate(name):
    price = {"price_per_hour": 1.0} if name == "cost" else {}
    cells = rated(1, 100, 100, {4: (1.4, 1.5, 1.6), 8: (None, 3.0, None)})

    drafting = [c for c in cells if c.key.draft.k]
    (pick,) = recommend_for(
        cells, [decide(choose(drafting), drafting[0])], Objective(name=name, **price)
    )
    assert 8 not in {way.key.draft.k for way in pick.options}
