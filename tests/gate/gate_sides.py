"""Hand-made sides of a comparison: one cell, its figures, their spread."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from specbench.gate.baseline import Snapshot, SourceRun
from specbench.gate.figures import CellFigures, Figure
from specbench.gate.fingerprint import Fingerprint
from specbench.records import CellKey
from tests.cell_keys import cell_key

EVEN = (-2.0, -1.0, 0.0, 1.0, 2.0)  # their variance is 2.5


def key(k: int = 4, workload: str = "code", **changed: Any) -> CellKey:
    return cell_key(num_speculative_tokens=k, workload=workload, **changed)


def figure(value: float, error: float = 0.0, deviation: float | None = None) -> Figure:
    """A figure of five prompts whose jackknife standard error, of its logarithm, is `error`.

    For n values the jackknife takes (n - 1)^2 / n times their variance, here 16 / 5 * 2.5 = 8 times
    the square of their step.
    """
    step = error / math.sqrt(8)
    return Figure(
        value=value,
        without=tuple(value * math.exp(step * place) for place in EVEN),
        deviation=deviation,
    )


def cell(
    figures: Mapping[str, Figure],
    of: CellKey | None = None,
    texts: Mapping[str, str] | None = None,
    problems: tuple[str, ...] = (),
    units: Sequence[str] = ("p1", "p2", "p3", "p4", "p5"),
    **changed: Any,
) -> CellFigures:
    return CellFigures(
        key=of or key(),
        units=tuple(units),
        num_tokens=(100.0,) * len(units),
        figures={
            name: replace(figure, without=figure.without and figure.without[: len(units)])
            for name, figure in figures.items()
        },
        texts=texts or {},
        problems=problems,
        **changed,
    )


def fingerprint(**changed: object) -> Fingerprint:
    values: dict[str, object] = {
        "models": {"demo": "a" * 64},
        "tokenizers": {"demo": "b" * 64},
        "workloads": {"code": "c" * 64},
        "sampling": "top-k off, top-p 1",
        "hardware": {"device": "cuda", "GPU": "one"},
        "torch": "2.13.0",
        "drafters": {"demo/draft": "d" * 64},
    }
    return Fingerprint(**{**values, **changed})  # type: ignore[arg-type]


def side(
    *cells: CellFigures,
    name: str = "a",
    num_runs: int = 1,
    unmeasured: tuple[CellKey, ...] = (),
    is_complete: bool = True,
    **changed: object,
) -> Snapshot:
    """A snapshot of some cells; `changed`: fields of its fingerprint."""
    return Snapshot(
        origins=tuple(
            SourceRun(run_id=f"{name}{i}", created_at="2026-11-21", specbench_version="0.1.0")
            for i in range(num_runs)
        ),
        fingerprint=fingerprint(**changed),
        cells=cells,
        unmeasured=unmeasured,
        is_complete=is_complete,
    )
