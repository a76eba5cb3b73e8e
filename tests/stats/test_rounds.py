"""The acceptance formulas by hand, by identities, and against counting rounds one by one."""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest

from specbench.stats.rounds import (
    RoundCounts,
    break_even_acceptance,
    bytes_per_forward,
    conditional_rates,
    expected_tokens_by_k,
    expected_tokens_iid,
    joint_rates,
    mean_length,
    mean_length_from_rates,
    roofline_s,
)

SEEDS = range(300)


class Rounds(NamedTuple):
    drafted: list[int]
    accepted: list[int]
    emitted: list[int]
    k: int

    @property
    def counts(self) -> RoundCounts:
        return RoundCounts.of_rounds(*self)


def drawn(seed: int) -> Rounds:
    """Rounds of a chain: short drafts and none, and texts that end inside their drafts."""
    rng = np.random.default_rng(seed)
    k, n = int(rng.integers(1, 9)), int(rng.integers(1, 40))
    drafted = rng.integers(0, k + 1, n)
    accepted = np.minimum(rng.geometric(rng.uniform(0.2, 1), n) - 1, drafted)
    is_cut = (rng.random(n) < 0.1) & (accepted > 0)
    emitted = accepted + np.where(is_cut, 0, 1)
    return Rounds(drafted.tolist(), accepted.tolist(), emitted.tolist(), k)


def test_counts_are_those_of_the_rounds_one_by_one():
    for seed in SEEDS:
        rounds = drawn(seed)
        counts = rounds.counts
        triples = list(zip(rounds.drafted, rounds.accepted, rounds.emitted, strict=True))
        n, total = len(triples), sum(a for _, a, _ in triples)
        assert counts.k == rounds.k
        assert counts.num_emitted == sum(e for _, _, e in triples)
        assert counts.mean_acceptance_length == pytest.approx(sum(1 + a for _, a, _ in triples) / n)
        drafting = [a for d, a, _ in triples if d]
        if drafting:
            length = counts.mean_acceptance_length_when_drafted
            assert length == pytest.approx(sum(1 + a for a in drafting) / len(drafting))
            assert counts.acceptance_rate == pytest.approx(total / sum(rounds.drafted))
        joint = [sum(a >= i for _, a, _ in triples) / n for i in range(1, rounds.k + 1)]
        assert counts.acceptance_rate_per_position == pytest.approx(joint)
        # Drafts are tested until the first that is rejected.
        outcomes = [o for d, a, e in triples for o in [True] * a + [False] * (a < d and e > a)]
        expected = sum(outcomes) / len(outcomes) if outcomes else None
        assert counts.alpha == (None if expected is None else pytest.approx(expected))


def test_acceptance_length_is_1_plus_the_sum_of_joint_rates():
    for seed in SEEDS:
        counts = drawn(seed).counts
        joint = counts.acceptance_rate_per_position
        assert counts.mean_acceptance_length == pytest.approx(mean_length_from_rates(joint))
        conditional = counts.conditional_acceptance_rate
        assert joint_rates(conditional) == pytest.approx(joint[: len(conditional)])
        assert not any(joint[len(conditional) :])
        assert expected_tokens_by_k(conditional)[-1] == pytest.approx(counts.mean_acceptance_length)


def test_counts_of_two_round_logs_sum_to_those_of_one():
    for seed in SEEDS:
        first, other = drawn(seed), drawn(seed + 1000)
        k = max(first.k, other.k)
        both = Rounds(*(a + b for a, b in zip(first[:3], other[:3], strict=True)), k)
        assert first._replace(k=k).counts + other._replace(k=k).counts == both.counts
    with pytest.raises(ValueError, match="different K"):
        first._replace(k=2).counts + other._replace(k=3).counts


def test_rates_without_rounds_or_drafts_are_none():
    none = RoundCounts.of_rounds([], [], [], 2)
    assert none.mean_acceptance_length is none.acceptance_rate is none.alpha is None
    assert none.acceptance_rate_per_position == none.conditional_acceptance_rate == ()
    idle = RoundCounts.of_rounds([0, 0], [0, 0], [1, 1], 2)
    assert (idle.mean_acceptance_length, idle.mean_acceptance_length_when_drafted) == (1.0, None)
    assert idle.acceptance_rate_per_position == (0.0, 0.0)
    assert idle.conditional_acceptance_rate == (0.0,)
    for drafted in ([5, 5], [3, 0]):  # trees
        assert RoundCounts.of_rounds(drafted, [1, 0], [2, 1], 2).alpha is None


