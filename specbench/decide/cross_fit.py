"""The speedup of a chosen K on prompts that did not choose it.

The prompts that chose the best of many K also favor it. So the choice is confirmed on other prompts
of the workload; if too few are left, by two-fold cross-fitting: each half of the prompts is judged
at the K that the other half chose. Source: Stone 1974, Cross-validatory choice and assessment of
statistical predictions.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from specbench.decide.recommend import choose
from specbench.metrics.cell import CellData
from specbench.metrics.machine import machine_noise
from specbench.metrics.pairs import PairedSeconds, paired_decode, paired_end_to_end
from specbench.metrics.stalls import stalls, without
from specbench.metrics.summary import margin_of, summarize
from specbench.metrics.validity import judge_cell
from specbench.records import CellSummary
from specbench.stats.intervals import LogRatio, interval, minimum_detectable_effect, speedup_ratio
from specbench.stats.spread import MIN_UNITS


def are_enough(num_unused: int, num_explored: int) -> bool:
    """Whether the unused prompts of a workload can confirm a choice among K."""
    return num_unused >= max(MIN_UNITS, num_explored // 2)


def cross_fitted(cells: Sequence[CellData], leader: CellSummary) -> CellSummary | None:
    """The leader's summary, with the speedups of the two-fold cross-fit over the K > 0 `cells` of
    its question. None if a half has no choice, or if requests overlap.

    A cell is valid or not as a whole, and so are its stalls: half of its rounds may be few.
    """
    if leader.key.condition.overlaps or leader.goodput is not None:
        return None
    valid = {cell.key: cell for cell in cells if not judge_cell(cell)}
    found = _fitted([without(cell, stalls(cell).left_out) for cell in valid.values()])
    if found is None:
        return None
    noise = machine_noise(valid[leader.key])
    ratio, end_to_end = (side.on(noise) for side in found)
    screening = leader.screening
    if screening is not None and screening.num_kept:
        rest = _fitted([without(cell, stalls(cell).all) for cell in valid.values()])
        screening = rest and replace(screening, without_any=interval(rest[0].on(noise)))
    return replace(
        leader,
        num_prompts=ratio.num_prompts,
        speedup=interval(ratio),
        speedup_end_to_end=interval(end_to_end),
        minimum_detectable_effect=minimum_detectable_effect(ratio),
        margin=margin_of(ratio),
        screening=screening,
    )


def _fitted(cells: Sequence[CellData]) -> tuple[LogRatio, LogRatio] | None:
    """The log speedups of decoding and of whole requests over both halves."""
    prompts = list(dict.fromkeys(r.prompt_id for cell in cells for r in cell.finished))
    halves = [frozenset(prompts[0::2]), frozenset(prompts[1::2])]
    decode: list[PairedSeconds] = []
    whole: list[PairedSeconds] = []
    for judged, chosen_on in (halves, halves[::-1]):
        candidates = summarize(_restricted(cell, chosen_on) for cell in cells)
        choice = choose([replace(c, valid=True, invalid_reasons=()) for c in candidates]).leader
        if choice is None:
            return None
        chosen = next(cell for cell in cells if cell.key == choice.key)
        part = _restricted(chosen, judged)
        for column, seconds in ((decode, paired_decode(part)), (whole, paired_end_to_end(part))):
            if seconds is None or seconds.has_cycles:
                return None
            column.append(seconds)
    return _joined(decode), _joined(whole)


def _joined(halves: Sequence[PairedSeconds]) -> LogRatio:
    return speedup_ratio(*(np.concatenate(columns) for columns in zip(*halves, strict=True)))


def _restricted(cell: CellData, prompts: frozenset[str]) -> CellData:
    return replace(cell, requests=tuple(r for r in cell.requests if r.prompt_id in prompts))
