"""What would narrow an undecided interval: prompts, passes over them, or cycles of a server.

No number of prompts that would decide is given. An undecided interval contains a limit, so their
distance is not known within a factor of two, and the number follows from its square
(tests/decide/test_what_more.py has how such a number varies over equal runs).
"""

import math

from specbench.decide.reasons import Units, units_of
from specbench.metrics.registry import number_of
from specbench.records import CellSummary
from specbench.stats.crossed import MIN_CYCLES
from specbench.stats.spread import MIN_UNITS, UPPER, student_t

LARGEST_EFFECT = 1.0  # a minimum detectable effect above this: prompts alone decide nothing


def what_would_narrow(cell: CellSummary, workload_prompts: int | None) -> str:
    """What to measure next; empty if unknown. `workload_prompts`: how many the workload has for
    this target."""
    if cell.speedup is None:
        return ""
    units, prompts = units_of(cell), Units(count=cell.num_prompts, name="prompt")
    left = None if workload_prompts is None else max(0, workload_prompts - prompts.count)
    low, high = cell.speedup.low, cell.speedup.high
    if low is None or high is None:
        return _for_an_interval(units, prompts, left)
    option = "--restart-cycles" if units.are_cycles else "--repeats"
    quieter = f"a quieter machine or more {option}"
    if (cell.minimum_detectable_effect or 0.0) > LARGEST_EFFECT:
        return f"the noise hides any speedup: only {quieter} would narrow it"
    if units.name == "pass" or (units.are_cycles and not _is_noise_of_prompts(cell, units.count)):
        return f"more {option} would narrow it"
    if left is None:
        return ""
    if not left:
        return f"the workload has no more prompts: add some, or use {quieter}"
    text = f"all {prompts.count + left:,} prompts of the workload would narrow it"
    if units.are_cycles:
        return text
    # The half width of the log over all prompts, if their spread is that of those measured.
    num, total = prompts.count, prompts.count + left
    narrower = math.sqrt(num / total) * student_t(total - 1, UPPER) / student_t(num - 1, UPPER)
    width = math.expm1(math.log(high / low) / 2 * narrower)
    return f"{text} to about ±{float(f'{width:.1g}'):.0%}"


def _for_an_interval(units: Units, prompts: Units, left: int | None) -> str:
    missing, kind = MIN_UNITS - units.count, units
    if units.are_cycles:
        missing = MIN_CYCLES - units.count
        if missing <= 0:
            missing, kind = MIN_UNITS - prompts.count, prompts
    missing = max(1, missing)
    text = f"at least {missing} more {kind.noun(missing)} needed for an interval"
    if kind.are_prompts and left is not None and left < missing:
        text += f", and the workload has {f'only {left}' if left else 'no'} more: add some"
    return text


def _is_noise_of_prompts(cell: CellSummary, num_cycles: int) -> bool:
    """Whether prompts, and not cycles, have the larger share in a server's interval."""
    of_cycles = number_of(cell.metrics, "cycle_deviation")
    of_prompts = number_of(cell.metrics, "prompt_error")
    if of_cycles is None or of_prompts is None:
        return False
    return of_prompts > of_cycles / math.sqrt(num_cycles)