def test_without_the_number_of_rejections_only_alpha_is_none():
    sums = {
        "num_rounds": 4,
        "num_drafted": 8,
        "num_accepted": 5,
        "num_emitted": 9,
        "num_drafting": 4,
        "by_accepted": (1, 1, 2),
    }
    unknown = RoundCounts.of_sums(**sums, num_rejecting=None)
    assert (unknown.alpha, unknown.acceptance_rate) == (None, 5 / 8)
    assert RoundCounts.of_sums(**sums, num_rejecting=2).alpha == 5 / 7


def test_independent_acceptance_is_a_geometric_sum():
    # 1 + 0.5 + 0.25 + 0.125
    assert expected_tokens_iid(0.5, 3) == 1.875
    assert expected_tokens_iid(1.0, 3) == 4.0
    assert expected_tokens_iid(0.0, 3) == expected_tokens_iid(0.7, 0) == 1.0
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        alpha, k = float(rng.uniform(0, 0.99)), int(rng.integers(0, 17))
        closed = (1 - alpha ** (k + 1)) / (1 - alpha)
        assert expected_tokens_iid(alpha, k) == pytest.approx(closed)
        drafts = rng.random((2000, k)) < alpha
        assert expected_tokens_iid(alpha, k) == pytest.approx(
            1 + drafts.cumprod(axis=1).sum() / 2000, rel=0.2
        )


def test_conditional_rates_are_ratios_of_successive_joint_rates():
    assert conditional_rates((0.8, 0.4, 0.1)) == pytest.approx((0.8, 0.5, 0.25))
    assert conditional_rates((0.5, 0.0, 0.0)) == (0.5, 0.0, 0.0)
    assert conditional_rates(()) == ()
    assert joint_rates((0.8, 0.5, 0.25)) == pytest.approx([0.8, 0.4, 0.1])
    for seed in SEEDS:
        rates = np.random.default_rng(seed).uniform(0.01, 1, seed % 9).tolist()
        assert conditional_rates(joint_rates(rates)) == pytest.approx(rates)


def test_expected_tokens_by_k_are_concave_sums_of_products():
    assert expected_tokens_by_k([0.5, 0.5, 0.0]) == [1.0, 1.5, 1.75, 1.75]
    assert expected_tokens_by_k([]) == [1.0]
    for seed in SEEDS:
        tokens = expected_tokens_by_k(np.random.default_rng(seed).random(8))
        gains = [after - before for before, after in pairwise(tokens)]
        assert all(a >= b - 1e-12 for a, b in pairwise([1.0, *gains, 0.0]))


def test_the_mean_length_counts_the_additional_token():
    assert mean_length(6, 5) == 2.2
    assert mean_length_from_rates((0.5, 0.25)) == 1.75


def test_at_break_even_acceptance_a_round_emits_what_it_costs():
    for seed in range(300):
        rng = np.random.default_rng(seed)
        k = int(rng.integers(1, 17))
        steps = float(rng.uniform(1, k + 1))
        rate = break_even_acceptance(k, steps)
        assert 0 <= rate <= 1
        assert expected_tokens_iid(rate, k) == pytest.approx(steps, abs=1e-9)


def test_no_acceptance_breaks_even_above_a_round_cost_of_k_plus_1():
    assert break_even_acceptance(4, 5.01) is None
    assert break_even_acceptance(4, 5.0) == pytest.approx(1.0)
    assert break_even_acceptance(4, 5.0 - 1e-9) < 1


def test_a_round_cost_of_at_most_1_breaks_even_at_acceptance_0():
    assert break_even_acceptance(4, 1.0) == break_even_acceptance(4, 0.7) == 0.0


def test_break_even_acceptance_at_k_1_is_the_extra_round_cost():
    assert break_even_acceptance(1, 1.3) == pytest.approx(0.3)


def test_a_forward_reads_the_weights_once_and_every_rows_cache():
    # 4 rows of 100 tokens of 10 bytes, plus 1,000 bytes of weights
    assert bytes_per_forward(1_000, rows=4, context=100, kv_bytes_per_token=10) == 5_000


def test_the_roofline_is_bytes_over_bandwidth():
    assert roofline_s(15e9, 4.8e12) == pytest.approx(0.003125)
