"""A cell's counts under vLLM's own names, for tools that read those.

Names only: they are counted as in `acceptance.py`, which says how vLLM's counts differ.
"""

from typing import Any

from specbench.metrics.acceptance import (
    acceptance_histogram,
    acceptance_rate,
    mean_acceptance_length,
)
from specbench.metrics.cell import CellData


def vllm_counts(cell: CellData) -> dict[str, Any] | None:
    """The fields of vLLM's per-request speculative decoding metrics, summed over a cell.

    None at K = 0 and if the engine does not report rounds.
    """
    counts, length = cell.acceptance, mean_acceptance_length(cell)
    histogram = acceptance_histogram(cell)
    if counts is None or length is None or histogram is None:
        return None
    return dict(
        num_spec_steps=int(counts.num_rounds),
        num_draft_tokens=int(counts.num_drafted),
        num_accepted_draft_tokens=int(counts.num_accepted),
        acceptance_histogram=tuple(int(n) for n in histogram),
        num_spec_tokens=cell.k,
        mean_acceptance_length=length,
        draft_acceptance_rate=acceptance_rate(cell),
    )
