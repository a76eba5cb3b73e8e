"""The noise of recorded runs, and simulated pairs of runs made from it.

What identical runs of one machine measured is split, in logarithms, into prompts, whole runs
and the rest (two-way layout). A simulated run draws one whole run's deviation, the same for all
its cells, and for every prompt the rest of a run drawn anew; at temperature > 0 also that run's
counts. So runs differ as recorded runs do, from prompt to prompt and as wholes.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specbench.gate.baseline import Snapshot, SourceRun, pool
from specbench.gate.figures import CellFigures, Figure, rounded
from specbench.gate.fingerprint import Fingerprint
from specbench.metrics.cell import CellData
from specbench.records import CellKey, Condition, DraftConfig, Fixed
from specbench.stats.rounds import mean_length

Floats = NDArray[np.float64]
_COLUMNS = ("base_s", "spec_s", "base_tokens", "spec_tokens", "accepted", "rounds")
_SIGNIFICANT = 4  # digits of a stored second


class Prompts(NamedTuple):
    """A run's sums, an entry per prompt; tokens are those after the first."""

    base_s: Floats
    spec_s: Floats
    base_tokens: Floats
    spec_tokens: Floats
    accepted: Floats
    rounds: Floats


class Layout(NamedTuple):
    """Logarithms of seconds a token, split: [prompts], [runs], [runs, prompts]."""

    means: Floats
    of_run: Floats
    rest: Floats


@dataclass(frozen=True, eq=False)
class CellNoise:
    """One cell in all recorded runs; every array is [runs, prompts]."""

    workload: str
    temperature: float
    columns: Prompts

    @property
    def num_runs(self) -> int:
        return len(self.columns.base_s)

    @cached_property
    def layouts(self) -> tuple[Layout, Layout]:
        """Layouts of the baseline's and the cell's own seconds.

        Deviations from a mean over few runs are too small, by what `widen` gives back.
        """
        columns = self.columns
        widen = np.sqrt(self.num_runs / (self.num_runs - 1))
        found = []
        for seconds, tokens in (
            (columns.base_s, columns.base_tokens),
            (columns.spec_s, columns.spec_tokens),
        ):
            logs = np.log(seconds / tokens)
            means = logs.mean(axis=0)
            of_run = (logs - means).mean(axis=1)
            rest = logs - means - of_run[:, None]
            found.append(Layout(means, widen * of_run, widen * rest))
        return found[0], found[1]


def noise_of(runs: Sequence[Sequence[CellData]]) -> tuple[CellNoise, ...]:
    """The recorded noise of identical runs: of every cell that drafts, in the first's order."""
    found = []
    for cell in runs[0]:
        if cell.k == 0:
            continue
        same = [next(c for c in cells if c.key == cell.key) for cells in runs]
        prompts = sorted({request.prompt_id for request in cell.finished})
        rows = [np.array([_sums(one, prompt) for prompt in prompts]).T for one in same]
        found.append(
            CellNoise(
                cell.key.condition.workload,
                cell.key.condition.temperature,
                Prompts(*np.array(rows).transpose(1, 0, 2)),
            )
        )
    return tuple(found)


def _sums(cell: CellData, prompt: str) -> tuple[float, ...]:
    pairs = [pair for pair in cell.pairs if pair.spec.prompt_id == prompt]
    logs = [pair.spec.rounds for pair in pairs if pair.spec.rounds]
    return (
        sum(pair.base.decode_s or 0.0 for pair in pairs),
        sum(pair.spec.decode_s or 0.0 for pair in pairs),
        sum(pair.base.num_output_tokens - 1 for pair in pairs),
        sum(pair.spec.num_output_tokens - 1 for pair in pairs),
        sum(sum(log.num_accepted) for log in logs),
        sum(map(len, logs)),
    )


def write_noise(noise: Sequence[CellNoise], path: Path, about: dict[str, str]) -> None:
    """Four digits of a second are far below its noise."""
    cells = [
        {
            "workload": cell.workload,
            "temperature": cell.temperature,
            **{
                name: [[float(f"{v:.{_SIGNIFICANT}g}") for v in row] for row in column.tolist()]
                for name, column in cell.columns._asdict().items()
            },
        }
        for cell in noise
    ]
    path.write_text(json.dumps({"about": about, "cells": cells}, separators=(",", ":")) + "\n")


