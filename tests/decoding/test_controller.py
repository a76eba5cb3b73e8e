"""The controller against every fixed K, on simulated texts and machines; its choices by hand.

All times are simulated: a round costs what COSTS says, a clock shows it with a noise of 5 %, one
in fifty times three times over, on a machine that drifts by 0.2 % a round. Seeds are fixed.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from math import exp

import pytest

from specbench.decoding.controller import Controller, default_ks
from specbench.decoding.round_costs import RoundCosts

KS = default_ks(8)
# Seconds of a round by K, in the shape measured on a CPU pair: one row, a few, many.
COSTS = {
    1: dict(enumerate([2.7e-3, 3.6e-3, 4.2e-3, 4.6e-3, 5.0e-3, 5.4e-3, 5.8e-3, 6.2e-3, 6.6e-3])),
    4: dict(enumerate([3.2e-3, *(4.6e-3 + 0.9e-3 * i for i in range(8))])),
    16: {k: 5e-3 + 4e-3 * k for k in range(9)},
}
CATCH_UP_S = ((1, 0.81e-3), (100, 1.8e-3))  # 0.8 ms and 0.01 ms a token

Rates = Callable[[random.Random], Iterator[float]]  # P(the draft of the next token is right)


def steady(alpha: float) -> Rates:
    def rates(_: random.Random) -> Iterator[float]:
        while True:
            yield alpha

    return rates


def blocks(low: float, high: float, length: int) -> Rates:
    """Prose and code in turn, each about `length` tokens."""

    def rates(rng: random.Random) -> Iterator[float]:
        alpha, other = rng.sample((low, high), 2)
        while True:
            yield from [alpha] * int(length * (0.5 + rng.random()))
            alpha, other = other, alpha

    return rates


def lookup(hit: float, right: float) -> Rates:
    """A draft is found now and then, and is then mostly right: rates jump, rounds find nothing."""

    def rates(rng: random.Random) -> Iterator[float]:
        while True:
            yield from [right if rng.random() < hit else 0.0] * 6

    return rates


class Row:
    """One text: a round at K keeps drafts until one is wrong."""

    def __init__(self, rates: Rates, seed: str) -> None:
        self._rng = random.Random(seed)
        self._rates = rates(random.Random(seed))
        self._ahead: list[float] = []

    def round(self, k: int) -> int:
        while len(self._ahead) <= k:
            self._ahead.append(next(self._rates))
        kept = 0
        while kept < k and self._rng.random() < self._ahead[kept]:
            kept += 1
        del self._ahead[: kept + 1]
        return kept


Make = Callable[[RoundCosts], Controller]


def adaptive(costs: RoundCosts) -> Controller:
    return Controller(KS, costs)


def never_probing(costs: RoundCosts) -> Controller:
    return Controller(KS, costs, probe_share=0.0)


def ignoring_cost(costs: RoundCosts) -> Controller:  # noqa: ARG001
    return Controller(KS, RoundCosts.from_samples({(16, k): (1.0,) for k in KS}))


def seconds_at(k: int, texts: Sequence[Rates], num_tokens: int, seed: int) -> float:
    """True seconds of `num_tokens` tokens, all rows together, at one K."""
    rows = [Row(rates, f"{seed} {i}") for i, rates in enumerate(texts)]
    emitted, num_rounds = 0, 0
    while emitted < num_tokens:
        emitted += sum(row.round(k) + 1 for row in rows)
        num_rounds += 1
    return num_rounds * COSTS[len(rows)][k] * num_tokens / emitted


def seconds_of(make: Make, texts: Sequence[Rates], num_tokens: int, seed: int) -> float:
    """True seconds of the same under a controller, whose clock is noisy; warm-up included."""
    clock = random.Random(f"clock {seed}")
    cost = COSTS[len(texts)]
    num_rows, speed = len(texts), 1.0

    def shown(seconds: float) -> float:
        return seconds * exp(clock.gauss(0, 0.05)) * (3 if clock.random() < 0.02 else 1)

    samples = {(num_rows, k): [shown(cost[k]) for _ in range(4)] for k in KS}
    controller = make(RoundCosts.from_samples(samples, catch_up_s=CATCH_UP_S))
    rows = [Row(rates, f"{seed} {i}") for i, rates in enumerate(texts)]
    emitted, seconds, behind = 0, 0.0, 0
    while emitted < num_tokens:
        k = controller.choose(num_rows, num_rows, 10_000)
        kept = [row.round(k) for row in rows]
        catch_up = 0.8e-3 + 0.01e-3 * behind if k and behind else 0.0
        behind = 0 if k else behind + 1
        speed *= exp(clock.gauss(0, 0.002))
        controller.observe(
            k=k,
            num_rows=num_rows,
            num_drafted=[k] * num_rows,
            num_accepted=kept,
            num_emitted=[n + 1 for n in kept],
            seconds=shown(cost[k] + catch_up) * speed,
        )
        seconds += cost[k] + catch_up
        emitted += sum(kept) + num_rows
    return seconds * num_tokens / emitted


def regret(
    make: Make, texts: Sequence[Rates], num_rounds: int, num_passes: int | None = None
) -> float:
    """Extra time over the fixed K that was best in hindsight, over several passes.

    A pass is as many tokens as that K emits in about `num_rounds` rounds.
    """
    passes = range(num_passes or (20 if len(texts) == 1 else 6))
    trial_s = {k: seconds_at(k, texts, 600 * len(texts), -1) for k in KS}
    pace = min(KS, key=trial_s.__getitem__)
    tokens = int(600 * len(texts) * num_rounds * COSTS[len(texts)][pace] / trial_s[pace])
    best_s = min(sum(seconds_at(k, texts, tokens, seed) for seed in passes) for k in KS)
    return sum(seconds_of(make, texts, tokens, seed) for seed in passes) / best_s - 1


def blocks_of(low: float, high: float, length: int, num_rows: int = 1) -> list[Rates]:
    return [blocks(low, high, length)] * num_rows


DIFFERENT = [steady(alpha) for alpha in (0.2, 0.5, 0.8, 0.95)]
# A pass of 300 rounds, its warm-up included, may lose this much to the best fixed K.
TOLERANCE = 0.025


@pytest.mark.parametrize("num_rows", [1, 4, 16])
@pytest.mark.parametrize("alpha", [0.2, 0.5, 0.8, 0.95])
def test_on_an_even_text_it_costs_little_more_than_the_best_fixed_k(alpha, num_rows):
    assert regret(adaptive, [steady(alpha)] * num_rows, 300) < TOLERANCE


@pytest.mark.parametrize(
    "texts",
    [
        [lookup(0.3, 0.85)],
        DIFFERENT,
        DIFFERENT * 4,
        blocks_of(0.2, 0.9, 150, num_rows=16),
        blocks_of(0.2, 0.9, 60, num_rows=4),
    ],
    ids=["lookup", "4 rows that differ", "16 rows that differ", "16 of blocks", "4 of blocks"],
)
def test_rows_that_differ_and_drafts_that_are_missing_cost_as_little(texts):
    assert regret(adaptive, texts, 300) < TOLERANCE


def test_short_passes_lose_what_a_few_rounds_of_finding_out_cost():
    lost = [regret(adaptive, [steady(a)] * n, 150) for a in (0.2, 0.8) for n in (1, 16)]

    assert max(lost) < 0.04
    assert sum(lost) / len(lost) < 0.02


def test_where_the_text_changes_no_fixed_k_is_as_fast():
    assert regret(adaptive, blocks_of(0.2, 0.9, 150), 300) < 0
    assert regret(adaptive, blocks_of(0.2, 0.9, 400), 300) < -0.05


def test_a_controller_that_ignores_cost_fails_the_same_test():
    assert regret(ignoring_cost, DIFFERENT * 4, 300, num_passes=2) > 0.5


def test_a_controller_that_never_probes_misses_the_easy_part_of_a_text():
    def hard_then_easy(_: random.Random) -> Iterator[float]:
        yield from [0.1] * 200
        while True:
            yield 0.95

    assert regret(adaptive, [hard_then_easy], 300) < 0
    assert regret(never_probing, [hard_then_easy], 300) > 0.2


def exact_costs(catch_up_s: float = 0.0) -> RoundCosts:
    return RoundCosts.from_samples(
        {(rows, k): (seconds,) for rows in COSTS for k, seconds in COSTS[rows].items()},
        catch_up_s=((1, catch_up_s),),
    )


def settled(num_accepted: Sequence[int], costs: RoundCosts | None = None) -> Controller:
    """A controller that has seen one row keep these numbers of drafts at K = 4."""
    controller = Controller(KS, costs or exact_costs())
    for accepted in num_accepted:
        saw(controller, 4, accepted)
    return controller


def saw(controller: Controller, k: int, num_accepted: int, num_drafted: int | None = None) -> None:
    controller.observe(
        k=k,
        num_rows=1,
        num_drafted=[k if num_drafted is None else num_drafted],
        num_accepted=[num_accepted],
        num_emitted=[num_accepted + 1],
        seconds=COSTS[1][k],
    )


def test_the_set_of_k_is_dense_where_it_matters_and_ends_at_the_largest():
    assert default_ks(1) == (0, 1)
    assert default_ks(3) == (0, 1, 2, 3)
    assert default_ks(5) == (0, 1, 2, 3, 4, 5)
    assert default_ks(16) == (0, 1, 2, 3, 4, 6, 8, 12, 16)
    assert default_ks(20) == (0, 1, 2, 3, 4, 6, 8, 12, 16, 20)


@pytest.mark.parametrize("ks", [(), (0,), (1, 2), (0, 2, 1), (0, 1, 1)])
def test_a_set_without_zero_or_out_of_order_is_refused(ks):
    with pytest.raises(ValueError, match="ascend from 0"):
        Controller(ks, RoundCosts.from_samples({(1, 0): (1.0,)}))


def test_drafts_that_are_always_kept_ask_for_the_largest_k():
    assert settled([4] * 60).choose(1, 1, 10_000) == 8


def test_drafts_that_are_never_kept_stop_the_drafting():
    controller = settled([])
    for _ in range(40):
        k = controller.choose(1, 1, 10_000)
        saw(controller, k, 0)

    assert k == 0
    assert controller.behind() > 0


def test_thin_evidence_does_not_stop_the_drafting():
    def second_choice(num_rounds: int) -> int:
        controller = settled([0] * num_rounds)
        controller.choose(1, 1, 10_000)
        return controller.choose(1, 1, 10_000)

    assert second_choice(2) > 0  # 1.3 tokens in 3.6 ms +- a fifth, or 1 in 2.7 ms
    assert second_choice(20) == 0  # 1.07 +- a twentieth


def test_rounds_that_found_no_draft_count_as_rounds_that_kept_none():
    controller = settled([])
    for _ in range(40):
        k = controller.choose(1, 1, 10_000)
        saw(controller, k, 0, num_drafted=0)

    assert k == 0


NOW_AND_THEN = [1, 0, 0, 4, 1] * 10  # 1.6 tokens a round at K = 1, 2.2 at K = 4


def test_the_same_acceptance_pays_for_one_row_and_not_for_sixteen():
    controller = settled(NOW_AND_THEN)

    assert controller.choose(1, 1, 10_000) > 0  # 2.2 in 5.0 ms against 1 in 2.7 ms
    assert controller.choose(16, 16, 10_000) == 0  # 1.6 in 9 ms at K = 1 against 1 in 5 ms


def test_drafting_is_not_taken_up_again_for_less_than_the_catch_up_costs():
    def k_after_zero(catch_up_s: float) -> int:
        controller = settled(NOW_AND_THEN, exact_costs(catch_up_s))
        assert controller.choose(1, 1, 10_000) > 0
        assert controller.choose(16, 16, 10_000) == 0
        saw(controller, 0, 0)
        return controller.choose(1, 1, 10_000)

    assert k_after_zero(0.01) > 0
    assert k_after_zero(1.0) == 0  # a second, for a stay of a quarter of one


def test_a_round_that_caught_up_does_not_make_its_k_look_slow():
    costs = exact_costs()
    controller = settled([4] * 20, costs)
    saw(controller, 0, 0)
    before = costs.round_s(1, 4)

    controller.observe(
        k=4, num_rows=1, num_drafted=[4], num_accepted=[4], num_emitted=[5], seconds=1.0
    )

    assert costs.round_s(1, 4) == before
    assert controller.behind() == 0


def test_time_at_zero_pays_for_probes_and_failures_make_them_rare():
    controller = settled([])
    drafted = []
    for _ in range(3000):
        k = controller.choose(1, 1, 10_000)
        saw(controller, k, 0)
        drafted.append(k > 0)
    half = len(drafted) // 2

    assert 0 < sum(drafted[half:]) <= sum(drafted[:half])
    assert sum(drafted[half:]) < 0.05 * half
