"""How much the machine's states differ, by earlier runs of the same cells on equal hardware."""

from collections.abc import Iterable, Set
from itertools import combinations

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
    """The deviation of the log speedup of `keys` between the runs; None if fewer than two have one.

    The variance of a run's log speedup has the prompts' part, which is subtracted as far as two
    runs had other prompts, and the part of its states of the machine. All cells of a run share its
    states, so that only runs of one cell are degrees of freedom.
    """
    by_key: dict[CellKey, list[tuple[LogRatio, frozenset[str]]]] = {}
    ids = set[str]()
    for stored in runs:
        for cell in aggregate_run(stored):
            if cell.key not in keys or judge_cell(cell):
                continue
            ratio = log_speedup(cell, paired_decode(cell))
            if ratio is not None and ratio.prompts is not None and ratio.machine is not None:
                prompts = frozenset(request.prompt_id for request in cell.finished)
                by_key.setdefault(cell.key, []).append((ratio, prompts))
                ids.add(stored.run.run_id)
        if len(ids) == MOST_RUNS:
            break
    repeated = [several for several in by_key.values() if len(several) > 1]
    if not repeated:
        return None
    freedoms = [len(several) - 1 for several in repeated]
    variance = np.average([_between(several) for several in repeated], weights=freedoms)
    return EarlierRuns(num_runs=max(freedoms) + 1, deviation=float(np.sqrt(variance)))


def _between(several: list[tuple[LogRatio, frozenset[str]]]) -> float:
    """The variance between states of the machine of one cell's log speedups."""
    halves = []  # of the squared differences, whose mean is the variance
    for (a, of_a), (b, of_b) in combinations(several, 2):
        assert a.prompts is not None
        assert b.prompts is not None
        share_of_others = 1 - len(of_a & of_b) / max(len(of_a), len(of_b))
        explained = a.prompts.standard_error**2 + b.prompts.standard_error**2
        halves.append(((a.log - b.log) ** 2 - share_of_others * explained) / 2)
    share = np.mean([ratio.machine.share for ratio, _ in several if ratio.machine])
    return max(float(np.mean(halves) / share), 0.0)
