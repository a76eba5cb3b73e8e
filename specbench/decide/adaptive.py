"""K = auto against the best fixed K: what it costs not to know K, or gains to change it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from statistics import geometric_mean
from typing import NamedTuple

from specbench.metrics.cell import CellData, against
from specbench.metrics.pairs import paired_decode, paired_end_to_end
from specbench.metrics.serving import mean_num_speculative_tokens
from specbench.metrics.summary import summarise
from specbench.metrics.validity import judge_cell
from specbench.records import CellKey, CellSummary, Interval
from specbench.stats.intervals import (
    interval,
    minimum_detectable_effect,
    speedup_interval,
    speedup_ratio,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class AdaptiveComparison:
    """How many times as fast as the best fixed K, K = 0 among them, an adaptive K is."""

    adaptive: CellKey
    best_fixed: CellKey
    decode: Interval
    minimum_detectable_effect: float | None  # of decode; None where it has no interval
    end_to_end: Interval | None
    mean_num_speculative_tokens: float | None
    num_units: int  # prompts, or passes where requests overlap
    is_confirmed: bool  # False: of the first pass, which picked the best of many
    valid: bool


class Pooled(NamedTuple):
    """One ratio for several settings, and how many of them it is over."""

    ratio: float
    num_settings: int


def compare_adaptive(
    explored: Sequence[CellData], confirmed: Sequence[CellData] = ()
) -> tuple[AdaptiveComparison, ...]:
    """Each adaptive cell against the first pass's best fixed K, over fresh repeats if both have
    them."""
    adaptive = [cell for cell in explored if cell.key.draft.is_adaptive]
    if not adaptive:
        return ()
    first = {cell.key: cell for cell in explored}
    again = {cell.key: cell for cell in confirmed}
    fixed = summarise(cell for cell in explored if cell.key.draft.is_fixed)
    found = (
        _compare(cell, first[best], again)
        for cell in adaptive
        if (best := best_fixed([one for one in fixed if _competes(one.key, cell.key)])) is not None
    )
    return tuple(comparison for comparison in found if comparison is not None)


def best_fixed(cells: Sequence[CellSummary]) -> CellKey | None:
    """The fixed K of the highest decode speed-up among one question's cells; K = 0 is at 1.

    An invalid cell is taken only where no valid one has a speed-up, and of equal ones the
    smaller K. None where no fixed cell has a speed-up.
    """
    ranked = [
        ((cell.valid, speedup, -cell.key.draft.k), cell.key)
        for cell in cells
        if cell.key.draft.is_fixed and (speedup := _speedup(cell)) is not None
    ]
    return max(ranked, key=itemgetter(0))[1] if ranked else None


def pooled(comparisons: Iterable[AdaptiveComparison]) -> Pooled | None:
    """Geometric mean of the estimates of valid comparisons over fresh repeats.

    Those of the first pass are left out: they favour the fixed K, which was picked by the same
    figures. None where nothing is left.
    """
    estimates = [c.decode.estimate for c in comparisons if c.valid and c.is_confirmed]
    return Pooled(geometric_mean(estimates), len(estimates)) if estimates else None


def _competes(key: CellKey, adaptive: CellKey) -> bool:
    same = key.draft.way == adaptive.draft.way
    return key.condition == adaptive.condition and (same or key.is_baseline)


def _speedup(cell: CellSummary) -> float | None:
    if cell.key.is_baseline:
        return 1.0
    return cell.speedup.estimate if cell.speedup else None


def _compare(
    adaptive: CellData, best: CellData, again: Mapping[CellKey, CellData]
) -> AdaptiveComparison | None:
    """None where the two have nothing in common that both finished."""
    is_confirmed = adaptive.key in again and best.key in again
    if is_confirmed:
        adaptive, best = again[adaptive.key], again[best.key]
    both = against(adaptive, best)
    decode, end_to_end = paired_decode(both), paired_end_to_end(both)
    if decode is None:
        return None
    ratio = speedup_ratio(*decode)
    return AdaptiveComparison(
        adaptive=adaptive.key,
        best_fixed=best.key,
        decode=interval(ratio),
        minimum_detectable_effect=minimum_detectable_effect(ratio),
        end_to_end=speedup_interval(*end_to_end) if end_to_end else None,
        mean_num_speculative_tokens=mean_num_speculative_tokens(adaptive),
        num_units=ratio.num_prompts,
        is_confirmed=is_confirmed,
        valid=not judge_cell(adaptive) and not judge_cell(best),
    )
