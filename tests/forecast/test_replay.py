"""Rounds replayed by hand, against a backward recursion and against the metrics."""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from specbench.forecast.forecast import replay_one, serves
from specbench.metrics import acceptance
from specbench.metrics.cell import CellData
from specbench.records import RoundLog, TraceRecord
from specbench.stats.rounds import RoundCounts
from tests.cell_keys import KEY, with_axes
from tests.forecast.traces import trace
from tests.made_records import made_request

# Five tokens. Token 1 is guessed after token 0, token 3 after token 2; nothing else is.
TRACE = trace("a", [True, False, True, False], depth=3)


def random_trace(num_starts: int, k: int, rng: random.Random) -> TraceRecord:
    """Chances of all kinds, cut by the end of the text."""
    kinds = (0.0, 1.0, rng.random(), rng.random())
    chances = tuple(
        tuple(rng.choice(kinds) for _ in range(min(k, num_starts - 1 - s)))
        for s in range(num_starts)
    )
    return replace(
        TRACE,
        num_speculative_tokens=k,
        output_ids=tuple(range(num_starts + 1)),
        num_drafted=tuple(len(of_start) for of_start in chances),
        chances=chances,
    )


def recursed(trace: TraceRecord, k: int, start: int) -> list[float]:
    """Expected rounds, drafts and rounds that keep 0 .. k after a start, computed backward."""
    if start >= len(trace.chances):
        return [0.0] * (3 + k)
    total = [1.0, float(min(k, trace.num_drafted[start])), *[0.0] * (k + 1)]
    chances, reached = trace.chances[start][:k], 1.0
    for kept in range(len(chances) + 1):
        stop = 1 - chances[kept] if kept < len(chances) else 1.0
        later = recursed(trace, k, start + kept + 1)
        total = [a + reached * stop * b for a, b in zip(total, later, strict=True)]
        total[2 + kept] += reached * stop
        reached *= chances[kept] if kept < len(chances) else 0.0
    return total


def test_a_replayed_round_starts_at_the_end_of_the_previous_one():
    assert replay_one(TRACE, 3) == RoundCounts(
        num_rounds=2,
        num_drafted=4,
        num_accepted=2,
        num_emitted=4,
        num_drafting=2,
        num_rejecting=1,
        reached=(2, 2, 0, 0),
    )


@pytest.mark.parametrize(("k", "drafted", "rejecting"), [(1, 2, 0), (2, 3, 1), (3, 4, 1)])
def test_a_trace_replays_every_smaller_k(k, drafted, rejecting):
    got = replay_one(TRACE, k)

    assert (got.num_rounds, got.num_accepted, got.num_drafted) == (2, 2, drafted)
    assert got.num_rejecting == rejecting


def test_at_k_0_every_token_is_a_round():
    got = replay_one(TRACE, 0)

    assert (got.num_rounds, got.num_drafted, got.num_emitted) == (4, 0, 4)
    assert got.reached == (4,)
    assert got.acceptance_rate is None
    assert got.mean_acceptance_length == 1


def test_replayed_starts_are_weighted_by_how_often_rounds_begin():
    """Four tokens in a row are easy, and the drafter skips them in one round: uniform starts would
    see them at every second place."""
    easy_then_hard = replace(
        TRACE,
        num_speculative_tokens=4,
        output_ids=tuple(range(9)),
        num_drafted=(4, 4, 4, 4, 3, 3, 2, 1),
        chances=((1.0,) * 4, (1.0,) * 3 + (0.0,), (1.0, 1.0, 0.0), (1.0, 0.0), *[(0.0,)] * 4),
    )

    got = replay_one(easy_then_hard, 4)

    assert (got.num_rounds, got.num_accepted) == (4, 4)  # starts 0, 5, 6, 7
    uniform = 1 + (4 + 3 + 2 + 1) / 8
    assert got.mean_acceptance_length == 2.0 != uniform


def test_a_round_that_accepts_the_end_of_text_emits_no_more():
    """The sampled text ended before its budget: all three are drafted, two are in the text."""
    ended = replace(TRACE, output_ids=(1, 2, 3), num_drafted=(3, 3), chances=((1.0, 0.5), (1.0,)))

    got = replay_one(ended, 3)

    assert got.reached == (1, 1, 0.5, 0)
    assert (got.num_rounds, got.num_accepted, got.num_emitted) == (1, 1.5, 2)
    assert got.num_drafted == 3


