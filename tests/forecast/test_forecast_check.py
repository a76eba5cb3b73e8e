"""Forecasts against measurements: a wrong forecast is reported, with its error."""

from collections.abc import Mapping

import pytest

from specbench.forecast.forecast import forecast
from specbench.forecast.forecast_check import check_forecasts, is_left_out
from specbench.metrics.cell import CellData, against
from specbench.metrics.summary import summarize
from tests.decide.cells import BASE, cell, draft
from tests.forecast.traces import curve, trace

# A measured cell of tests/decide/cells.py takes 6 rounds of 2 tokens for its 12.
HALF = [True, False] * 6
STEP_S = 0.1


def traces():
    return [trace(f"p{i}", HALF, depth=2) for i in range(6)]


def measured_cells(at_k_s: float) -> tuple[CellData, CellData]:
    base = cell(BASE, [12 * STEP_S] * 6)
    return base, against(cell(draft(1), [at_k_s] * 6), base)


def checked(costs: Mapping[int, float], at_k_s: float):
    """The forecast for K = 1 with these costs, and a cell of `at_k_s` seconds per prompt."""
    cells = measured_cells(at_k_s)
    record = forecast(draft(1), traces(), curve(costs), (1,))
    (forecast_check,) = check_forecasts([record], traces(), cells, summarize(cells))
    return forecast_check


def test_an_exact_forecast_has_errors_of_0():
    """6 rounds of 1.5 steps: 12 / 9 = 1.33 times as fast."""
    forecast_check = checked({0: STEP_S, 1: 1.5 * STEP_S}, 6 * 1.5 * STEP_S)
    assert forecast_check.point(1).speedup.estimate == pytest.approx(12 / 9)
    measured = forecast_check.measured[1]
    assert measured.length_error == pytest.approx(0)
    assert measured.speedup_error == pytest.approx(0)
    assert measured.mean_acceptance_length == pytest.approx(2)


def test_a_planted_wrong_cost_is_caught_only_as_an_error_of_the_speedup():
    """The cost of a round is assumed as two thirds of its value: 50% too fast."""
    forecast_check = checked({0: STEP_S, 1: STEP_S}, 6 * 1.5 * STEP_S)
    measured = forecast_check.measured[1]
    assert measured.speedup_error == pytest.approx(0.5)
    assert measured.length_error == pytest.approx(0)


def test_a_forecast_is_compared_on_the_measured_prompts():
    """Twelve prompts were traced, and only the six easy ones were measured."""
    cells = measured_cells(0.9)
    easy, hard = traces(), [trace(f"q{i}", [False] * 12, depth=2) for i in range(6)]
    record = forecast(draft(1), [*easy, *hard], curve({0: STEP_S, 1: 0.15}), (1,))
    assert record.points[1].speedup.estimate == pytest.approx(144 / 108 / 1.5)
    (forecast_check,) = check_forecasts([record], [*easy, *hard], cells, summarize(cells))
    assert forecast_check.measured[1].length_error == pytest.approx(0)
    assert forecast_check.measured[1].speedup_error == pytest.approx(0)


def test_the_last_of_two_forecasts_is_used():
    cells = measured_cells(0.9)
    records = [
        forecast(draft(1), traces(), curve({0: STEP_S, 1: cost}), (1,)) for cost in (0.3, 0.15)
    ]
    (forecast_check,) = check_forecasts(records, traces(), cells, summarize(cells))
    assert forecast_check.forecast == records[1]


def test_a_run_with_only_a_forecast_has_no_measurement():
    record = forecast(draft(1), traces(), curve({0: STEP_S, 1: STEP_S}), (1,))
    (forecast_check,) = check_forecasts([record], traces(), (), ())
    assert forecast_check.measured == {}


def test_a_cell_that_the_forecast_excluded_is_not_missing():
    record = forecast(draft(2), traces(), curve({0: 0.1, 1: 0.15, 2: 0.5}), (1, 2))
    assert record.to_measure == (1,)
    assert not is_left_out(BASE, [record])
    assert not is_left_out(draft(1), [record])
    assert is_left_out(draft(2), [record])
    assert not is_left_out(draft(4), [record])  # such as a K that failed to warm up
    assert not is_left_out(draft(2, temperature=1.0), [record])
    assert not is_left_out(draft(2, pairing="demo/other"), [record])
    assert not is_left_out(draft(2, adaptive=True), [record])
    assert not is_left_out(draft(2), [])
