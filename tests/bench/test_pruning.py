"""Which K a budget keeps, over made-up speed-up curves with noise; seeded."""

import re
from functools import cache
from statistics import fmean

import pytest

from specbench.bench import pruning
from specbench.report.document import build_document
from tests.bench.curves import CurveEngine, curve
from tests.bench.fake_runs import SETTINGS, cells_of, explored, make_plan, measure
from tests.bench.fakes import FakeClock, RecordingWatch
from tests.settings.flat_settings import changed

KS = tuple(range(9))
FORTY = [f"prompt {i}" for i in range(40)]


def measured(folder, speedups, seed, budget_s, jitter=0.1):
    """A run over a curve, and its warnings."""
    settings = changed(
        SETTINGS,
        pairings=("big/good",),
        num_speculative_tokens=KS,
        budget_s=budget_s,
        num_repeats=1,
    )
    folder.mkdir()
    watch = RecordingWatch()
    engine = CurveEngine(FakeClock(), speedups=speedups, seed=seed, jitter=jitter)
    return measure(make_plan(folder, settings, FORTY), engine, folder, watch), watch.warnings


def num_prompts(run):
    """By K, the prompts that the first pass measured it on."""
    cells = build_document(run).cells
    return {k: 0 for k in KS} | {cell.key.draft.k: cell.num_prompts for cell in cells}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("budget_s", [800.0, 1_500.0, 4_000.0])
def test_every_k_has_five_prompts_or_a_warning_that_names_it(tmp_path, seed, budget_s):
    run, warnings = measured(tmp_path / "run", curve(seed), seed, budget_s)
    known = num_prompts(run)
    for k, num in known.items():
        first = [w for w in warnings if "first pays" in w or "does not pay" in w]
        stopped = {
            int(named)
            for w in warnings
            if "no more than" in w
            for ks in re.findall(r"K=([\d, ]+)", w)
            for named in ks.split(",")
        }
        assert num >= 5 or (num == 0 and first) or k in stopped or explored_too_few(run)


def explored_too_few(run):
    return len(explored(run)) < 5
