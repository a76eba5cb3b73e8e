"""Summaries of cells after the first pass."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import pytest

from specbench.decide.recommend import by_question, choose, decide
from specbench.records import CellSummary, Decision, Interval, Reason
from tests.cell_keys import BASE_KEY, KEY, with_axes

Summarized = Callable[..., CellSummary]


def summary(
    k: int,
    low: float | None,
    estimate: float,
    high: float | None,
    *,
    workload: str = "code",
    num_prompts: int = 8,
    invalid: tuple[Reason, ...] = (),
    metrics: Mapping[str, float | tuple[float, ...]] | None = None,
) -> CellSummary:
    """One cell of demo/draft; K = 0 is the target without drafts and has no speedup."""
    return CellSummary(
        key=with_axes(KEY if k else BASE_KEY, workload=workload, num_speculative_tokens=k),
        valid=not invalid,
        invalid_reasons=invalid,
        num_prompts=num_prompts,
        num_requests=num_prompts,
        metrics=metrics or {},
        speedup=Interval(estimate=estimate, low=low, high=high) if k else None,
    )


@pytest.fixture
def summarized() -> Summarized:
    return summary


def rated(
    rows: int,
    user: float,
    every: float,
    ks: Mapping[int, tuple[float | None, float, float | None]],
    *,
    drafter: str = "draft",
    workload: str = "code",
    ttft_s: float = 0.1,
) -> list[CellSummary]:
    """K = 0 and other K with their speedups at one batch size: tokens/s of one user and of all."""
    cells = []
    for k, (low, estimate, high) in {0: (None, 1.0, None), **ks}.items():
        busy = every * estimate
        metrics = {"tpot_s": 1 / (user * estimate), "ttft_s": ttft_s, "busy_tokens_per_s": busy}
        metrics |= {"decode_tokens_per_s": busy}
        if rows > 1:
            metrics["aggregate_tokens_per_s"] = busy / 2  # of whole passes
        cell = summary(k, low, estimate, high, workload=workload, metrics=metrics)
        drafters = {"drafter": drafter, "pairing": f"demo/{drafter}"} if k else {}
        cells.append(replace(cell, key=with_axes(cell.key, concurrency=rows, **drafters)))
    return cells


def decided(cells: Iterable[CellSummary]) -> list[Decision]:
    """The decisions of single K, which need no second measurement."""
    return [decide(choose(group)) for group in by_question(cells)]
