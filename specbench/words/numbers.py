"""Numbers as a reader sees them: three significant digits and a unit fit for the screen."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from specbench.metrics.registry import number_of
from specbench.records import CellSummary, Interval
from specbench.stats.intervals import LARGEST_EFFECT

LEAST_P = 1e-99  # a smaller p-value is shown as less than this
_NOTHING = 1e-9  # a picosecond in ms: below any clock, above the errors of rounding
_COUNTS = {"tokens", "rounds", "requests", "texts"}
_SIZES = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


class Scale(NamedTuple):
    """The displayed unit and the factor from a stored value to it."""

    unit: str
    factor: float


def effect_text(effect: float) -> str:
    """A minimum detectable effect; `>100%` for a larger one."""
    return f"{effect:.1%}" if effect <= LARGEST_EFFECT else f">{LARGEST_EFFECT:.0%}"


def scale_of(unit: str, largest: float) -> Scale:
    """The displayed unit for values of a metric's unit up to `largest`."""
    if unit.startswith("bytes"):
        size, name = next((s for s in _SIZES if abs(largest) >= s[0]), (1, "bytes"))
        return Scale(unit.replace("bytes", name), 1 / size)
    if unit in {"s", "s/token"}:
        return Scale(f"m{unit}", 1e3)
    return Scale("%", 100.0) if unit == "fraction" else Scale(unit, 1.0)


def memory_scale(largest: float) -> Scale:
    """The unit of an axis of bytes up to `largest`: MiB or GiB."""
    return scale_of("bytes", max(largest, 2**20))


def number(value: float, unit: str, scale: Scale) -> str:
    """A stored value on a scale, without its unit."""
    return f"{value:,.0f}" if unit in _COUNTS else significant(value * scale.factor)


def measured(value: float, unit: str) -> str:
    """A value with its unit: 5.43 ms, 81.0%, 1.90x, 12.6 MiB, 1,234 tokens."""
    scale = scale_of(unit, value)
    gap = "" if scale.unit in {"%", "x"} else " "
    return f"{number(value, unit, scale)}{gap}{scale.unit}"


def significant(value: float) -> str:
    """At least three significant digits: 0.0123, 1.23, 123, 12,345.

    The rounding error of a difference of equal numbers is 0.
    """
    if abs(value) < _NOTHING:
        return "0"
    decimals = 2 - math.floor(math.log10(abs(value)))
    return f"{value:,.{max(0, decimals)}f}"


def p_text(p_value: float) -> str:
    """`p = 0.012`; a very small one is shown as less than the least."""
    return f"p < {LEAST_P:.0g}" if p_value < LEAST_P else f"p = {p_value:.2g}"


def interval_bounds(value: Interval) -> str:
    """` [1.80, 2.00]`; empty without bounds."""
    if value.low is None or value.high is None:
        return ""
    return f" [{value.low:.2f}, {value.high:.2f}]"


def speedup_text(speedup: Interval, word: str = "") -> str:
    """A speedup such as `1.90x faster [1.80, 2.00]`; without bounds only the estimate."""
    return f"{speedup.estimate:.2f}x{word}{interval_bounds(speedup)}"


def gain_text(speedup: Interval) -> str:
    """A gain such as `9% [7, 12]`; without bounds only the estimate."""
    percents = [
        None if value is None else round(100 * (value - 1)) + 0  # no -0
        for value in (speedup.estimate, speedup.low, speedup.high)
    ]
    gain, low, high = percents
    return f"{gain}%" if low is None or high is None else f"{gain}% [{low}, {high}]"


def faster_text(speed: Interval) -> str:
    """A relative speed such as `8% slower [5, 11]`; without bounds only the estimate."""
    is_faster = speed.estimate >= 1
    percents = [
        None
        if value is None
        else round(100 * abs(value - 1)) * (1 if (value >= 1) is is_faster else -1)
        for value in (speed.estimate, *((speed.low, speed.high)[:: 1 if is_faster else -1]))
    ]
    gain, low, high = percents
    bounds = "" if low is None or high is None else f" [{low}, {high}]"
    return f"{gain}% {'faster' if is_faster else 'slower'}{bounds}"


def slower_to_faster(speed: Interval) -> str:
    """The range of an undecided relative speed: `3% slower to 5% faster`."""
    if speed.low is None or speed.high is None:
        return "no interval"
    ends = (Interval(estimate=end, low=None, high=None) for end in (speed.low, speed.high))
    return " to ".join(map(faster_text, ends))


def range_text(speedup: Interval | None) -> str:
    """The range of an undecided speedup, such as `0.60x to 6.60x`."""
    if speedup is None or speedup.low is None or speedup.high is None:
        return "no interval"
    return f"{speedup.low:.2f}x to {speedup.high:.2f}x"


def break_even_text(value: Interval) -> str:
    """`14,000 tokens [9,200, 21,000]`, with `?` for a bound that the run does not determine.

    It has two significant digits, because the interpolation is not more accurate.
    """
    center, low, high = (
        "?" if tokens is None else f"{float(f'{tokens:.2g}'):,.0f}"
        for tokens in (value.estimate, value.low, value.high)
    )
    return f"{center} tokens [{low}, {high}]"


def _per_second(value: float) -> str:
    return f"{value:,.{2 if value < 10 else 1}f}"


def _signed(value: Interval) -> str:
    if value.low is None or value.high is None:
        return f"{value.estimate:+.3f}"
    return f"{value.estimate:+.3f} [{value.low:+.3f}, {value.high:+.3f}]"


def _change(value: Interval) -> str:
    if value.low is None or value.high is None or value.low == value.high:
        return f"{value.estimate:+.1%}"
    return f"{value.estimate:+.1%} +- {100 * (value.high - value.low) / 2:.1f}"


# How tables print a figure, by its unit.
_FORMS: Mapping[str, Callable[[float], str]] = {
    "tokens/s": _per_second,
    "requests/s": _per_second,
    "tokens/round": "{:.2f}".format,
    "tokens/request": "{:.1f}".format,
    "s": lambda seconds: significant(seconds * 1e3),
    "fraction": "{:.0%}".format,
    "x": "{:.2f}x".format,
    "J/token": significant,
    "bytes": lambda value: measured(value, "bytes"),
    "nats/token": "{:.3f}".format,
}
_INTERVALS: Mapping[str, Callable[[Interval], str]] = {
    "tokens": break_even_text,
    "nats/token": _signed,
    "fraction": _change,
}


def figure(value: float | Interval, unit: str) -> str:
    """A figure as tables print it; their headers have its unit if it is not clear."""
    if isinstance(value, Interval):
        return _INTERVALS.get(unit, speedup_text)(value)
    return _FORMS.get(unit, "{:g}".format if isinstance(value, float) else str)(value)


def k_text(cell: CellSummary) -> str:
    """`K=5`, or `auto (mean K 3.1)` for an adaptive cell."""
    mean_k = number_of(cell.metrics, "mean_num_speculative_tokens")
    named = cell.key.draft.length.named
    return named if mean_k is None else f"{named} (mean K {mean_k:.1f})"


def list_of(metrics: Mapping[str, float | tuple[float, ...]], name: str) -> tuple[float, ...]:
    """The values of a metric that is a list; empty for an absent one."""
    value = metrics.get(name)
    return value if isinstance(value, tuple) else ()


def plural(count: int, noun: str) -> str:
    """`1 prompt`, `8 prompts`, `2 passes`."""
    ending = "" if count == 1 else "es" if noun.endswith("s") else "s"
    return f"{count:,} {noun}{ending}"


def listed(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
