"""Choices among K that are judged on prompts that did not choose them, by hand and simulated.

In 100 sweeps over K = 1..8 the true speedup is exactly 1. The K share what speculation changes on a
prompt, and each has its own luck on it, which a second measurement of the same prompts keeps. What
the K share is mirrored in every second sweep, so that it cancels in a mean over sweeps.
"""

import math
from collections.abc import Iterator
from itertools import chain

import numpy as np
import pytest

from specbench.decide.cross_fit import are_enough, cross_fitted
from specbench.decide.recommend import SpeedupVerdict, choose, decide, verdict_of
from specbench.metrics.cell import CellData, against
from specbench.metrics.machine import machine_kind
from specbench.metrics.summary import summarize
from specbench.records import Kind
from specbench.stats.machine_noise import SHARED, MachineKind
from specbench.stats.spread import MIN_UNITS
from tests.decide.cells import BASE, cell, draft, stream

SWEEPS, KS = 100, range(1, 9)
PROMPT_SD, LUCK_SD = 0.05, 0.1


def measured(*columns: tuple[int, list[float]], num_prompts: int) -> list[CellData]:
    """Cells of these K, with their seconds by prompt; a prompt takes 1 second at K = 0."""
    base = cell(BASE, [1.0] * num_prompts)
    return [against(cell(draft(k), seconds), base) for k, seconds in columns]


def fitted(cells: list[CellData]):
    choice = choose(summarize(cells))
    assert choice.leader is not None
    return choice, cross_fitted(cells, choice.leader)


def test_each_half_is_judged_at_the_k_that_the_other_half_chose():
    # Even prompts are fast at K = 2, odd ones at K = 4: each half is judged at its slower K.
    cells = measured((2, [0.4, 0.8] * 6), (4, [0.8, 0.5] * 6), num_prompts=12)
    choice, found = fitted(cells)
    assert choice.leader.speedup.estimate == pytest.approx(12 / (6 * 0.4 + 6 * 0.8))
    assert found.key == choice.leader.key
    assert found.speedup.estimate == pytest.approx(12 / (6 * 0.8 + 6 * 0.8))
    # A request takes 0.1 s more, on both sides.
    assert found.speedup_end_to_end.estimate == pytest.approx(12 * 1.1 / (12 * 0.9))


def test_a_k_that_is_best_in_both_halves_keeps_its_speedup():
    cells = measured((2, [0.5] * 12), (4, [0.8] * 12), num_prompts=12)
    choice, found = fitted(cells)
    assert found.speedup == choice.leader.speedup
    decision = decide(choice, found, "halves")
    assert decision.verdict is SpeedupVerdict.FASTER
    assert Kind.CROSS_FITTED() in decision.reasons
    assert Kind.OTHER_PROMPTS() in decide(choice, found, "other").reasons
    kinds = {reason.kind for reason in decide(choice, found, "same").reasons}
    assert not kinds & {Kind.CROSS_FITTED, Kind.OTHER_PROMPTS}
    assert Kind.CONFIRMED in kinds
    assert Kind.CONFIRMED not in {reason.kind for reason in decision.reasons}


def test_the_number_of_prompts_is_of_those_that_were_judged():
    """Half of the six prompts of K = 4 are too few to choose it, so K = 2 is judged on all."""
    cells = measured((2, [0.6, 0.8] * 6), (4, [0.7, 0.5] * 3), num_prompts=12)
    choice, found = fitted(cells)
    assert (choice.leader.key.draft.k, choice.leader.num_prompts) == (4, 6)
    assert found.speedup.estimate == pytest.approx(12 / (6 * 0.6 + 6 * 0.8))
    assert found.num_prompts == 12


def test_a_k_is_valid_or_not_by_all_of_its_rounds():
    # 8 prompts of 6 rounds: 48 are enough, and the 24 of a half count.
    _, found = fitted(measured((2, [0.5] * 8), (4, [0.8] * 8), num_prompts=8))
    assert found.speedup.estimate == pytest.approx(2.0)


