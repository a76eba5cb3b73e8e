"""Which K a forecast has measured, and what it counts for that."""

import math

import pytest

from specbench.forecast.cost_curve import CostCurve
from specbench.forecast.forecast import Effort, choose, forecast, replayed
from tests.decide.cells import draft
from tests.forecast.traces import curve, right

PROMPTS = "abcdef"


def test_three_of_six_equal_candidates_are_measured():
    """Costs of K + 1 steps, so that every K is as fast as K = 0; each K's repetitions differ."""
    visits = {0: (1.0,) * 6}
    for k in range(1, 7):
        factors = [(0.7, 1.3, 0.9, 1.1, 0.8, 1.25)[(i + k) % 6] for i in range(6)]
        visits[k] = tuple((k + 1) * factor for factor in factors)
    noisy = CostCurve(visits=visits)
    traces = [right(p, 43, depth=6) for p in PROMPTS]
    points = forecast(draft(6), traces, noisy, range(7)).points
    rivals = [p for p in points if p.num_speculative_tokens]
    assert len(rivals) == 6
    assert len(choose(points, noisy)[1]) == 3


def test_load_shared_by_every_k_adds_no_error_to_a_cost_ratio():
    busy = (1.0, 3.0, 1.0, 2.0, 1.5, 4.0)
    visits = {0: busy, 2: tuple(1.5 * b for b in busy)}
    here = CostCurve(visits=visits).ratio(2, 0)
    assert (here.log, here.standard_error) == pytest.approx((math.log(1.5), 0.0), abs=1e-12)
    theirs = CostCurve(visits=visits, source="vllm (costs.csv)").ratio(2, 0)
    assert theirs.standard_error > 0.1  # of another engine nothing belongs together


def test_turns_are_replayed_as_separate_texts():
    rounds = replayed([right("a"), right("a", turn=1), right("b")], 1)
    assert rounds.of_texts == (6, 6, 6)


def test_repeated_measurements_multiply_the_forecast_time():
    traces, costs = [right(p) for p in PROMPTS], curve({0: 0.1, 2: 0.15})
    once = forecast(draft(2), traces, costs, (2,))
    thrice = forecast(draft(2), traces, costs, (2,), effort=Effort(after=3.0))
    assert thrice.measure_s == pytest.approx(3 * once.measure_s)
