"""A run that is told the costs of another engine traces here and measures nothing."""

import pytest

from specbench.records import EngineCost
from specbench.report.document import build_document
from tests.bench.test_forecasting import FORECAST, forecast_of, run
from tests.settings.flat_settings import changed


def cost(k: int, seconds: float, engine: str = "vllm 0.32") -> EngineCost:
    return EngineCost(
        source="costs.csv",
        engine=engine,
        num_speculative_tokens=k,
        concurrency=1,
        cost=seconds,
        is_relative=False,
    )


def test_imported_step_times_give_a_forecast_without_measuring(tmp_path):
    """There a round at K = 4 is dear: K = 2 is best, 40 tokens in 14 rounds of 1.1 steps."""
    theirs = [cost(0, 1.0), cost(2, 1.1), cost(4, 4.0)]
    settings = changed(FORECAST, costs=("costs.csv",), temperatures=(1.0,), num_repeats=1)
    stored = run(tmp_path, settings, costs=theirs)
    assert stored.blocks == ()
    assert stored.round_costs == ()
    good = forecast_of(stored, "big/good")
    assert [p.num_speculative_tokens for p in good.points] == [0, 2, 4]
    assert (good.best, good.costs_of) == (2, "vllm 0.32 (costs.csv)")
    assert good.acceptance_rule == "greedy_draft"
    assert {trace.drafting for trace in stored.traces} == {"greedy"}
    assert good.points[1].speedup.estimate == pytest.approx(40 / (14 * 1.1))
    document = build_document(stored)
    assert document.missing == ()
    assert document.decisions == ()
