"""Round costs on the fake engine: a round at K takes 1 + 0.1 K seconds, and some are disturbed."""

import random
from dataclasses import replace
from itertools import accumulate

import pytest

from specbench.bench.blocks import Cell
from specbench.bench.round_costs import (
    FEWEST_REPETITIONS,
    MOST_REPETITIONS,
    RoundCosts,
    TimedCell,
    round_seconds,
)
from specbench.engines.engine import ServedPass
from specbench.records import RoundCost, RoundTimeline, Sampling
from specbench.tracing.trace import TargetText
from tests.bench.fakes import FakeEngine
from tests.cell_keys import BASE_KEY, with_axes

TEXTS = [
    TargetText(
        workload="code",
        prompt_id=f"p{i}",
        turn=0,
        prompt_ids=tuple(b"ask"),
        output_ids=tuple(b"abcdefgh"),
        max_new_tokens=8,
        sampling=Sampling(),
        seed=0,
    )
    for i in range(4)
]


def timed(k: int, num_rounds: float = 1e6, concurrency: int = 1) -> TimedCell:
    key = with_axes(BASE_KEY, num_speculative_tokens=k, concurrency=concurrency)
    if k:
        key = with_axes(key, pairing="demo/good", drafter="good", method="ngram")
    return TimedCell(
        cell=Cell(key=key, sampling=Sampling()),
        cell_ids=(key.id,),
        tokens_per_round=k + 1.0,
        num_rounds=num_rounds,
    )


class DisturbedEngine(FakeEngine):
    """Rounds of a pass take up to `share` longer, all alike; requests are recorded."""

    share = 0.0
    slow_start = 0  # rounds that take a second more

    def serve(self, requests, work, load) -> ServedPass:
        rng = random.Random(f"{len(self.calls)}")
        factor = 1 + self.share * rng.random()
        served = super().serve(requests, work, load)
        rounds = served.rounds
        seconds = [s * factor + (i < self.slow_start) for i, s in enumerate(rounds.seconds)]
        at_s = tuple(accumulate(seconds, initial=0.0))[:-1]
        slow = replace(rounds, at_s=at_s, seconds=tuple(seconds))
        return replace(served, rounds=slow)


def engine_of(share: float = 0.0) -> DisturbedEngine:
    engine = DisturbedEngine(loaded=["good"])
    engine.share = share
    return engine


def measure(engine: FakeEngine, cells: list[TimedCell], **options):
    return {
        cost.num_speculative_tokens: cost
        for cost in RoundCosts(engine, cells, TEXTS, seed=0, clock=engine.clock).finish(**options)
    }


def timeline(at_s, seconds, num_live) -> ServedPass:
    n = len(at_s)
    rounds = RoundTimeline(
        at_s=at_s,
        seconds=seconds,
        num_speculative_tokens=(2,) * n,
        num_live=num_live,
        num_rows=(2,) * n,
        num_emitted=(1,) * n,
    )
    return ServedPass(results=(), seconds=9.0, rounds=rounds, cpu_s=9.0)


def test_a_round_lasts_until_the_next_one_begins():
    served = timeline((0.0, 2.0, 3.5, 5.0), (1.0, 1.0, 1.0, 1.0), (2, 2, 2, 2))
    assert round_seconds(served, 2) == [2.0, 1.5, 1.5, 1.0]


def test_rounds_with_finished_rows_are_excluded_from_round_costs():
    served = timeline((0.0, 2.0, 3.5, 5.0), (1.0, 1.0, 1.0, 1.0), (2, 2, 2, 1))
    assert round_seconds(served, 2) == [2.0, 1.5, 1.5]
    assert round_seconds(timeline((0.0,), (1.0,), (2,)), 2) == [1.0]


def test_slow_first_rounds_count_as_often_as_in_a_response():
    """Rounds take 5, 3, 2 and 2 s: 4 of them 12 s, 8 of them 20, 2 of them 8, 2.5 of them 9.

    Answers of 1 and of 4 rounds take 17 s together, more than two of 2.5.
    """
    cost = RoundCost(
        cell_ids=("a",),
        num_speculative_tokens=0,
        num_rows=1,
        context=9,
        visits_s=((5.0, 3.0, 2.0, 2.0),) * 2,
    )
    assert cost.num_rounds == 8
    assert cost.seconds == 2.0
    assert cost.of_answers([4]) == pytest.approx((3.0, 3.0))
    assert cost.of_answers([8]) == pytest.approx((2.5, 2.5))
    assert cost.of_answers([2]) == pytest.approx((4.0, 4.0))
    assert cost.of_answers([2.5]) == pytest.approx((9 / 2.5,) * 2)
    assert cost.of_answers([0.5]) == pytest.approx((5.0, 5.0))
    assert cost.of_answers([1, 4]) == pytest.approx((17 / 5,) * 2)


