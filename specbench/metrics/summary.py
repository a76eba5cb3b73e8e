"""A cell after analysis: metrics, validity, speed-up."""

from collections.abc import Iterable
from dataclasses import replace

from specbench.metrics.cell import CellData
from specbench.metrics.pairs import (
    PairedSeconds,
    paired_decode,
    paired_end_to_end,
    paired_goodput,
)
from specbench.metrics.registry import measure
from specbench.metrics.validity import cell_warnings, judge_cell
from specbench.records import CellSummary, Goodput
from specbench.settings.words import limits_text
from specbench.stats.crossed import crossed_speedup
from specbench.stats.intervals import (
    LogRatio,
    interval,
    minimum_detectable_effect,
    speedup_ratio,
    with_count_noise,
)


def summarise(cells: Iterable[CellData]) -> tuple[CellSummary, ...]:
    """One summary a cell, in order; an invalid cell keeps its metrics and says why."""
    return tuple(map(_summarise, cells))


def _summarise(cell: CellData) -> CellSummary:
    reasons = judge_cell(cell)
    decode = _speedup(cell, paired_decode(cell))
    end_to_end = _speedup(cell, paired_end_to_end(cell))
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
        goodput=_goodput(cell),
        warnings=cell_warnings(cell),
    )


def _goodput(cell: CellData) -> Goodput | None:
    counts = paired_goodput(cell)
    ratio = _speedup(cell, counts)
    if counts is None or ratio is None:
        return None
    ratio = with_count_noise(ratio, counts.base_tokens, counts.spec_tokens)
    return Goodput(
        limits=limits_text(cell.slo),
        ratio=interval(ratio),
        minimum_detectable_effect=minimum_detectable_effect(ratio),
    )


def _speedup(cell: CellData, seconds: PairedSeconds | None) -> LogRatio | None:
    if seconds is None:
        return None
    if not seconds.has_cycles:
        return speedup_ratio(*seconds)
    ratio = crossed_speedup(*seconds)
    is_alone = ratio.num_prompts == 1 and not cell.key.condition.is_stream
    return replace(ratio, spread=None) if is_alone else ratio  # one prompt says nothing of others
