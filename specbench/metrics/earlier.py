"""How much the machine's states differ, by earlier runs of the same cells on equal hardware."""

from collections.abc import Iterable, Set

import numpy as np

from specbench.metrics.aggregate import aggregate_run
from specbench.metrics.pairs import paired_decode
from specbench.metrics.summary import log_speedup
from specbench.metrics.validity import judge_cell
from specbench.records import CellKey, EarlierRuns
from specbench.runs import StoredRun
from specbench.stats.intervals import LogRatio

MOST_RUNS = 8  # the newest show the machine as it is now


def earlier_runs(runs: Iterable[StoredRun], keys: Set[CellKey]) -> EarlierRuns | None:
    """The deviation of the log speedup of `keys` between the runs; None below two that have one.

    The variance of a run's log speedup has the prompts' part, which is subtracted unless the runs
    had the same prompts, and the part of its states of the machine. All cells of a run share its
    states, so they count as one degree of freedom.
    """
    found: dict[CellKey, list[tuple[LogRatio, frozenset[str]]]] = {}
    ids = set[str]()
    for stored in runs:
        for cell in aggregate_run(stored):
            if not cell.k or cell.key not in keys or judge_cell(cell):
                continue
            ratio = log_speedup(cell, paired_decode(cell))
            if ratio is not None and ratio.prompts is not None and ratio.machine is not None:
                prompts = frozenset(request.prompt_id for request in cell.finished)
                found.setdefault(cell.key, []).append((ratio, prompts))
                ids.add(stored.run.run_id)
        if len(ids) == MOST_RUNS:
            break
    variances = [_between(several) for several in found.values() if len(several) > 1]
    if not variances:
        return None
    return EarlierRuns(num_runs=len(ids), deviation=float(np.sqrt(np.mean(variances))))


def _between(several: list[tuple[LogRatio, frozenset[str]]]) -> float:
    """The variance between states of the machine of one cell's log speedups."""
    ratios = [ratio for ratio, _ in several]
    between = float(np.var([ratio.log for ratio in ratios], ddof=1))
    if len({prompts for _, prompts in several}) > 1:
        between -= float(np.mean([r.prompts.standard_error**2 for r in ratios if r.prompts]))
    share = np.mean([ratio.machine.share for ratio in ratios if ratio.machine])
    return max(float(between / share), 0.0)