def test_slow_first_rounds_are_part_of_the_measured_cost():
    """The first five rounds of a pass take a second more, as in an answer."""
    engine = engine_of()
    engine.slow_start = 5
    costs = measure(engine, [timed(0), timed(4)])
    assert costs[0].seconds == pytest.approx(1.0)
    assert costs[0].of_answers([64])[0] == pytest.approx((64 + 5) / 64)
    assert costs[4].of_answers([3])[0] == pytest.approx(2.4)


def test_few_timing_repetitions_suffice_on_a_quiet_machine():
    engine = engine_of()
    costs = measure(engine, [timed(0), timed(1), timed(4)])
    assert {k: cost.seconds for k, cost in costs.items()} == pytest.approx({0: 1, 1: 1.1, 4: 1.4})
    assert {len(cost.visits_s) for cost in costs.values()} == {FEWEST_REPETITIONS}
    assert {cost.context for cost in costs.values()} == {3 + 12}


def test_each_timing_repetition_runs_every_k_equally_long_in_a_new_order():
    engine = engine_of()
    measure(engine, [timed(0), timed(1), timed(4)])
    assert {call.request.max_new_tokens for call in engine.calls} == {25}
    ks = [call.k for call in engine.calls]
    visits = [tuple(ks[i : i + 3]) for i in range(0, len(ks), 3)]
    assert all(sorted(visit) == [0, 1, 4] for visit in visits)
    assert len(set(visits)) > 1


def test_k_0_is_timed_three_times_per_repetition_of_nine_ks():
    engine = engine_of()
    cells = [timed(k) for k in range(10)]
    costs = measure(engine, cells)
    ks = [call.k for call in engine.calls]
    for visit in (ks[i : i + 12] for i in range(0, len(ks), 12)):
        assert sorted(visit) == [0, 0, *range(10)]
        assert [i for i, k in enumerate(visit) if not k] == [2, 6, 10]
    assert {len(cost.visits_s[0]) for cost in costs.values() if cost.seconds == 1} == {24}


def test_a_large_k_is_timed_over_a_minimum_of_rounds():
    engine = engine_of()
    costs = measure(engine, [timed(0), timed(15)])
    assert costs[15].num_rounds >= 3 * FEWEST_REPETITIONS


def test_a_noisy_machine_is_timed_more_often():
    costs = measure(engine_of(0.2), [timed(0), timed(4)])
    assert len(costs[0].visits_s) > FEWEST_REPETITIONS
    noisy = measure(engine_of(5.0), [timed(0), timed(4)])
    assert len(noisy[0].visits_s) == MOST_REPETITIONS


def test_short_sweeps_time_costs_with_the_fewest_repetitions():
    """A sweep of 200 rounds ends before its costs would be known."""
    costs = measure(engine_of(5.0), [timed(0, 200), timed(4, 200)])
    assert len(costs[0].visits_s) == FEWEST_REPETITIONS


def test_no_second_timing_repetition_starts_if_time_is_up():
    costs = measure(engine_of(), [timed(0), timed(4)], should_continue=lambda: False)
    assert {len(cost.visits_s) for cost in costs.values()} == {1}


def test_every_row_has_its_own_text():
    engine = engine_of()
    cells = [timed(0, concurrency=3), timed(4, concurrency=3)]
    costs = measure(engine, cells)
    assert {cost.num_rows for cost in costs.values()} == {3}
    first = engine.calls[:3]
    assert len({call.request.seed for call in first}) == 3


def test_a_timed_later_turn_has_its_history_in_the_cache():
    """As in a sweep: what was read and answered is in the cache, and what is new is read."""
    first = TEXTS[0]
    second = replace(
        first,
        turn=1,
        prompt_ids=(*first.prompt_ids, *first.output_ids, *b"more"),
        prediction_ids=tuple(b"xyz"),
    )
    engine = engine_of()
    RoundCosts(engine, [timed(0), timed(4)], [second, first], seed=0, clock=engine.clock).repeat()
    opening, visit = (call.request for call in engine.calls[:2])
    assert opening.prompt_ids == (*first.prompt_ids, *first.output_ids[:-1])
    assert (opening.max_new_tokens, visit.max_new_tokens) == (1, 25)
    assert opening.conversation == visit.conversation is not None
    assert visit.prompt_ids == second.prompt_ids
    assert (opening.prediction_ids, visit.prediction_ids) == ((), tuple(b"xyz"))


def test_a_turn_without_a_known_predecessor_is_timed_without_history():
    engine = engine_of()
    texts = [TEXTS[0], replace(TEXTS[1], turn=2)]
    costs = RoundCosts(engine, [timed(0)], texts, seed=0, clock=engine.clock)
    costs.repeat()
    costs.repeat()
    assert [call.request.max_new_tokens for call in engine.calls] == [25, 25]
