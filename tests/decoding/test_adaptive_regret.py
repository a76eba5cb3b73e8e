"""The controller against every fixed K, on simulated texts and machines."""

import random
from collections.abc import Iterator

import pytest

from specbench.decode.adaptive_k import Controller, RoundCostModel
from tests.decoding.simulated_texts import KS, blocks_of, lookup, regret, steady

pytestmark = pytest.mark.slow  # simulated runs

DIFFERENT = [steady(alpha) for alpha in (0.2, 0.5, 0.8, 0.95)]
# A pass of 300 rounds, its warm-up included, may lose this much to the best fixed K.
TOLERANCE = 0.025


def adaptive(costs: RoundCostModel) -> Controller:
    return Controller(KS, costs)


def never_probing(costs: RoundCostModel) -> Controller:
    return Controller(KS, costs, probe_share=0.0)


def ignoring_cost(costs: RoundCostModel) -> Controller:  # noqa: ARG001
    return Controller(KS, RoundCostModel({(16, k): (1.0,) for k in KS}))


@pytest.mark.sampled(one_in=3, every=["num_rows", "alpha"])
@pytest.mark.parametrize("num_rows", [1, 4, 16])
@pytest.mark.parametrize("alpha", [0.2, 0.5, 0.8, 0.95])
def test_adaptive_k_is_close_to_the_best_fixed_k_on_steady_text(alpha, num_rows):
    assert regret(adaptive, [steady(alpha)] * num_rows, 300) < TOLERANCE


@pytest.mark.sampled(one_in=5)
@pytest.mark.parametrize(
    ("texts", "num_passes"),
    [
        ([lookup(0.3, 0.85)], None),
        (DIFFERENT, 120),  # its passes differ most
        (DIFFERENT * 4, None),
        (blocks_of(0.2, 0.9, 150, num_rows=16), None),
        (blocks_of(0.2, 0.9, 60, num_rows=4), None),
    ],
    ids=["lookup", "4 rows that differ", "16 rows that differ", "16 of blocks", "4 of blocks"],
)
def test_adaptive_k_has_a_low_regret_for_mixed_rows_and_lookups(texts, num_passes):
    assert regret(adaptive, texts, 300, num_passes) < TOLERANCE


def test_adaptive_k_has_a_low_regret_on_short_passes():
    lost = [regret(adaptive, [steady(a)] * n, 150) for a in (0.2, 0.8) for n in (1, 16)]

    assert max(lost) < 0.04
    assert sum(lost) / len(lost) < 0.02


def test_adaptive_k_beats_every_fixed_k_on_text_that_changes():
    assert regret(adaptive, blocks_of(0.2, 0.9, 150), 300) < 0
    assert regret(adaptive, blocks_of(0.2, 0.9, 400), 300, num_passes=120) < -0.05


def test_a_controller_that_ignores_cost_has_a_large_regret():
    assert regret(ignoring_cost, DIFFERENT * 4, 300, num_passes=2) > 0.5


def test_a_controller_without_probes_has_a_regret_on_text_that_gets_easy():
    def hard_then_easy(_: random.Random) -> Iterator[float]:
        yield from [0.1] * 200
        while True:
            yield 0.95

    assert regret(adaptive, [hard_then_easy], 300, num_passes=120) < 0
    assert regret(never_probing, [hard_then_easy], 300, num_passes=40) > 0.2
