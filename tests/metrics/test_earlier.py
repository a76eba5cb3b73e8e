"""The deviation between states of the machine, from runs whose speedups are chosen."""

import math
from dataclasses import replace

import numpy as np
import pytest

from specbench.metrics.cell import against
from specbench.metrics.earlier import MOST_RUNS, earlier_runs
from specbench.metrics.machine import machine_prior
from specbench.records import CellKey, CellPlan, EarlierRuns
from specbench.runs import StoredRun
from specbench.stats.intervals import speedup_ratio
from specbench.stats.machine_noise import ASSUMED_FREEDOM, PARTS, SHARED, assumed_noise
from tests.decide.cells import BASE, cell, draft, request
from tests.frames.small_run import small_run
from tests.made_records import made_block

KEY = draft(4)
NUM_PROMPTS = 12
SHARE = SHARED + (1 - SHARED) / PARTS


def run(
    index: int,
    speedup: float,
    prompts: str = "p",
    sd: float = 0.0,
    key: CellKey = KEY,
    num: int = NUM_PROMPTS,
) -> StoredRun:
    """A run in which every prompt has this speedup, or speedups around it."""
    rng = np.random.default_rng(index)
    stored = small_run(f"run-{index}")
    seconds = 1 / speedup * np.exp(sd * rng.normal(size=num))
    blocks = [
        made_block(name, request(BASE, name, 1.0, 0), request(key, name, float(s), 0))
        for name, s in ((f"{prompts}{i}", s) for i, s in enumerate(seconds))
    ]
    cells = tuple(CellPlan(key=k, num_prompts=NUM_PROMPTS, num_repeats=1) for k in (BASE, key))
    return replace(stored, run=replace(stored.run, cells=cells), blocks=tuple(blocks))


def test_the_deviation_is_that_of_the_log_speedups_of_a_run_for_one_state():
    found = earlier_runs([run(0, 1.5), run(1, 1.8), run(2, 1.6)], {KEY})
    assert found is not None
    logs = [math.log(s) for s in (1.5, 1.8, 1.6)]
    assert found.num_runs == 3
    assert found.deviation == pytest.approx(np.std(logs, ddof=1) / math.sqrt(SHARE))


def test_what_other_prompts_explain_is_not_the_machines():
    other = earlier_runs([run(i, 1.5, f"run{i}-", sd=0.2) for i in range(8)], {KEY})
    same = earlier_runs([run(i, 1.5, sd=0.2) for i in range(8)], {KEY})
    assert other is not None
    assert same is not None
    assert other.deviation < same.deviation / 2


def test_a_prompt_that_one_run_lacks_does_not_explain_what_the_others_differ_by():
    speeds = [1.2, 1.8, 1.4, 1.6]
    same = earlier_runs([run(i, s) for i, s in enumerate(speeds)], {KEY})
    spread = [run(i, s, sd=0.3, num=NUM_PROMPTS - (i == 0)) for i, s in enumerate(speeds)]
    lacking = earlier_runs(spread, {KEY})
    assert same is not None
    assert lacking is not None
    assert lacking.deviation > 0.8 * same.deviation


@pytest.mark.parametrize(("prompts", "num", "others"), [("p", 6, 0.5), ("p", 12, 0.0), ("q", 6, 1)])
def test_prompts_explain_a_difference_as_far_as_the_larger_run_has_others(prompts, num, others):
    first, second = run(0, 1.2, sd=0.2), run(1, 1.8, prompts, sd=0.2, num=num)
    speedups = []
    for stored in (first, second):
        base, spec = zip(*(block.requests for block in stored.blocks), strict=True)
        speedups.append(speedup_ratio([r.decode_s for r in base], [r.decode_s for r in spec]))
    difference = speedups[0].log - speedups[1].log
    explained = others * sum(speedup.standard_error**2 for speedup in speedups)
    for runs in ([first, second], [second, first]):
        found = earlier_runs(runs, {KEY})
        assert found is not None
        assert found.deviation**2 == pytest.approx((difference**2 - explained) / 2 / SHARE)


def test_runs_of_other_k_are_no_degrees_of_freedom():
    others = [run(i, 1.5, key=draft(i)) for i in (5, 6, 7)]
    found = earlier_runs([run(0, 1.5), *others, run(1, 1.8)], {draft(k) for k in range(1, 9)})
    assert found is not None
    assert found.num_runs == 2


def test_a_cell_of_more_runs_counts_by_its_degrees_of_freedom():
    """Three runs of one cell say twice as much as two of another; both are of three runs."""
    thrice = [run(0, 1.5), run(1, 1.8), run(2, 1.6)]
    twice = [run(i, speedup, key=draft(5)) for i, speedup in ((3, 1.2), (4, 3.0))]
    each = [earlier_runs(runs, {KEY, draft(5)}) for runs in (thrice, twice)]
    both = earlier_runs([*thrice, *twice], {KEY, draft(5)})
    assert both is not None
    assert both.num_runs == 3
    of_thrice, of_twice = (found.deviation**2 for found in each if found is not None)
    assert both.deviation**2 == pytest.approx((2 * of_thrice + of_twice) / 3)


def test_a_single_run_and_runs_of_other_cells_show_no_deviation():
    assert earlier_runs([run(0, 1.5)], {KEY}) is None
    assert earlier_runs([run(0, 1.5), run(1, 1.8)], {draft(5)}) is None


def test_invalid_cells_do_not_count():
    sound, other = run(0, 1.5), run(1, 1.8)
    blocks = [
        replace(b, requests=tuple(replace(r, output_ids=r.output_ids * 2) for r in b.requests))
        for b in other.blocks
    ]
    assert earlier_runs([sound, replace(other, blocks=tuple(blocks))], {KEY}) is None


def test_only_the_newest_runs_count():
    found = earlier_runs([run(i, 1.5) for i in range(MOST_RUNS)] + [run(99, 9.0)], {KEY})
    assert found is not None
    assert (found.num_runs, found.deviation) == (MOST_RUNS, pytest.approx(0.0, abs=1e-9))


def test_earlier_runs_are_pooled_with_what_is_assumed_unless_both_sides_draft():
    plain, fast = cell(BASE, [2.0] * 6), cell(KEY, [1.0] * 6)
    known = replace(against(fast, plain), earlier=EarlierRuns(num_runs=3, deviation=0.2))
    noise = machine_prior(known)
    assumed = assumed_noise(noise.kind)
    assert (noise.num_earlier, noise.degrees_of_freedom) == (3, ASSUMED_FREEDOM + 2)
    of_both = (ASSUMED_FREEDOM * assumed.variance + 2 * 0.2**2) / (ASSUMED_FREEDOM + 2)
    assert noise.variance == pytest.approx(of_both)
    assert machine_prior(against(known, fast)) == assumed_noise(noise.kind, alike=True)
