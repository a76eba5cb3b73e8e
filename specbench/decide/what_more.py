"""What more to measure where nothing is decided: prompts, passes over them, or cycles."""

from collections.abc import Iterator
from typing import NamedTuple

from specbench.decide.reasons import Units, units_of
from specbench.metrics.registry import number_of
from specbench.records import CellSummary, Interval
from specbench.stats.crossed import (
    MIN_CYCLES,
    SessionNoise,
    more_cycles_for,
    more_prompts_for,
)
from specbench.stats.precision import prompts_to_decide, settling_margin
from specbench.stats.spread import MIN_UNITS, Spread

MOST_PROMPTS = 200  # that anybody is asked to add for one answer


class Limits(NamedTuple):
    """An interval above the first decides that it helps, one below the second that it does not."""

    helps_above: float
    nothing_below: float


class _More(NamedTuple):
    """What would do."""

    num: int
    units: Units


def what_would_decide(cell: CellSummary, limits: Limits, workload_prompts: int | None) -> str:
    """What to measure for a decision; empty where the run does not say what there is.

    Passes and cycles can be repeated without end; prompts only while there are more. A number of
    prompts that nobody has is no advice.
    """
    if cell.speedup is None:
        return ""
    units = units_of(cell)
    ways = list(_ways(cell, cell.speedup, units, limits))
    if not ways:
        return "more cycles of more prompts needed to decide"
    left = None if workload_prompts is None else max(0, workload_prompts - cell.num_prompts)
    more = next(
        (way for way in ways if not way.units.are_prompts or way.num <= (left or 0)), ways[0]
    )
    if more.units.are_prompts:
        if left is None:
            return ""
        if left < more.num:
            return _beyond(more, cell, cell.speedup, left, units)
    return _needed(more, cell.speedup)


def _needed(more: _More, speedup: Interval) -> str:
    count = f"{float(f'{more.num:.2g}'):,.0f} more {more.units.noun(more.num)} needed"
    return (
        f"at least {count} for an interval" if speedup.low is None else f"about {count} to decide"
    )


def _beyond(more: _More, cell: CellSummary, speedup: Interval, left: int, units: Units) -> str:
    """What to do where the workload has fewer prompts left than would decide."""
    noun, every = more.units.noun, cell.num_prompts + left
    if more.num > MOST_PROMPTS:
        quieter = (
            "a quieter machine or more --repeats" if units.are_prompts else "a quieter machine"
        )
        return (
            f"{every:,} {noun(every)} cannot decide this with so much noise; {quieter} would "
            "narrow the interval"
        )
    few = f"only {left:,} more" if left else "no more"
    what = "add some, or raise --repeats" if units.are_prompts else "add some"
    return f"{_needed(more, speedup)}, and the workload has {few}: {what}"


def _ways(cell: CellSummary, speedup: Interval, units: Units, limits: Limits) -> Iterator[_More]:
    """First more of what makes the most of the interval; none where neither alone would do."""
    prompts = Units(count=cell.num_prompts, name="prompt")
    noise = _noise(cell)
    if not units.are_cycles:
        yield _More(prompts_to_decide(speedup, units.count, **limits._asdict()), units)
    elif units.count < MIN_CYCLES:
        yield _More(MIN_CYCLES - units.count, units)
    elif speedup.low is None or noise is None:
        yield _More(max(1, MIN_UNITS - cell.num_prompts), prompts)
    else:
        margin = settling_margin(speedup.estimate, *limits)
        found = [
            (more_prompts_for(noise, units.count, cell.num_prompts, margin), prompts),
            (more_cycles_for(noise, units.count, margin), units),
        ]
        for count, what in found if noise.is_of_prompts(units.count) else found[::-1]:
            if count is not None:
                yield _More(count, what)


def _noise(cell: CellSummary) -> SessionNoise | None:
    """As the cell's metrics tell it."""
    deviation = number_of(cell.metrics, "cycle_deviation")
    error = number_of(cell.metrics, "prompt_error")
    if deviation is None or error is None:
        return None
    freedom = max(1.0, cell.num_prompts - 1.0)
    return SessionNoise(
        cycle_sd=deviation, prompts=Spread(standard_error=error, degrees_of_freedom=freedom)
    )