def read_noise(path: Path) -> tuple[CellNoise, ...]:
    return tuple(
        CellNoise(
            cell["workload"],
            cell["temperature"],
            Prompts(*(np.array(cell[name], dtype=np.float64) for name in _COLUMNS)),
        )
        for cell in json.loads(path.read_text())["cells"]
    )


Change = Callable[[Prompts], Prompts]


def simulated_run(
    noise: Sequence[CellNoise],
    rng: np.random.Generator,
    run_id: str,
    change: Change | None = None,
    *,
    between_runs: float = 1.0,
) -> Snapshot:
    """A run with the noise of recorded ones; `change` is what became of it.

    `between_runs` scales what a whole run has in common: 0 leaves the noise of prompts alone.
    """
    whole = int(rng.integers(noise[0].num_runs))
    cells = []
    for i, cell in enumerate(noise):
        drawn = _draw(cell, whole, rng, between_runs)
        cells.append(_figures(cell, i, change(drawn) if change else drawn))
    return Snapshot(
        origins=(SourceRun(run_id=run_id, created_at="", specbench_version=""),),
        fingerprint=Fingerprint(
            models={}, tokenizers={}, workloads={}, sampling="", hardware={}, torch=""
        ),
        cells=tuple(cells),
    )


def simulated_pair(
    noise: Sequence[CellNoise],
    rng: np.random.Generator,
    change: Change | None = None,
    *,
    runs: tuple[int, int] = (1, 1),
    between_runs: float = 1.0,
) -> tuple[Snapshot, Snapshot]:
    """A baseline and a candidate of some runs each."""
    sides = []
    for name, count, what in zip(("baseline", "candidate"), runs, (None, change), strict=True):
        drawn = [
            simulated_run(noise, rng, f"{name} {i}", what, between_runs=between_runs)
            for i in range(count)
        ]
        sides.append(pool(drawn))
    return sides[0], sides[1]


def _draw(cell: CellNoise, whole: int, rng: np.random.Generator, between_runs: float) -> Prompts:
    num_runs, num_prompts = cell.columns.base_s.shape
    rows, here = rng.integers(num_runs, size=num_prompts), np.arange(num_prompts)
    counts = [column[rows, here] for column in cell.columns[2:]]
    seconds = [
        np.exp(split.means + between_runs * split.of_run[whole] + split.rest[rows, here]) * tokens
        for split, tokens in zip(cell.layouts, counts[:2], strict=True)
    ]
    return Prompts(*seconds, *counts)


def _figures(cell: CellNoise, i: int, drawn: Prompts) -> CellFigures:
    key = CellKey(
        condition=Condition(
            target="demo",
            workload=f"{cell.workload} {i}",
            temperature=cell.temperature,
            concurrency=1,
            dtype="float32",
            engine="builtin",
        ),
        draft=DraftConfig(drafter="draft", method="draft_model", length=Fixed(1)),
    )
    totals = Prompts(*(column.sum() for column in drawn))
    rest = Prompts(*(total - column for total, column in zip(totals, drawn, strict=True)))
    return CellFigures(
        key=key,
        units=tuple(str(n) for n in range(len(drawn.rounds))),
        num_tokens=tuple(drawn.spec_tokens.tolist()),
        figures={
            name: Figure(
                value=rounded(float(metric(totals))),
                without=tuple(map(rounded, metric(rest).tolist())),
            )
            for name, metric in _METRICS.items()
        },
    )


# As the metrics of the same names; tests/gate/test_rates.py holds them to those.
_METRICS: dict[str, Callable[[Prompts], Floats]] = {
    "mean_acceptance_length": lambda s: mean_length(s.accepted, s.rounds),
    "decode_speedup": lambda s: (s.base_s / s.base_tokens) / (s.spec_s / s.spec_tokens),
    "decode_tokens_per_s": lambda s: s.spec_tokens / s.spec_s,
}
