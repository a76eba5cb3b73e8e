"""--costs RUN: what an engine that was measured takes for a round, and what it came to."""

from dataclasses import replace

import pytest

from specbench.errors import SpecbenchError, UsageError
from specbench.forecast.cost_curve import told
from specbench.forecast.engine_costs import read_file
from specbench.metrics.gathering import gather_run
from specbench.metrics.summary import summarise
from specbench.runs import SCHEMA_VERSION, create_run
from tests.served_sessions import served_sweep


@pytest.fixture(scope="module")
def sweep():
    return served_sweep()


def kept(root, stored):
    with create_run(root, replace(stored.run, schema_version=SCHEMA_VERSION)) as ledger:
        for record in (*stored.blocks, *stored.servers):
            ledger.append(record)
        ledger.finish()
        return ledger.folder


def test_each_cell_of_the_first_pass_is_a_cost_with_what_came_of_it(tmp_path, sweep):
    costs = read_file(kept(tmp_path, sweep))
    cells = summarise(gather_run(sweep))
    assert len(costs) == len(cells) == 6  # K = 0, 2, 4 at 1 and 4 requests at once
    for cost, cell in zip(costs, cells, strict=True):
        assert cost.cost == cell.metrics["round_s"]
        assert cost.mean_acceptance_length == cell.metrics.get("mean_acceptance_length")
        assert cost.speedup == (cell.speedup.estimate if cell.speedup else None)
    assert {cost.engine for cost in costs} == {"vllm 0.32.1"}
    assert {(cost.drafter, cost.num_speculative_tokens) for cost in costs} == {
        (None, 0),
        ("draft", 2),
        ("draft", 4),
    }


def test_a_cost_says_nothing_of_another_drafter_or_workload(tmp_path, sweep):
    costs = read_file(kept(tmp_path, sweep))
    ks = {c.num_speculative_tokens for c in costs if c.is_of("code", "eagle")}
    assert ks == {0}
    assert not [c for c in costs if c.is_of("chat", "draft")]


def test_the_curve_has_what_was_measured_there(tmp_path, sweep):
    curve = told(read_file(kept(tmp_path, sweep)), concurrency=1, ks=(2, 4))
    assert curve.speedups[4] == pytest.approx(2.0, rel=0.1)
    assert curve.lengths[4] == pytest.approx(1 + 15 / 8)
    assert curve.round_s(4) == pytest.approx(0.24 / 8, rel=0.1)


def test_a_run_of_no_server_and_what_is_no_run_are_refused(tmp_path, sweep):
    ours = kept(tmp_path, replace(sweep, blocks=(), servers=()))
    with pytest.raises(UsageError, match="measured no serving engine"):
        read_file(ours)
    (tmp_path / "empty").mkdir()
    with pytest.raises(SpecbenchError):
        read_file(tmp_path / "empty")
