"""Simulated texts and machines, and a controller's loss on them relative to the best fixed K.

All times are simulated: a round costs what COSTS says, a clock shows it with a noise of 5%, one
in fifty times tripled, on a machine that drifts by 0.2% per round. Seeds are fixed.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from math import exp
from statistics import mean

from specbench.decode.adaptive_k import Controller, RoundCostModel, default_ks
from specbench.decode.scheduler import ObservedRound

KS = default_ks(8)
# Seconds of a round by K, in the shape measured on a CPU pair: one row, a few, many.
COSTS = {
    1: dict(enumerate([2.7e-3, 3.6e-3, 4.2e-3, 4.6e-3, 5.0e-3, 5.4e-3, 5.8e-3, 6.2e-3, 6.6e-3])),
    4: dict(enumerate([3.2e-3, *(4.6e-3 + 0.9e-3 * i for i in range(8))])),
    16: {k: 5e-3 + 4e-3 * k for k in range(9)},
}
CATCH_UP_S = ((1, 0.81e-3), (100, 1.8e-3))  # 0.8 ms and 0.01 ms per token

Rates = Callable[[random.Random], Iterator[float]]  # P(the draft of the next token is right)
Make = Callable[[RoundCostModel], Controller]


def steady(alpha: float) -> Rates:
    return lambda _: repeat(alpha)


def blocks(low: float, high: float, length: int) -> Rates:
    """Alternating prose and code, each about `length` tokens."""

    def rates(rng: random.Random) -> Iterator[float]:
        alpha, other = rng.sample((low, high), 2)
        while True:
            yield from [alpha] * int(length * (0.5 + rng.random()))
            alpha, other = other, alpha

    return rates


def lookup(hit: float, right: float) -> Rates:
    """A draft is found now and then, and is then mostly right: rates jump between rounds."""

    def rates(rng: random.Random) -> Iterator[float]:
        while True:
            yield from [right if rng.random() < hit else 0.0] * 6

    return rates


def blocks_of(low: float, high: float, length: int, num_rows: int = 1) -> list[Rates]:
    return [blocks(low, high, length)] * num_rows


class Row:
    """One text: a round at K keeps drafts until one is wrong."""

    def __init__(self, rates: Rates, seed: str) -> None:
        self._draw = random.Random(seed).random
        self._rates = rates(random.Random(seed))

    def round(self, k: int) -> int:
        kept = 0
        while kept < k and self._draw() < next(self._rates):
            kept += 1
        if kept == k:
            next(self._rates)  # of the token that follows the last draft
        return kept


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

    def jittered(seconds: float) -> float:
        return seconds * exp(clock.gauss(0, 0.05)) * (3 if clock.random() < 0.02 else 1)

    samples = {(num_rows, k): [jittered(cost[k]) for _ in range(4)] for k in KS}
    controller = make(RoundCostModel(samples, catch_up_s=CATCH_UP_S))
    rows = [Row(rates, f"{seed} {i}") for i, rates in enumerate(texts)]
    emitted, seconds, behind = 0, 0.0, 0
    while emitted < num_tokens:
        k = controller.choose(num_rows, num_rows, 10_000)
        kept = [row.round(k) for row in rows]
        caught_up = behind if k else 0
        catch_up = 0.8e-3 + 0.01e-3 * caught_up if caught_up else 0.0
        behind = 0 if k else behind + 1
        speed *= exp(clock.gauss(0, 0.002))
        controller.observe(
            ObservedRound(
                k=k,
                num_rows=num_rows,
                num_accepted=kept,
                num_emitted=[n + 1 for n in kept],
                num_caught_up=caught_up,
                seconds=jittered(cost[k] + catch_up) * speed,
            )
        )
        seconds += cost[k] + catch_up
        emitted += sum(kept) + num_rows
    return seconds * num_tokens / emitted


# Enough for each limit of test_adaptive_regret.py to be four deviations of the mean away or more.
PASSES = {1: 120, 4: 40, 16: 6}
_TRIALS = range(1, 17)  # seeds of the texts that determine the tokens of a pass


def regret(
    make: Make, texts: Sequence[Rates], num_rounds: int, num_passes: int | None = None
) -> float:
    """Extra time over the fixed K that was best in hindsight, over several passes.

    A pass is as many tokens as that K emits in about `num_rounds` rounds.
    """
    passes = range(num_passes or PASSES[len(texts)])
    trial_s = {k: mean(seconds_at(k, texts, 600 * len(texts), -i) for i in _TRIALS) for k in KS}
    pace, *slower = sorted(KS, key=trial_s.__getitem__)
    tokens = int(600 * len(texts) * num_rounds * COSTS[len(texts)][pace] / trial_s[pace])
    nearly = (pace, *slower[:3])
    best_s = min(sum(seconds_at(k, texts, tokens, seed) for seed in passes) for k in nearly)
    return sum(seconds_of(make, texts, tokens, seed) for seed in passes) / best_s - 1