@pytest.mark.parametrize("seed", range(20))
def test_a_replay_follows_the_joint_acceptance_chances(seed):
    rng = random.Random(seed)
    trace = random_trace(rng.randrange(1, 12), rng.randrange(1, 6), rng)
    for k in range(1, trace.num_speculative_tokens + 1):
        got = replay_one(trace, k)

        rounds, drafted, *histogram = recursed(trace, k, 0)
        assert got.num_rounds == pytest.approx(rounds)
        assert got.num_drafted == pytest.approx(drafted)
        assert got.reached == pytest.approx([sum(histogram[i:]) for i in range(k + 1)])
        assert got.num_emitted == pytest.approx(len(trace.output_ids) - 1)
        assert got.reached[0] == pytest.approx(got.num_rounds)


def test_rounds_of_several_texts_are_pooled():
    other = replace(TRACE, prompt_id="b", chances=((0.0,), (0.0,), (0.0,), ()))

    both = replay_one(TRACE, 3) + replay_one(other, 3)

    assert (both.num_rounds, both.num_accepted, both.num_drafted) == (6, 2, 10)


def test_a_tree_trace_is_replayed_only_at_its_depth_and_k_0():
    tree = replace(TRACE, is_chain=False, num_drafted=(9, 9, 4, 0))

    assert [k for k in range(5) if serves(tree, k)] == [0, 3]
    assert [k for k in range(5) if serves(TRACE, k)] == [0, 1, 2, 3]
    assert replay_one(tree, 3).num_drafted == 9 + 4
    assert replay_one(tree, 3).alpha is None
    assert replay_one(tree, 0).num_rounds == 4


def test_rounds_at_different_k_are_not_pooled():
    with pytest.raises(ValueError, match="different K"):
        replay_one(TRACE, 2) + replay_one(TRACE, 3)


def test_a_text_of_one_token_has_no_round():
    alone = replace(TRACE, output_ids=(5,), num_drafted=(), chances=())

    assert replay_one(alone, 3).num_rounds == 0
    assert replay_one(alone, 3).mean_acceptance_length is None


def cell_of(drafted: Sequence[int], accepted: Sequence[int], k: int) -> CellData:
    key = with_axes(KEY, num_speculative_tokens=k)
    log = RoundLog(
        num_drafted=tuple(drafted),
        num_accepted=tuple(accepted),
        num_emitted=tuple(a + 1 for a in accepted),
        round_s=(0.1,) * len(drafted),
    )
    request = made_request(key.id, "a", log, num_prompt_tokens=7, decode_s=1.0)
    return CellData(key=key, requests=(request,))


def test_replayed_metrics_follow_the_formulas_of_measured_ones():
    """Rounds (d, a) = (3, 3) (3, 1) (0, 0) (2, 0), one after the other."""
    drafted, accepted = (3, 3, 0, 2), (3, 1, 0, 0)
    chances: dict[int, tuple[float, ...]] = {0: (1.0,) * 3, 4: (1.0, 0.0), 6: (), 7: (0.0,)}
    trace = replace(
        TRACE,
        output_ids=tuple(range(9)),
        num_drafted=tuple({0: 3, 4: 3, 6: 0, 7: 2}.get(s, 1) for s in range(8)),
        chances=tuple(chances.get(s, (0.0,)) for s in range(8)),
    )
    got, cell = replay_one(trace, 3), cell_of(drafted, accepted, 3)

    for name in (
        "mean_acceptance_length",
        "mean_acceptance_length_when_drafted",
        "acceptance_rate",
        "acceptance_rate_per_position",
        "conditional_acceptance_rate",
        "alpha",
    ):
        assert getattr(got, name) == getattr(acceptance, name)(cell), name


def test_a_text_that_ends_inside_its_drafts_rejects_none():
    """As at an end token: the drafts continued after it."""
    text_trace = trace("p", [True, True], num_drafted=(3, 2), chances=((1.0, 1.0), (1.0,)))
    rounds = replay_one(text_trace, 3)
    assert (rounds.num_accepted, rounds.num_emitted, rounds.num_rejecting) == (2, 2, 0)
    assert rounds.alpha == 1.0
