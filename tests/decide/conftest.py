"""Summaries of cells as the first pass leaves them."""

from collections.abc import Callable, Mapping

import pytest

from specbench.records import CellSummary, Interval
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
    invalid: tuple[str, ...] = (),
    metrics: Mapping[str, float | tuple[float, ...]] | None = None,
) -> CellSummary:
    """One cell of demo/draft; K = 0 is the bare target's and has no speedup."""
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
