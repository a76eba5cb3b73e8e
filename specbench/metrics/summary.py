"""A cell after analysis: metrics, validity, speed-up."""

from collections.abc import Iterable

from specbench.metrics.cell import CellData
from specbench.metrics.pairs import PairedSeconds, paired_decode, paired_end_to_end
from specbench.metrics.registry import measure
from specbench.metrics.validity import cell_warnings, judge_cell
from specbench.records import CellSummary
from specbench.stats.intervals import LogRatio, interval, minimum_detectable_effect, speedup_ratio


def summarise(cells: Iterable[CellData]) -> tuple[CellSummary, ...]:
    """One summary a cell, in order; an invalid cell keeps its metrics and says why."""
    return tuple(map(_summarise, cells))


def _summarise(cell: CellData) -> CellSummary:
    reasons = judge_cell(cell)
    decode = _speedup(paired_decode(cell))
    end_to_end = _speedup(paired_end_to_end(cell))
    return CellSummary(
        key=cell.key,
        valid=not reasons,
        invalid_reasons=reasons,
        num_prompts=len({request.prompt_id for request in cell.finished}),
        num_requests=len(cell.requests),
        metrics=measure(cell),
        speedup=interval(decode) if decode else None,
        speedup_end_to_end=interval(end_to_end) if end_to_end else None,
        minimum_detectable_effect=minimum_detectable_effect(decode) if decode else None,
        warnings=cell_warnings(cell),
    )


def _speedup(seconds: PairedSeconds | None) -> LogRatio | None:
    return speedup_ratio(*seconds) if seconds else None
