"""How often the rule recommends a K although speculation changes nothing, simulated.

1,000 sweeps over K = 1..8 with 10 prompts each and a true speedup of exactly 1. Allowed: 5%.
The rule recommends a K in about 2%, and would exceed 5% in fewer than 1 of 100,000 seeds.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from specbench.decide.recommend import LeadingCell, SpeedupVerdict, choose, decide, judge
from specbench.records import CellSummary
from specbench.stats.intervals import interval, speedup_ratio

pytestmark = pytest.mark.slow  # thousands of simulated sweeps

SWEEPS = 1_000
NUM_PROMPTS = 10
KS = range(1, 9)
PROMPT_SIGMA = 0.05  # some prompts are drafted better than others, at every K
NOISE_SIGMA = 0.15  # of one request's time

Floats = NDArray[np.float64]
Summarized = Callable[..., CellSummary]


class Prompts(NamedTuple):
    """The prompts of all measurements of a sweep; only the noise is new each time."""

    lengths: Floats
    slowness: Floats  # of speculation against the baseline


class Sweep(NamedTuple):
    """The first pass over all K, and its leader measured again."""

    choice: LeadingCell
    again: CellSummary


def simulate(rng: np.random.Generator, summarized: Summarized, true_speedup: float) -> Sweep:
    prompts = Prompts(
        lengths=rng.lognormal(0.0, 0.4, NUM_PROMPTS),
        slowness=_mean_one(rng, PROMPT_SIGMA) / true_speedup,
    )
    choice = choose(_one_pass(rng, summarized, prompts, KS))
    assert choice.leader is not None
    k = choice.leader.key.draft.k
    return Sweep(choice, _one_pass(rng, summarized, prompts, [k])[0])


def _one_pass(
    rng: np.random.Generator, summarized: Summarized, prompts: Prompts, ks: Iterable[int]
) -> list[CellSummary]:
    base = prompts.lengths * _mean_one(rng, NOISE_SIGMA)
    cells = []
    for k in ks:
        spec = prompts.lengths * prompts.slowness * _mean_one(rng, NOISE_SIGMA)
        cell = summarized(k, None, 1.0, None, num_prompts=NUM_PROMPTS)
        cells.append(replace(cell, speedup=interval(speedup_ratio(base, spec))))
    return cells


def _mean_one(rng: np.random.Generator, sigma: float) -> Floats:
    return rng.lognormal(-(sigma**2) / 2, sigma, NUM_PROMPTS)


def sweeps(summarized: Summarized, true_speedup: float) -> list[Sweep]:
    rng = np.random.default_rng(1)
    return [simulate(rng, summarized, true_speedup) for _ in range(SWEEPS)]


def recommends_a_k(sweep: Sweep) -> bool:
    return decide(sweep.choice, sweep.again).draft.k > 0


def recommends_unconfirmed(sweep: Sweep) -> bool:
    """Negative control: the first pass's winner, with its unconfirmed speedup."""
    return judge(leader(sweep).speedup) is SpeedupVerdict.FASTER


def leader(sweep: Sweep) -> CellSummary:
    assert sweep.choice.leader is not None
    return sweep.choice.leader


def log_error(cell: CellSummary, true_speedup: float) -> float:
    assert cell.speedup is not None
    return math.log(cell.speedup.estimate / true_speedup)


def test_false_speedups_are_recommended_in_at_most_5_percent(summarized):
    null = sweeps(summarized, 1.0)
    confirmed = np.mean([recommends_a_k(sweep) for sweep in null])
    unconfirmed = np.mean([recommends_unconfirmed(sweep) for sweep in null])
    print(f"recommended without a gain: {confirmed:.1%}; unconfirmed {unconfirmed:.1%}")
    assert confirmed <= 0.05
    assert unconfirmed > 0.05


def test_a_true_speedup_is_found_and_quoted_without_bias(summarized):
    """The first pass overestimates its winner; the confirmation run does not."""
    real = sweeps(summarized, 1.3)
    rate = np.mean([recommends_a_k(sweep) for sweep in real])
    flattered = np.mean([log_error(leader(sweep), 1.3) for sweep in real])
    quoted = np.mean([log_error(sweep.again, 1.3) for sweep in real])
    print(f"recommended at a gain of 1.3x: {rate:.1%}")
    print(f"bias of the quoted speedup: {quoted:+.1%}; of the first pass: {flattered:+.1%}")
    assert rate > 0.80
    assert abs(quoted) < 0.01
    assert flattered > 0.03