def test_what_stalls_in_the_whole_cell_stalls_in_each_half():
    """Halves of four prompts show no stall by themselves."""
    base = cell(BASE, [1.0] * 7 + [50.0])
    steady = [against(cell(draft(k), [0.1 + 0.1 * k] * 8), base) for k in (3, 4)]
    _, found = fitted(steady)
    assert found.speedup.estimate == pytest.approx(2.5)
    even = cell(BASE, [1.0] * 8)
    held_up = [against(cell(draft(k), [0.1 + 0.1 * k] * 7 + [9.0]), even) for k in (3, 4)]
    choice, found = fitted(held_up)
    assert (found.screening.num_kept, choice.leader.screening.num_kept) == (1, 1)
    assert found.screening.without_any.estimate == pytest.approx(2.5)


def test_requests_that_overlap_are_not_cross_fitted():
    rows = {"concurrency": 2}
    base = stream(BASE.at(BASE.draft.length), [2.0] * 6)
    cells = [against(stream(draft(k, **rows), [1.0 + k / 10] * 6), base) for k in (2, 4)]
    assert cross_fitted(cells, summarize(cells)[0]) is None


@pytest.mark.parametrize(
    ("num_unused", "num_explored", "enough"),
    [
        (MIN_UNITS - 1, 6, False),
        (MIN_UNITS, 6, True),
        (9, 20, False),
        (10, 20, True),
        (0, 5, False),
    ],
)
def test_half_as_many_other_prompts_and_at_least_five_confirm_a_choice(
    num_unused, num_explored, enough
):
    assert are_enough(num_unused, num_explored) is enough


def two_sweeps(rng: np.random.Generator, num_prompts: int) -> Iterator[list[CellData]]:
    """All K without a gain, on a machine as it is assumed to be, and on one that deviates as much
    the other way."""
    deviation = MachineKind.QUIET_CPU.assumed
    states = deviation * (
        math.sqrt(SHARED) * rng.normal() + math.sqrt(1 - SHARED) * rng.normal(size=3)
    )
    machine = np.repeat(states, -(-num_prompts // 3))[:num_prompts]
    prompts = rng.normal(0, PROMPT_SD, num_prompts)
    for sign in (1, -1):
        luck = rng.normal(-(LUCK_SD**2) / 2, LUCK_SD, (len(KS), num_prompts))
        seconds = np.exp(sign * (machine + prompts) - PROMPT_SD**2 / 2 + luck)
        rows = zip(KS, seconds.tolist(), strict=True)
        yield measured(*rows, num_prompts=num_prompts)


@pytest.mark.slow
@pytest.mark.parametrize("num_prompts", [12, pytest.param(24, marks=pytest.mark.long)])
def test_the_best_of_equal_k_is_neither_biased_nor_faster_after_the_cross_fit(num_prompts):
    """The standard error of the mean log is 0.3 points, of the share 2.2 points at most."""
    rng = np.random.default_rng(num_prompts)
    chosen, judged, verdicts = [], [], []
    pairs = (two_sweeps(rng, num_prompts) for _ in range(SWEEPS // 2))
    for cells in chain.from_iterable(pairs):
        assert machine_kind(cells[0]) is MachineKind.QUIET_CPU
        choice, found = fitted(cells)
        chosen.append(math.log(choice.leader.speedup.estimate))
        judged.append(math.log(found.speedup.estimate))
        verdicts.append(verdict_of(found) is SpeedupVerdict.FASTER)
    bias, flattered, faster = np.mean(judged), np.mean(chosen), np.mean(verdicts)
    print(f"{num_prompts} prompts: {bias:+.1%}, as chosen {flattered:+.1%}; faster {faster:.1%}")
    assert abs(bias) < 0.01
    assert flattered > 0.02
    assert faster <= 0.05
