"""K = auto against the best fixed K: what it costs not to know K, or gains to change it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import geometric_mean

from specbench.metrics.cell import CellData, against
from specbench.metrics.pairs import paired_decode, paired_end_to_end
from specbench.metrics.serving import mean_num_speculative_tokens
from specbench.metrics.setting import is_baseline, setting_of
from specbench.records import CellKey, Interval
from specbench.stats.intervals import speedup_interval
from specbench.stats.validity import judge_cell


@dataclass(frozen=True, kw_only=True, slots=True)
class AdaptiveComparison:
    """How many times as fast as the best fixed K, K = 0 among them, an adaptive K is."""

    adaptive: CellKey
    best_fixed: CellKey
    decode: Interval
    end_to_end: Interval | None
    mean_num_speculative_tokens: float | None
    num_units: int  # prompts, or passes where requests overlap
    is_confirmed: bool  # False: of the first pass, which picked the best of many
    valid: bool


def compare_adaptive(
    explored: Sequence[CellData], confirmed: Sequence[CellData] = ()
) -> tuple[AdaptiveComparison, ...]:
    """A comparison for each adaptive cell, over fresh repeats where both were measured again.

    The best fixed K is the one of the highest speed-up in the first pass; K = 0 is at 1.
    """
    again = {cell.key: cell for cell in confirmed}
    found = (
        _compare(cell, best, again)
        for cell in explored
        if cell.key.adaptive and (best := _best_fixed(cell.key, explored)) is not None
    )
    return tuple(comparison for comparison in found if comparison is not None)


def pooled(comparisons: Iterable[AdaptiveComparison]) -> float | None:
    """Geometric mean of the valid comparisons' estimates; None where there is none."""
    estimates = [c.decode.estimate for c in comparisons if c.valid]
    return geometric_mean(estimates) if estimates else None


def _best_fixed(adaptive: CellKey, cells: Sequence[CellData]) -> CellData | None:
    """None where not even K = 0 was measured."""
    speedups = [(_speedup(cell), cell) for cell in cells if _competes(cell.key, adaptive)]
    known = [(speedup, cell) for speedup, cell in speedups if speedup is not None]
    return max(known, key=lambda pair: pair[0])[1] if known else None


def _competes(key: CellKey, adaptive: CellKey) -> bool:
    same = (key.pairing, key.method) == (adaptive.pairing, adaptive.method)
    drafts = same and not key.adaptive
    return setting_of(key) == setting_of(adaptive) and (drafts or is_baseline(key))


def _speedup(cell: CellData) -> float | None:
    if is_baseline(cell.key):
        return 1.0
    seconds = paired_decode(cell)
    return None if seconds is None or judge_cell(cell) else seconds.speedup


def _compare(
    adaptive: CellData, best: CellData, again: dict[CellKey, CellData]
) -> AdaptiveComparison | None:
    """None where the two have nothing in common that both finished."""
    is_confirmed = adaptive.key in again and best.key in again
    if is_confirmed:
        adaptive, best = again[adaptive.key], again[best.key]
    both = against(adaptive, best)
    decode, end_to_end = paired_decode(both), paired_end_to_end(both)
    if decode is None:
        return None
    return AdaptiveComparison(
        adaptive=adaptive.key,
        best_fixed=best.key,
        decode=speedup_interval(*decode),
        end_to_end=speedup_interval(*end_to_end) if end_to_end else None,
        mean_num_speculative_tokens=mean_num_speculative_tokens(adaptive),
        num_units=len(decode.base_s),
        is_confirmed=is_confirmed,
        valid=not judge_cell(adaptive) and not judge_cell(best),
    )
