from dataclasses import replace

import pytest

from specbench.decide.comparisons import context_curves, crossovers, judge
from tests.cell_keys import with_axes


def cell_at(summarized, concurrency, low, estimate, high, **rest):
    """Cell K = 4 at this concurrency."""
    cell = summarized(4, low, estimate, high, **rest)
    return replace(cell, key=with_axes(cell.key, concurrency=concurrency))


def single(items):
    (item,) = items
    return item


def test_the_crossover_is_the_lowest_concurrency_without_further_gains(summarized):
    cells = [
        cell_at(summarized, 16, 0.7, 0.8, 0.9),
        cell_at(summarized, 1, 1.8, 2.0, 2.2),
        cell_at(summarized, 4, 0.99, 1.25, 1.5),  # not shown to pay, though the estimate is above 1
    ]
    crossover = single(crossovers(cells))
    assert crossover.concurrency == 4
    assert [point.at for point in crossover.points] == [1, 4, 16]
    # log 1.25 above and log 0.8 below are as far from 0: half way from log 4 to log 16.
    assert crossover.estimated == pytest.approx(8.0)


def test_the_crossover_is_interpolated_between_the_estimates(summarized):
    cells = [cell_at(summarized, 4, 1.5, 1.5625, 1.6), cell_at(summarized, 16, 0.7, 0.8, 0.9)]
    # log 1.5625 is twice as far from 0 as log 0.8: two thirds of the way from log 4 to log 16.
    assert single(crossovers(cells)).estimated == pytest.approx(4 * 4 ** (2 / 3))


def test_speculation_that_pays_everywhere_has_no_crossover(summarized):
    crossover = single(crossovers([cell_at(summarized, c, 1.2, 1.5, 1.8) for c in (1, 4)]))
    assert (crossover.concurrency, crossover.estimated) == (None, None)


def test_speculation_that_never_gains_crosses_at_the_lowest_load(summarized):
    crossover = single(crossovers([cell_at(summarized, c, 0.5, 0.6, 0.7) for c in (1, 4)]))
    assert (crossover.concurrency, crossover.estimated) == (1, None)


def test_the_crossover_ignores_gaps_at_lower_concurrency(summarized):
    lows = {1: 0.97, 2: 1.1, 4: 0.99, 8: 0.8}
    cells = [cell_at(summarized, c, low, low + 0.1, low + 0.2) for c, low in lows.items()]
    assert single(crossovers(cells)).concurrency == 4
    assert single(crossovers(cells[:2])).concurrency is None


def test_a_crossover_without_intervals_is_only_an_estimate(summarized):
    few = [cell_at(summarized, 1, 1.2, 1.5, 1.8), cell_at(summarized, 4, None, 0.5, None)]
    assert single(crossovers(few)).concurrency is None
    # The interpolated point follows from the estimates and is not an answer.
    assert single(crossovers(few)).estimated is not None


def test_invalid_cells_are_plotted_without_a_crossover(summarized):
    cells = [
        cell_at(summarized, 1, 1.2, 1.5, 1.8),
        cell_at(summarized, 4, 0.5, 0.6, 0.7, invalid=("throttled",)),
    ]
    crossover = single(crossovers(cells))
    assert [point.valid for point in crossover.points] == [True, False]
    assert (crossover.concurrency, crossover.estimated) == (None, None)


def test_each_workload_and_adaptive_k_has_its_own_crossover(summarized):
    code = [cell_at(summarized, c, 1.2, 1.5, 1.8) for c in (1, 4)]
    chat = [cell_at(summarized, c, 1.2, 1.5, 1.8, workload="chat") for c in (1, 4)]
    auto = [replace(cell, key=with_axes(cell.key, adaptive=True)) for cell in code]
    results = crossovers([*code, *chat, *auto])
    assert [(c.key.condition.workload, c.key.draft.is_adaptive) for c in results] == [
        ("code", False),
        ("chat", False),
        ("code", True),
    ]
    assert crossovers(code[:1]) == ()
    baseline = summarized(0, None, 1.0, None)
    rows = replace(baseline, key=with_axes(baseline.key, concurrency=4))
    assert crossovers([baseline, rows]) == ()


def test_context_curves_have_speedup_and_kv_bytes_by_prompt_length(summarized):
    def at_length(context, estimate, kv_bytes):
        cell = summarized(4, None, estimate, None, metrics={"kv_bytes": kv_bytes})
        return replace(cell, key=with_axes(cell.key, context=context))

    cells = [at_length(4096, 1.5, 80.0), at_length(512, 1.8, 10.0)]
    curve = single(context_curves(cells))
    assert [(p.at, p.kv_bytes) for p in curve.points] == [(512, 10.0), (4096, 80.0)]
    assert context_curves([cells[0], summarized(4, None, 1.9, None)]) == ()


def test_an_interval_above_1_without_a_speedup_ends_the_crossover(summarized):
    cells = [
        cell_at(summarized, 1, 1.8, 2.0, 2.2),
        cell_at(summarized, 4, 1.002, 1.008, 1.015),
        cell_at(summarized, 16, 1.005, 1.1, 1.2),
    ]
    assert [judge(cell.speedup) for cell in cells] == ["faster", "no speedup", "undecided"]
    assert single(crossovers(cells)).concurrency == 4
