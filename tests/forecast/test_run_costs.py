"""--step-times RUN: round times of a measured engine, and the resulting forecast."""

import math
from dataclasses import replace

import pytest

from specbench.errors import SpecbenchError, UsageError
from specbench.forecast.cost_curve import curve_from
from specbench.forecast.engine_costs import read_file
from specbench.metrics.aggregate import aggregate_run
from specbench.metrics.summary import summarize
from specbench.records import ClientLoad
from specbench.runs import SCHEMA_VERSION, create_run
from tests.cell_keys import KEY
from tests.served_sessions import Sweep, served_sweep


@pytest.fixture(scope="module")
def sweep():
    return served_sweep()


def store_copy(root, stored):
    with create_run(root, replace(stored.run, schema_version=SCHEMA_VERSION)) as store:
        for record in (*stored.blocks, *stored.servers):
            store.append(record)
        store.finish()
        return store.folder


def test_each_explored_cell_gives_a_step_time_and_its_speedup(tmp_path, sweep):
    costs = read_file(store_copy(tmp_path, sweep))
    cells = summarize(aggregate_run(sweep))
    assert len(costs) == len(cells) == 6  # K = 0, 2, 4 at concurrency 1 and 4
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


def test_a_cost_applies_only_to_its_drafter_and_condition(tmp_path, sweep):
    costs = read_file(store_copy(tmp_path, sweep))
    at = KEY.condition

    def ks_of(drafter="draft", **changes):
        condition = replace(at, **changes)
        return {c.num_speculative_tokens for c in costs if c.is_of(condition, drafter)}

    assert ks_of() == {0, 2, 4}
    assert ks_of("eagle") == {0}
    for name, other in {
        "workload": "chat",
        "temperature": 0.7,
        "target": "another",
        "context": 1_000,
        "num_samples": 8,
    }.items():
        assert not ks_of(**{name: other})


def test_the_step_times_of_two_contexts_are_not_averaged(tmp_path):
    runs = {
        1_000: served_sweep(Sweep(context=1_000)),
        16_000: served_sweep(Sweep(context=16_000, slower={0: 1.5, 2: 2.0, 4: 2.0})),
    }
    folders = [store_copy(tmp_path / f"{context}", stored) for context, stored in runs.items()]
    costs = [cost for folder in folders for cost in read_file(folder)]
    ratios = []
    for context in runs:
        usable = [c for c in costs if c.is_of(replace(KEY.condition, context=context), "draft")]
        ratios.append(curve_from(usable, concurrency=1, ks=(4,)).ratio(4, 0).log)
    assert ratios[1] - ratios[0] == pytest.approx(math.log(2.0 / 1.5))
    assert not [cost for cost in costs if cost.is_of(KEY.condition, "draft")]


def test_invalid_and_open_loop_cells_give_no_step_times(tmp_path, sweep):
    cell_id = next(plan.key.id for plan in sweep.run.cells if plan.key.draft.k == 4)
    servers = tuple(
        replace(
            s, client=(ClientLoad(cell_id=cell_id, seconds=1, cpu_s=1, num_events=1, mean_lag_s=0),)
        )
        for s in sweep.servers
    )
    costs = read_file(store_copy(tmp_path, replace(sweep, servers=servers)))
    assert {(c.num_speculative_tokens, c.concurrency) for c in costs} == {
        (0, 1),
        (2, 1),
        (0, 4),
        (2, 4),
        (4, 4),
    }


def test_a_run_on_two_engines_needs_a_choice(tmp_path, sweep):
    other = served_sweep(Sweep(engine="sglang"))
    both = replace(
        sweep,
        run=replace(sweep.run, cells=(*sweep.run.cells, *other.run.cells)),
        blocks=(*sweep.blocks, *other.blocks),
        servers=(*sweep.servers, *other.servers),
    )
    with pytest.raises(UsageError, match=r"sglang.*vllm"):
        read_file(store_copy(tmp_path, both))


def test_a_cost_curve_from_a_run_has_its_speedups_and_lengths(tmp_path, sweep):
    curve = curve_from(read_file(store_copy(tmp_path, sweep)), concurrency=1, ks=(2, 4))
    assert curve.speedups[4] == pytest.approx(2.0, rel=0.1)
    assert curve.lengths[4] == pytest.approx(1 + 16 / 8)
    assert curve.round_s(4) == pytest.approx(0.24 / 8, rel=0.1)


def test_a_run_without_a_server_or_a_non_run_is_refused(tmp_path, sweep):
    ours = store_copy(tmp_path, replace(sweep, servers=()))
    with pytest.raises(UsageError, match="no valid cell"):
        read_file(ours)
    (tmp_path / "empty").mkdir()
    with pytest.raises(SpecbenchError):
        read_file(tmp_path / "empty")
